//! Patches on the CPU.

use super::buffer::overwritten;
use super::pieces::pieces;
use super::tensor::{in_order, tensor, values};
use crate::ops::PatchOps;
use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;

impl PatchOps for Flex {
    fn patches(images: FlexTensor, patch: usize) -> FlexTensor {
        let images = in_order(images);
        let [batch, channels, height, width] = images.shape().dims();
        let (rows, columns) = (height / patch, width / patch);
        let pixels = channels * patch * patch;
        let input = values(&images);
        let mut out = overwritten(batch * rows * columns * pixels);
        // A row of patches at a time.
        pieces(&mut out, columns * pixels, |number, out| {
            let (image, row) = (number / rows, number % rows);
            for (column, out) in out.chunks_exact_mut(pixels).enumerate() {
                for (line, out) in out.chunks_exact_mut(patch).enumerate() {
                    let (channel, y) = (line / patch, line % patch);
                    let from = ((image * channels + channel) * height + row * patch + y) * width + column * patch;
                    out.copy_from_slice(&input[from..][..patch]);
                }
            }
        });
        tensor(out, Shape::new([batch, rows * columns, pixels]))
    }

    fn patches_backward(gradient: FlexTensor, shape: [usize; 4], patch: usize) -> FlexTensor {
        let gradient = in_order(gradient);
        let [batch, channels, height, width] = shape;
        let (rows, columns) = (height / patch, width / patch);
        let pixels = channels * patch * patch;
        let input = values(&gradient);
        let mut out = overwritten(batch * channels * height * width);
        // A line of pixels at a time.
        pieces(&mut out, width, |number, out| {
            let (image, rest) = (number / (channels * height), number % (channels * height));
            let (channel, line) = (rest / height, rest % height);
            for (column, out) in out.chunks_exact_mut(patch).enumerate() {
                let at = (image * rows + line / patch) * columns + column;
                let from = at * pixels + (channel * patch + line % patch) * patch;
                out.copy_from_slice(&input[from..][..patch]);
            }
        });
        tensor(out, Shape::new(shape))
    }
}
