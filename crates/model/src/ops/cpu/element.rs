//! The float types that the operations read and write; all of them compute in f32.

use burn::backend::flex::FlexTensor;
use burn::tensor::{self, Shape, TensorData, bf16, f16};

/// A float type of tensors.
pub(crate) trait Element: tensor::Element + bytemuck::Pod + Default {
    /// The value as f32, exact.
    fn widen(self) -> f32;
    /// The nearest value of this type.
    fn narrow(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        // The upper half of an f32: the library's conversion tests for NaN first, which keeps the loop from being vectorised.
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        f16::from_f32(value)
    }
}

/// A tensor of `E` whose values lie in order, so that [`values`] reads them. Copies only where they do not.
///
/// # Panics
/// Where the tensor is of another type.
pub(crate) fn in_order<E: Element>(tensor: FlexTensor) -> FlexTensor {
    assert_eq!(tensor.dtype(), E::dtype(), "operands of one float type");
    match tensor.as_slice::<E>() {
        Some(_) => tensor,
        None => tensor.to_contiguous(),
    }
}

/// The values of a tensor that is [`in_order`].
pub(crate) fn values<E: Element>(tensor: &FlexTensor) -> &[E] {
    tensor.as_slice().expect("made contiguous")
}

/// A tensor of `values`.
pub(crate) fn tensor<E: Element>(values: Vec<E>, shape: Shape) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}
