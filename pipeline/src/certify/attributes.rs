//! The attributes of an operation as bytes: all that it is, but for the ids and statuses of its tensors.

use std::fmt;

use serde::Serialize;
use serde::ser::{self, Serializer};

/// Appends what is serialized. Numbers have their bits, so -0 is not 0 and a NaN is itself; sequences and texts have
/// their length before them, and variants their index, so two operations have the same bytes only if they are equal.
pub(super) struct Attributes<'a>(pub(super) &'a mut Vec<u8>);

/// A struct that is being written, and whether it is a tensor.
pub(super) struct Fields<'a> {
    bytes: &'a mut Vec<u8>,
    is_tensor: bool,
}

impl Fields<'_> {
    fn write<T: Serialize + ?Sized>(&mut self, value: &T) -> fmt::Result {
        value.serialize(Attributes(self.bytes))
    }
}

impl<'a> Attributes<'a> {
    fn put(self, bytes: &[u8]) -> fmt::Result {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn fields(self) -> Result<Fields<'a>, fmt::Error> {
        Ok(Fields {
            bytes: self.0,
            is_tensor: false,
        })
    }

    fn length(self, length: Option<usize>) -> Result<Fields<'a>, fmt::Error> {
        // No sequence of an operation has an unknown length; if one had, its end would not be told.
        let length = length.ok_or(fmt::Error)? as u64;
        self.0.extend_from_slice(&length.to_le_bytes());
        self.fields()
    }

    fn variant(self, index: u32) -> Result<Fields<'a>, fmt::Error> {
        self.0.extend_from_slice(&index.to_le_bytes());
        self.fields()
    }
}

macro_rules! numbers {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, value: $type) -> fmt::Result {
            self.put(&value.to_le_bytes())
        })*
    };
}

impl<'a> Serializer for Attributes<'a> {
    type Ok = ();
    type Error = fmt::Error;
    type SerializeSeq = Fields<'a>;
    type SerializeTuple = Fields<'a>;
    type SerializeTupleStruct = Fields<'a>;
    type SerializeTupleVariant = Fields<'a>;
    type SerializeMap = Fields<'a>;
    type SerializeStruct = Fields<'a>;
    type SerializeStructVariant = Fields<'a>;

    numbers!(
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_u64: u64, serialize_u128: u128, serialize_f32: f32, serialize_f64: f64
    );

    fn serialize_bool(self, value: bool) -> fmt::Result {
        self.put(&[u8::from(value)])
    }

    fn serialize_char(self, value: char) -> fmt::Result {
        self.put(&u32::from(value).to_le_bytes())
    }

    fn serialize_str(self, value: &str) -> fmt::Result {
        self.serialize_bytes(value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> fmt::Result {
        self.0
            .extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.put(value)
    }

    fn serialize_none(self) -> fmt::Result {
        self.put(&[0])
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> fmt::Result {
        self.0.push(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> fmt::Result {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> fmt::Result {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> fmt::Result {
        self.put(&index.to_le_bytes())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> fmt::Result {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> fmt::Result {
        self.variant(index)?.write(value)
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Fields<'a>, fmt::Error> {
        self.length(length)
    }

    fn serialize_tuple(self, _: usize) -> Result<Fields<'a>, fmt::Error> {
        self.fields()
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Fields<'a>, fmt::Error> {
        self.fields()
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Fields<'a>, fmt::Error> {
        self.variant(index)
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Fields<'a>, fmt::Error> {
        self.length(length)
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields<'a>, fmt::Error> {
        Ok(Fields {
            bytes: self.0,
            is_tensor: name == "TensorIr",
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Fields<'a>, fmt::Error> {
        self.variant(index)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

macro_rules! elements {
    ($($kind:ident: $method:ident),*) => {
        $(impl ser::$kind for Fields<'_> {
            type Ok = ();
            type Error = fmt::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> fmt::Result {
                self.write(value)
            }

            fn end(self) -> fmt::Result {
                Ok(())
            }
        })*
    };
}

elements!(
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
);

impl ser::SerializeMap for Fields<'_> {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> fmt::Result {
        self.write(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> fmt::Result {
        self.write(value)
    }

    fn end(self) -> fmt::Result {
        Ok(())
    }
}

impl ser::SerializeStruct for Fields<'_> {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> fmt::Result {
        // Which tensor it is, the hash of the operand says.
        match self.is_tensor && matches!(key, "id" | "status") {
            true => Ok(()),
            false => self.write(value),
        }
    }

    fn end(self) -> fmt::Result {
        Ok(())
    }
}

impl ser::SerializeStructVariant for Fields<'_> {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        _: &'static str,
        value: &T,
    ) -> fmt::Result {
        self.write(value)
    }

    fn end(self) -> fmt::Result {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Shape};
    use burn_ir::{
        NumericOperationIr, OperationIr, ScalarIr, ScalarOpIr, TensorId, TensorIr, TensorStatus,
    };

    use super::*;

    fn bytes(operation: &OperationIr) -> Vec<u8> {
        let mut bytes = Vec::new();
        operation.serialize(Attributes(&mut bytes)).unwrap();
        bytes
    }

    fn tensor(id: u64, status: TensorStatus, dtype: DType) -> TensorIr {
        TensorIr {
            id: TensorId::new(id),
            shape: Shape::new([2, 3]),
            status,
            dtype,
        }
    }

    fn multiplied(lhs: TensorIr, rhs: f64) -> OperationIr {
        let out = tensor(9, TensorStatus::NotInit, DType::F32);
        let rhs = ScalarIr::Float(rhs);
        let scaled = NumericOperationIr::MulScalar(ScalarOpIr { lhs, rhs, out });
        OperationIr::NumericFloat(DType::F32, scaled)
    }

    #[test]
    fn ids_and_statuses_are_left_out_and_all_else_counts() {
        let read = || tensor(1, TensorStatus::ReadOnly, DType::F32);
        let one = bytes(&multiplied(read(), 0.0));
        let other = tensor(5, TensorStatus::ReadWrite, DType::F32);
        assert_eq!(one, bytes(&multiplied(other, 0.0)));
        let half = tensor(1, TensorStatus::ReadOnly, DType::F16);
        assert_ne!(one, bytes(&multiplied(half, 0.0)));
        assert_ne!(one, bytes(&multiplied(read(), -0.0)));
        assert_ne!(one, bytes(&multiplied(read(), 1.0)));
        // A NaN is equal to itself, unlike in a comparison of floats.
        let nan = || bytes(&multiplied(read(), f64::NAN));
        assert_eq!(nan(), nan());
    }
}
