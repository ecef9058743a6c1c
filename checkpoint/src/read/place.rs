//! Transfer of values to their devices, overlapped with reading.

use std::sync::mpsc::sync_channel;
use std::thread;

use burn::tensor::{Device, TensorData};
use tinderbox_fake::{DynTensor, is_host};

use super::load::{Load, load};
use super::plan::Wanted;
use crate::{LoadError, layout};

/// Size of a group of values that is read before it is copied to a device other than the host: large enough to keep all threads
/// reading, small compared with the memory of a stage. A group ends with the value that reaches the limit, so it may exceed the
/// limit by one value. One group is being read, one waits, and one is duplicated while it is moved to memory that the device
/// copies from; Burn keeps up to two more groups until they are copied.
const GROUP_BYTES: u64 = 64 << 20;

/// Loads the wanted values, in order, and passes each with its position to `place`, which moves it to its device.
///
/// On the CPU, a value is read directly into its final memory. For another device, groups of values are read, moved to memory
/// that the device can copy from directly (pinned, for CUDA), and queued while the next group is read.
pub(super) fn load_to(
    loading: Load<'_>,
    wanted: &[Wanted<'_>],
    devices: &[&Device],
    mut place: impl FnMut(usize, TensorData) -> Result<DynTensor, LoadError>,
) -> Result<Vec<DynTensor>, LoadError> {
    let groups = groups(wanted, devices, |device| match is_host(device) {
        true => u64::MAX,
        false => GROUP_BYTES,
    });
    let mut values = Vec::with_capacity(wanted.len());
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Result<Vec<TensorData>, LoadError>>(1);
        let is_alone = groups.len() == 1;
        let read = move || {
            for group in groups {
                let read = load(loading, group);
                let failed = read.is_err();
                if sender.send(read).is_err() || failed {
                    break;
                }
            }
        };
        match is_alone {
            // No copies overlap with reading, so the values are read on this thread.
            true => read(),
            false => drop(scope.spawn(read)),
        }
        for read in receiver {
            let mut group = read?;
            if let Some(device) = devices.get(values.len()) {
                // Reading into pinned memory would save this copy on the host. CUDA also pads the rows that it copies to the
                // device, so short odd rows need up to twice the bytes that were counted.
                device.staging(group.iter_mut());
            }
            for data in group {
                values.push(place(values.len(), data)?);
            }
        }
        Ok(values)
    })
}

/// Groups consecutive values for the same device, each until it reaches the device's group size.
fn groups<'w, 'a>(
    wanted: &'w [Wanted<'a>],
    devices: &[&Device],
    most: impl Fn(&Device) -> u64,
) -> Vec<&'w [Wanted<'a>]> {
    layout::groups(wanted, Wanted::bytes, |held, first, at| {
        devices[at] != devices[first] || held >= most(devices[at])
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;
    use tinderbox_fake::Region;

    use super::*;
    use crate::{Role, StoredDType, TensorEntry};

    #[test]
    fn groups_are_neighbours_of_one_device() {
        let tensor = TensorEntry {
            name: "weight".into(),
            role: Role::Model,
            dtype: StoredDType::F32,
            shape: vec![4],
            chunks: Vec::new(),
            tied: Vec::new(),
        };
        let wanted = vec![
            Wanted {
                tensor: &tensor,
                region: Region::of_shape(&[4]),
                dtype: DType::F32,
                transposed: false,
            };
            7
        ];
        let (one, other) = (Device::flex(), Device::capture());
        let devices = [&one, &one, &one, &one, &one, &other, &one];
        let sizes = |most| {
            let groups = groups(&wanted, &devices, |_| most);
            groups.into_iter().map(<[_]>::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(u64::MAX), [5, 1, 1]);
        // Each value has 16 bytes; a group ends with the value that reaches the limit.
        assert_eq!(sizes(17), [2, 2, 1, 1, 1]);
        assert_eq!(sizes(1), [1; 7]);
        assert!(groups(&[], &[], |_| 1)[0].is_empty());
    }
}
