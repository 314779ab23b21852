//! Named matrices in safetensors files.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};
use tiebreak_data::Error;

/// Metadata of a safetensors file.
pub type Metadata = HashMap<String, String>;

/// Bytes of a safetensors file with single-precision matrices by name; the same tensors give the same bytes. `metadata` is one
/// entry only, for the format's writer puts several into an order that changes from call to call.
pub fn to_bytes<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor<2>)>,
    metadata: (&str, String),
) -> Result<Vec<u8>, Error> {
    let data: Vec<(&str, Vec<usize>, Vec<u8>)> = tensors
        .map(|(name, tensor)| {
            let data = tensor.to_data().convert_dtype(DType::F32);
            (name, tensor.dims().to_vec(), data.as_bytes().to_vec())
        })
        .collect();
    let views = data.iter().map(|(name, shape, bytes)| {
        TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (*name, view)).map_err(|e| e.to_string())
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(|e| Error::Failed(format!("safetensors: {e}")))?;
    let metadata = HashMap::from([(metadata.0.to_owned(), metadata.1)]);
    safetensors::serialize(views, Some(metadata)).map_err(|e| Error::Failed(format!("safetensors: {e}")))
}

/// Reads every matrix of a checkpoint's file; anything that is not a finite-sized f32 matrix is refused.
pub fn read(path: &Path, device: &Device) -> Result<BTreeMap<String, Tensor<2>>, Error> {
    let name = path.display();
    let bytes = std::fs::read(path).map_err(|e| Error::Failed(format!("{name}: cannot be read: {e}")))?;
    let (tensors, _) = from_bytes(&bytes, device).map_err(|e| Error::Failed(format!("{name}: {e}")))?;
    Ok(tensors)
}

/// Matrices by name, and the metadata, of a safetensors file's bytes; the error is a clause.
pub fn from_bytes(bytes: &[u8], device: &Device) -> Result<(BTreeMap<String, Tensor<2>>, Metadata), String> {
    let broken = |e: SafeTensorError| format!("not a whole safetensors file ({e})");
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(broken)?;
    let file = SafeTensors::deserialize(bytes).map_err(broken)?;
    let tensors = file
        .iter()
        .map(|(key, view)| {
            let [rows, columns] = view.shape() else {
                return Err(format!("{key} has shape {:?}, expected two dimensions", view.shape()));
            };
            if view.dtype() != Dtype::F32 {
                return Err(format!("{key} holds {:?}, expected F32", view.dtype()));
            }
            let values: Vec<f32> =
                view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            Ok((key.to_owned(), Tensor::from_data(TensorData::new(values, [*rows, *columns]), device)))
        })
        .collect::<Result<_, _>>()?;
    Ok((tensors, header.metadata().clone().unwrap_or_default()))
}
