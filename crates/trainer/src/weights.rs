//! Weights between files and models.

use std::collections::HashMap;
use std::path::Path;

use manyheads_model::weights::WeightsError;
use manyheads_model::weights::timm::{NamedTensor, import};
use manyheads_model::{Architecture, VisionTransformer};

use crate::checkpoint::read_tensors;
use crate::error::{Error, Result};

/// Puts `tensors` (timm's names) into `model`; all of them, and nothing else, must be its parameters.
///
/// # Errors
/// Every missing, misshapen and unknown tensor at once.
pub fn into_model(
    model: VisionTransformer,
    tensors: &mut HashMap<String, NamedTensor>,
) -> std::result::Result<VisionTransformer, WeightsError> {
    let mut names: Vec<String> = tensors.keys().cloned().collect();
    names.sort();
    import(model, &names, |name| tensors.remove(name))
}

/// Reads a safetensors file with timm's names into a model of `architecture` on `device`.
///
/// # Errors
/// Where the file cannot be read or its tensors are not the model's.
pub fn load(path: &Path, architecture: &Architecture, device: &burn::tensor::Device) -> Result<VisionTransformer> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, &e))?;
    let mut tensors = read_tensors(&bytes, path)?;
    drop(bytes);
    place(&mut tensors, architecture, device).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))
}

/// A model of `architecture` on `device` with the given weights.
///
/// # Errors
/// As [`into_model`].
pub fn place(
    tensors: &mut HashMap<String, NamedTensor>,
    architecture: &Architecture,
    device: &burn::tensor::Device,
) -> std::result::Result<VisionTransformer, WeightsError> {
    // Every value is replaced, so which generator draws them first does not matter.
    let mut rng = manyheads_data::stream(0, manyheads_data::Purpose::Init, 0, 0);
    into_model(architecture.init(&mut rng, device), tensors)
}
