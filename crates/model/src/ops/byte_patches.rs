//! The bytes of images as normalised patches: what lies between a loader and the embedding, where nothing is mixed or erased.

use super::{first_order, patches_plain};
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
#[cfg(feature = "gpu")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::{FloatDType, Int, Tensor};

/// Images as bytes, four to a word: WGSL knows no bytes.
#[derive(Debug, Clone)]
pub struct ByteImages {
    /// `[ceil(batch * channels * height * width / 4)]`, 32 bits each, the first byte lowest.
    pub words: Tensor<1, Int>,
    /// `[batch, channels, height, width]`.
    pub shape: [usize; 4],
    /// `[2, channels]` in f32: what is taken from a byte's share of 255, and what the difference is divided by.
    pub normalisation: Tensor<2>,
}

impl ByteImages {
    /// `(value / 255 - mean) / deviation`, `[batch, channels, height, width]` in f32.
    pub fn normalised(self) -> Tensor<4> {
        let [_, channels, ..] = self.shape;
        let of_channels = |row: usize| self.normalisation.clone().narrow(0, row, 1).reshape([1, channels, 1, 1]);
        let (mean, deviation) = (of_channels(0), of_channels(1));
        let [words] = self.words.dims();
        let shifts = Tensor::<1, Int>::from_data([0, 8, 16, 24], &self.words.device()).reshape([1, 4]).expand([words, 4]);
        let bytes = self.words.reshape([words, 1]).expand([words, 4]).bitwise_right_shift(shifts).bitwise_and_scalar(255);
        let bytes = bytes.reshape([words * 4]).narrow(0, 0, self.shape.iter().product()).reshape(self.shape);
        (bytes.float() / 255.0 - mean) / deviation
    }
}

/// The normalised pixels of each patch in a row, patches row by row, in the float type `float`: `[batch, patches, channels * patch * patch]`.
///
/// Without autodiff.
///
/// # Panics
/// Where `patch` does not divide the sides of the images.
pub fn byte_patches(images: ByteImages, patch: usize, float: FloatDType) -> Tensor<3> {
    let ByteImages { words, shape, normalisation } = images;
    let [_, _, height, width] = shape;
    assert!(height % patch == 0 && width % patch == 0, "images of {height} x {width} do not fit patches of {patch}");
    let cut = Cut { shape, patch, float };
    Tensor::from_dispatch(<Dispatch as BytePatchOps>::byte_patches(words.into_dispatch(), normalisation.into_dispatch(), cut))
}

/// [`byte_patches`] composed of Burn's operations.
pub fn byte_patches_plain(images: ByteImages, patch: usize, float: FloatDType) -> Tensor<3> {
    patches_plain(images.normalised().cast(float), patch)
}

/// What is cut, and into what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    /// `[batch, channels, height, width]`.
    pub shape: [usize; 4],
    /// Side of a patch.
    pub patch: usize,
    /// Float type of the result.
    pub float: FloatDType,
}

impl Cut {
    /// `[batch, patches, channels * patch * patch]`.
    pub fn result(self) -> [usize; 3] {
        let [batch, channels, height, width] = self.shape;
        [batch, (height / self.patch) * (width / self.patch), channels * self.patch * self.patch]
    }
}

/// A backend that takes bytes. The CPU has none: there the loader normalises.
#[backend_extension(Cube: cfg(feature = "gpu"), Autodiff, Fusion: cfg(feature = "gpu"))]
pub trait BytePatchOps: Backend {
    /// See [`byte_patches`](fn@byte_patches).
    #[fusion(meta = result)]
    fn byte_patches(words: IntTensor<Self>, normalisation: FloatTensor<Self>, cut: Cut) -> FloatTensor<Self>;
}

/// The shape and type of the result.
#[cfg(feature = "gpu")]
fn result(_: &TensorSpec, _: &TensorSpec, cut: &Cut) -> TensorSpec {
    TensorSpec::new(cut.result().into(), cut.float.into())
}

impl<B: BytePatchOps, C: CheckpointStrategy> BytePatchOps for Autodiff<B, C> {
    fn byte_patches(_: IntTensor<Self>, _: FloatTensor<Self>, _: Cut) -> FloatTensor<Self> {
        first_order("the pixels of an image")
    }
}
