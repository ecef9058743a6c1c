//! A rectangular region of a tensor: offset and size per dimension.

use std::ops::Range;

use derive_more::Display;
use serde::{Deserialize, Serialize, Serializer};

/// A rectangular region of a tensor: the elements whose index in every dimension `d` is in
/// `offset[d] .. offset[d] + size[d]`.
///
/// The common type for slices, chunks and shards. A region of rank 0 is a scalar and has one element.
#[derive(Clone, derive_more::Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[debug("Region {{ offset: {:?}, size: {size:?} }}", self.offset())]
#[display("{:?}", self.ranges())]
#[serde(try_from = "Form<Vec<u64>>")]
pub struct Region {
    /// Empty if all are 0, as in most regions: a manifest may have millions.
    offset: Vec<u64>,
    size: Vec<u64>,
}

/// The maximum number of dimensions of most tensors.
const ZEROS: [u64; 32] = [0; 32];

/// The serialized form of a region.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename = "Region")]
struct Form<T> {
    offset: T,
    size: T,
}

impl TryFrom<Form<Vec<u64>>> for Region {
    type Error = RegionError;

    fn try_from(region: Form<Vec<u64>>) -> Result<Self, RegionError> {
        Self::new(region.offset, region.size)
    }
}

impl Serialize for Region {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (offset, size) = (self.offset(), self.size());
        Form { offset, size }.serialize(serializer)
    }
}

/// An error in a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Offset and size have different ranks.
    #[error("region has {offset} offsets and {size} sizes: give one of each per dimension")]
    RankMismatch {
        /// Number of offsets.
        offset: usize,
        /// Number of sizes.
        size: usize,
    },
    /// The end of a dimension or the number of elements does not fit in 64 bits.
    #[error("region {offset:?}+{size:?} overflows 64 bits")]
    Overflow {
        /// Offset per dimension.
        offset: Vec<u64>,
        /// Size per dimension.
        size: Vec<u64>,
    },
    /// The tensor has more or fewer dimensions.
    #[error(
        "region {region} has {} dimension(s), the shape {shape:?} has {}: give a range for each",
        region.rank(), shape.len()
    )]
    OtherRank {
        /// The region.
        region: Region,
        /// Shape of the tensor.
        shape: Vec<u64>,
    },
    /// The region is not inside the tensor.
    #[error("region {region} reaches past the shape {shape:?}")]
    OutOfBounds {
        /// The region.
        region: Region,
        /// Shape of the tensor.
        shape: Vec<u64>,
    },
}

impl Region {
    /// Creates a region from its offset and size per dimension.
    ///
    /// # Errors
    ///
    /// When the ranks differ, or an end or the number of elements overflows.
    pub fn new(offset: Vec<u64>, size: Vec<u64>) -> Result<Self, RegionError> {
        if offset.len() != size.len() {
            let (offset, size) = (offset.len(), size.len());
            return Err(RegionError::RankMismatch { offset, size });
        }
        let mut ranges = offset.iter().zip(&size);
        let ends = ranges.all(|(o, s)| o.checked_add(*s).is_some());
        let elements = size.iter().try_fold(1u64, |n, s| n.checked_mul(*s));
        if !ends || elements.is_none() {
            return Err(RegionError::Overflow { offset, size });
        }
        Ok(Self::of(offset, size))
    }

    /// Creates a region that is known to fit.
    fn of(mut offset: Vec<u64>, size: Vec<u64>) -> Self {
        if ZEROS.starts_with(&offset) {
            offset = Vec::new();
        }
        Self { offset, size }
    }

    /// Returns the region of all elements of a tensor of this shape.
    ///
    /// # Errors
    ///
    /// When the number of elements overflows.
    pub fn whole(shape: &[u64]) -> Result<Self, RegionError> {
        Self::new(vec![0; shape.len()], shape.to_vec())
    }

    /// Returns the region of all elements of a tensor in memory. Its number of elements is known to fit in 64 bits.
    pub fn of_shape(shape: &[usize]) -> Self {
        let size = shape.iter().map(|d| *d as u64).collect();
        Self::of(vec![0; shape.len()], size)
    }

