//! What a network is shown.

use burn::tensor::{FloatDType, Tensor};

/// Normalised pixels, in the float type that the network's products are to have.
#[derive(Debug, Clone)]
pub enum Pixels {
    /// `[batch, channels, height, width]`.
    Images(Tensor<4>),
    /// Cut into the network's patches already, as [`ops::patches`](crate::ops::patches) cuts them: `[batch, patches, channels * patch * patch]`.
    Patches(Tensor<3>),
}

impl Pixels {
    /// How many images there are.
    pub fn batch(&self) -> usize {
        match self {
            Self::Images(images) => images.dims()[0],
            Self::Patches(patches) => patches.dims()[0],
        }
    }

    /// The float type.
    pub fn float(&self) -> FloatDType {
        match self {
            Self::Images(images) => images.dtype().into(),
            Self::Patches(patches) => patches.dtype().into(),
        }
    }

    /// The same for a network with autodiff.
    pub fn from_inner(self) -> Self {
        match self {
            Self::Images(images) => Self::Images(Tensor::from_inner(images)),
            Self::Patches(patches) => Self::Patches(Tensor::from_inner(patches)),
        }
    }
}

impl From<Tensor<4>> for Pixels {
    fn from(images: Tensor<4>) -> Self {
        Self::Images(images)
    }
}
