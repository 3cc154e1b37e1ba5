//! Between Flex's tensors and slices.

use super::buffer::overwritten;
use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Shape, TensorData};

/// An f32 tensor whose values lie in order, so that [`values`] reads them. Copies only where they do not.
///
/// # Panics
/// Where the tensor is not f32.
pub fn in_order(tensor: FlexTensor) -> FlexTensor {
    assert_eq!(tensor.dtype(), DType::F32, "fused operations compute in f32");
    match tensor.as_slice::<f32>() {
        Some(_) => tensor,
        None => tensor.to_contiguous(),
    }
}

/// The values of a tensor that is [`in_order`].
pub fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("made contiguous")
}

/// A tensor of `values`.
pub fn tensor(values: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// The length of the last axis, and the number of rows of that length.
pub fn rows(shape: &Shape) -> (usize, usize) {
    let width = shape[shape.num_dims() - 1];
    (shape.num_elements() / width.max(1), width)
}

/// A tensor that becomes the result in place of another of its shape.
pub enum Reused {
    /// The other's own memory, where nothing else refers to it.
    InPlace(FlexTensor),
    /// Fresh memory, and where the values are to be read.
    Fresh(Vec<f32>, FlexTensor),
}

impl Reused {
    /// Takes over `tensor`.
    pub fn new(tensor: FlexTensor) -> Self {
        let mut tensor = in_order(tensor);
        let count = tensor.shape().num_elements();
        match tensor.try_storage_mut::<f32>() {
            Some(storage) if storage.len() == count => Self::InPlace(tensor),
            _ => Self::Fresh(overwritten(count), tensor),
        }
    }

    /// The memory of the result, and the old values where that memory does not hold them.
    pub fn parts(&mut self) -> (&mut [f32], Option<&[f32]>) {
        match self {
            Self::InPlace(tensor) => (tensor.storage_mut(), None),
            Self::Fresh(memory, old) => (memory, Some(values(old))),
        }
    }

    /// The result.
    pub fn into_tensor(self) -> FlexTensor {
        match self {
            Self::InPlace(tensor) => tensor,
            Self::Fresh(memory, old) => tensor(memory, old.shape()),
        }
    }
}
