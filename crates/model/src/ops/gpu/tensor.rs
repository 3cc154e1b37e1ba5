//! Tensors as kernels take them.

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{AddressType, ElemType, FloatKind};
use cubecl::prelude::*;

/// Values that a unit reads at a time, where the width allows.
const VECTOR: usize = 4;

/// Workgroups along the first axis of a grid: fewer than every device allows.
const GRID: usize = 1 << 15;

/// `tensor` row by row in memory.
pub fn in_order(tensor: CubeTensor) -> CubeTensor {
    into_contiguous(tensor)
}

/// A tensor beside `like`, without values yet.
pub fn empty<const D: usize>(like: &CubeTensor, shape: [usize; D], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::from(shape), dtype)
}

/// A tensor beside `like` of its shape and type, without values yet.
pub fn empty_like(like: &CubeTensor) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), like.shape(), like.dtype)
}

/// The float type of `tensor`, as kernels name it.
pub fn element(tensor: &CubeTensor) -> ElemType {
    ElemType::Float(match tensor.dtype {
        DType::F64 => FloatKind::F64,
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        _ => FloatKind::F32,
    })
}

/// How wide the vectors of rows of `width` values are.
pub fn vector(width: usize) -> usize {
    if width.is_multiple_of(VECTOR) { VECTOR } else { 1 }
}

/// What indices into `tensors` are counted in.
pub fn address<const N: usize>(tensors: [&CubeTensor; N]) -> AddressType {
    tensors.into_iter().map(CubeTensor::required_address_type).max().unwrap_or_default()
}

/// A grid of at least `count` workgroups, which number themselves by `CUBE_POS`.
pub fn grid(count: usize) -> CubeCount {
    let rows = count.div_ceil(GRID);
    CubeCount::Static(count.div_ceil(rows.max(1)) as u32, rows as u32, 1)
}

/// Rows of `tensor` and their width: the last axis, and all others as one.
pub fn rows(tensor: &CubeTensor) -> (usize, usize) {
    let shape = tensor.shape();
    let width = shape[shape.num_dims() - 1];
    (shape.num_elements() / width.max(1), width)
}
