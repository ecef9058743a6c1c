//! Other libraries saving and loading the same tensors.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, TensorData};
use burn_store::{BurnpackStore, ModuleSnapshot};
use safetensors::tensor::Metadata;
use tinderbox_fake::DynTensor;

use crate::model::Weights;
use crate::raw::sync_with_parent;

/// Saves with Burn's own store and makes its file durable.
pub fn save_burnpack(weights: &Weights, path: &Path) {
    let mut store = BurnpackStore::from_file(path);
    weights.save_into(&mut store).unwrap();
    sync_with_parent(path);
}

/// Loads with Burn's own store, into a model that is not materialized.
pub fn load_burnpack(mut weights: Weights, path: &Path) -> Weights {
    let mut store = BurnpackStore::from_file(path);
    let result = weights.load_from(&mut store).unwrap();
    assert!(result.is_success(), "{result:?}");
    weights
}

/// Loads with the safetensors crate, which locates the tensors; each is read by one call.
pub fn load_safetensors(files: &[PathBuf], device: &Device) -> Vec<(String, DynTensor)> {
    let mut all = Vec::new();
    for path in files {
        let mut file = File::open(path).unwrap();
        let mut header = vec![0; 8];
        file.read_exact(&mut header).unwrap();
        let json_bytes = u64::from_le_bytes(header[..].try_into().unwrap());
        header.resize(8 + json_bytes as usize, 0);
        file.read_exact(&mut header[8..]).unwrap();
        // The crate checks the size of the whole file against its tensors, unless it has only the header.
        let metadata: Metadata = serde_json::from_slice(&header[8..]).unwrap();
        // In file order, so that the file is read sequentially.
        for name in metadata.offset_keys() {
            let info = metadata.info(&name).unwrap();
            let mut bytes = vec![0; info.data_offsets.1 - info.data_offsets.0];
            file.read_exact(&mut bytes).unwrap();
            let data = TensorData::from_bytes_vec(bytes, info.shape.clone(), DType::F32);
            all.push((name, DynTensor::from_data(data, device)));
        }
    }
    all
}