    /// Returns the first index per dimension.
    pub fn offset(&self) -> &[u64] {
        match self.offset.is_empty() {
            true => &ZEROS[..self.size.len()],
            false => &self.offset,
        }
    }

    /// Returns the number of indices per dimension.
    pub fn size(&self) -> &[u64] {
        &self.size
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.size.len()
    }

    /// Returns the number of elements.
    pub fn num_elements(&self) -> u64 {
        self.size.iter().product()
    }

    /// Returns whether this is the whole of a tensor of this shape.
    pub fn is_whole(&self, shape: &[u64]) -> bool {
        self.size == shape && self.offset().iter().all(|o| *o == 0)
    }

    /// Checks that the region is inside a tensor of this shape.
    ///
    /// # Errors
    ///
    /// When the ranks differ or the region exceeds the shape in a dimension.
    pub fn check_inside(&self, shape: &[u64]) -> Result<(), RegionError> {
        let has_rank = self.rank() == shape.len();
        let mut ranges = self.offset().iter().zip(&self.size).zip(shape);
        if has_rank && ranges.all(|((o, s), d)| o + s <= *d) {
            return Ok(());
        }
        let (region, shape) = (self.clone(), shape.to_vec());
        Err(match has_rank {
            true => RegionError::OutOfBounds { region, shape },
            false => RegionError::OtherRank { region, shape },
        })
    }

