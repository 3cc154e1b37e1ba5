//! The patch embedding: a convolution whose stride is its kernel size.

use crate::ops::{self, Compute, Fusible};
use crate::pixels::Pixels;
use crate::precision::{Operation, affine};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

/// Cuts an image into patches and projects each to a token.
///
/// Dosovitskiy et al., An Image is Worth 16x16 Words, 2020 (arXiv 2010.11929), section 3.1.
#[derive(Module, Debug)]
pub struct PatchEmbedding {
    /// The projection of one patch.
    pub proj: PatchProjection,
}

/// The weights of the convolution, in the shapes that timm and PyTorch store.
#[derive(Module, Debug)]
pub struct PatchProjection {
    /// `[width, channels, patch, patch]`.
    pub weight: Param<Tensor<4>>,
    /// `[width]`, where the model has it.
    pub bias: Option<Param<Tensor<1>>>,
}

impl PatchEmbedding {
    /// Tokens of the patches, row by row.
    ///
    /// Shapes: images `[batch, channels, height, width]` with sides that are multiples of the patch, or their patches `[batch, patches,
    /// channels * patch * patch]`; result `[batch, patches, model width]` in f32.
    ///
    /// Patches do not overlap, so the convolution is one matrix product over pixels that are only moved; on every backend its backward
    /// pass is faster than that of a general convolution.
    ///
    /// # Panics
    /// Where the images have other channels than the weights, or sides that the patch does not divide, or patches another size.
    pub fn forward(&self, pixels: impl Into<Pixels>, compute: Compute) -> Tensor<3> {
        let [model_width, weight_channels, patch, _] = self.proj.weight.dims();
        let values = weight_channels * patch * patch;
        let patches = match pixels.into() {
            Pixels::Images(images) => {
                let [_, channels, height, width] = images.dims();
                assert!(
                    channels == weight_channels && height % patch == 0 && width % patch == 0,
                    "images of [{channels}, {height}, {width}] do not fit a patch embedding of {weight_channels} channels and patch {patch}"
                );
                let images = Operation::WeightProducts.operand(images, compute.float);
                match compute.fuses(Fusible::Patches) {
                    true => ops::patches(images, patch),
                    false => ops::patches_plain(images, patch),
                }
            }
            Pixels::Patches(patches) => {
                let [_, _, there] = patches.dims();
                assert_eq!(
                    there, values,
                    "patches of {there} values do not fit a patch embedding of {weight_channels} channels and patch {patch}"
                );
                Operation::WeightProducts.operand(patches, compute.float)
            }
        };
        let weight = self.proj.weight.val().reshape([model_width, values]).transpose();
        affine(patches, weight, self.proj.bias.as_ref().map(|bias| bias.val()), compute)
    }
}