    /// Returns the elements that are in both regions, or `None` when there are none or the ranks differ.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        if self.rank() != other.rank() {
            return None;
        }
        let ranges = (0..self.rank()).map(|d| {
            let [one, two] = [self, other].map(|region| region.range(d));
            let start = one.start.max(two.start);
            let size = one.end.min(two.end).checked_sub(start);
            Some((start, size.filter(|size| *size > 0)?))
        });
        let (offset, size) = ranges.collect::<Option<_>>()?;
        Some(Self::of(offset, size))
    }

    /// Returns the half-open range in a dimension.
    ///
    /// # Panics
    ///
    /// When there is no such dimension.
    pub fn range(&self, dimension: usize) -> Range<u64> {
        let start = self.offset()[dimension];
        start..start + self.size[dimension]
    }

    /// Returns the region with another range in one dimension, for example with some rows of a tensor.
    ///
    /// # Panics
    ///
    /// When there is no such dimension, the range ends before it starts, or the number of elements overflows.
    #[must_use]
    pub fn with_range(&self, dimension: usize, range: Range<u64>) -> Self {
        let (mut offset, mut size) = (self.offset().to_vec(), self.size.clone());
        offset[dimension] = range.start;
        size[dimension] = range.end - range.start;
        Self::new(offset, size).expect("a part of a tensor is smaller than it")
    }

    /// Returns the smallest region that contains both.
    ///
    /// # Panics
    ///
    /// When the ranks differ.
    #[must_use]
    pub fn hull(&self, other: &Self) -> Self {
        assert_eq!(self.rank(), other.rank(), "regions of one tensor");
        let ranges = (0..self.rank()).map(|d| {
            let [one, two] = [self, other].map(|region| region.range(d));
            let start = one.start.min(two.start);
            (start, one.end.max(two.end) - start)
        });
        let (offset, size) = ranges.unzip();
        Self::of(offset, size)
    }

    /// Returns the same elements relative to the offset of a region that contains them.
    ///
    /// # Panics
    ///
    /// When the region is not inside the other.
    #[must_use]
    pub fn relative_to(&self, outer: &Self) -> Self {
        let inside = outer.intersection(self).is_some_and(|both| both == *self);
        assert!(inside, "{self} is inside {outer}");
        let offsets = self.offset().iter().zip(outer.offset());
        let offset = offsets.map(|(inner, outer)| inner - outer).collect();
        Self::of(offset, self.size.clone())
    }

    /// Returns the same elements in the tensor around `outer`, to whose offset this region is relative: the inverse of
    /// [`relative_to`](Self::relative_to).
    ///
    /// # Panics
    ///
    /// When the ranks differ, or an end overflows.
    #[must_use]
    pub fn absolute_in(&self, outer: &Self) -> Self {
        assert_eq!(self.rank(), outer.rank(), "a region of a region");
        let offsets = self.offset().iter().zip(outer.offset());
        let offset = offsets.map(|(inner, outer)| inner + outer).collect();
        Self::new(offset, self.size.clone()).expect("a part of a region is inside of its tensor")
    }

    /// Returns the half-open range per dimension, in the type of Burn's slicing.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let ranges = (0..self.rank()).map(|d| self.range(d));
        ranges.map(|r| r.start as usize..r.end as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offset: &[u64], size: &[u64]) -> Region {
        Region::new(offset.to_vec(), size.to_vec()).unwrap()
    }

    #[test]
    fn refuses_what_does_not_fit() {
        assert!(matches!(
            Region::new(vec![0], vec![1, 1]),
            Err(RegionError::RankMismatch { .. })
        ));
        assert!(matches!(
            Region::new(vec![u64::MAX], vec![1]),
            Err(RegionError::Overflow { .. })
        ));
        assert!(matches!(
            Region::whole(&[1 << 40, 1 << 40]),
            Err(RegionError::Overflow { .. })
        ));
        assert!(region(&[2, 0], &[2, 3]).check_inside(&[3, 3]).is_err());
        assert!(region(&[1, 0], &[2, 3]).check_inside(&[3, 3]).is_ok());
        assert!(region(&[1], &[2]).check_inside(&[3, 3]).is_err());
    }

    #[test]
    fn intersects() {
        let a = region(&[0, 2], &[4, 4]);
        assert_eq!(
            a.intersection(&region(&[2, 0], &[9, 3])),
            Some(region(&[2, 2], &[2, 1]))
        );
        assert_eq!(a.intersection(&region(&[4, 0], &[1, 9])), None);
        assert_eq!(a.intersection(&region(&[0], &[4])), None);
        let scalar = region(&[], &[]);
        assert_eq!(scalar.num_elements(), 1);
        assert_eq!(scalar.intersection(&scalar), Some(scalar.clone()));
    }

    #[test]
    fn parts_are_absolute_or_relative() {
        let outer = region(&[3, 2], &[4, 4]);
        let part = outer.with_range(1, 3..5);
        assert_eq!(part, region(&[3, 3], &[4, 2]));
        assert_eq!(part.range(1), 3..5);
        let relative = part.relative_to(&outer);
        assert_eq!(relative, region(&[0, 1], &[4, 2]));
        assert_eq!(relative.absolute_in(&outer), part);
    }

    /// Zero offsets are not stored, up to 32 of them.
    #[test]
    fn offsets_of_zeros_are_there() {
        for rank in [0, 1, 32, 33, 40] {
            let ones = vec![1; rank];
            let whole = Region::whole(&ones).unwrap();
            assert_eq!(whole.offset(), vec![0; rank]);
            assert!(whole.is_whole(&ones) && whole.check_inside(&ones).is_ok());
            assert_eq!(whole, Region::of_shape(&vec![1; rank]));
            assert_eq!(whole.relative_to(&whole), whole);
            assert_eq!(whole.hull(&whole), whole);
            let json = serde_json::to_string(&whole).unwrap();
            assert_eq!(serde_json::from_str::<Region>(&json).unwrap(), whole);
        }
        let some = region(&[0, 0], &[4, 2]);
        assert_eq!(
            serde_json::to_string(&some).unwrap(),
            r#"{"offset":[0,0],"size":[4,2]}"#
        );
        assert_eq!(
            format!("{some:?}"),
            "Region { offset: [0, 0], size: [4, 2] }"
        );
        assert!(some < region(&[0, 1], &[4, 1]));
    }

    #[test]
    fn displays_ranges() {
        assert_eq!(region(&[0, 2], &[4, 4]).to_string(), "[0..4, 2..6]");
    }
}
