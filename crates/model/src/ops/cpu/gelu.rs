//! Bias and GELU on the CPU.

use super::buffer::overwritten;
use super::math::normal;
use super::pieces::{pieces, pieces2, rows_of_part, rows_of_piece, sum_parts};
use super::tensor::{Reused, in_order, rows, tensor, values};
use crate::ops::GeluOps;
use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;

/// `1 / √(2π)`.
const DENSITY: f32 = 0.398_942_3;

impl GeluOps for Flex {
    fn bias_gelu(x: FlexTensor, bias: FlexTensor) -> FlexTensor {
        let (x, bias) = (in_order(x), in_order(bias));
        let (_, width) = rows(&x.shape());
        let input = values(&x);
        let bias = &values(&bias)[..width];
        let mut out = overwritten(input.len());
        let piece = rows_of_piece(width) * width;
        pieces(
            &mut out,
            piece,
            #[inline(always)]
            |number, out| {
                let input = &input[number * piece..][..out.len()];
                for (out, x) in out.chunks_exact_mut(width).zip(input.chunks_exact(width)) {
                    row(x, bias, out);
                }
            },
        );
        tensor(out, x.shape())
    }

    fn bias_gelu_backward(x: FlexTensor, bias: FlexTensor, gradient: FlexTensor) -> (FlexTensor, FlexTensor) {
        let (x, bias) = (in_order(x), in_order(bias));
        let (count, width) = rows(&x.shape());
        let input = values(&x);
        let bias = &values(&bias)[..width];
        let part = rows_of_part(count, width);
        let mut parts = vec![0.0; count.div_ceil(part) * width];
        let mut gradient = Reused::new(gradient);
        let (out, source) = gradient.parts();
        pieces2(
            (out, part * width),
            (&mut parts, width),
            #[inline(always)]
            |number, out, sum| {
                let from = number * part * width;
                for (row, out) in out.chunks_exact_mut(width).enumerate() {
                    let from = from + row * width;
                    if let Some(source) = source {
                        out.copy_from_slice(&source[from..][..width]);
                    }
                    row_backward(&input[from..][..width], bias, out, sum);
                }
            },
        );
        (gradient.into_tensor(), tensor(sum_parts(&parts, width), Shape::new([width])))
    }
}

// Rows are functions of their own: slices that are parameters are known not to overlap, without which loops do not become vectors.

#[inline(always)]
fn row(x: &[f32], bias: &[f32], out: &mut [f32]) {
    let width = out.len();
    let (x, bias) = (&x[..width], &bias[..width]);
    for i in 0..width {
        let u = x[i] + bias[i];
        out[i] = u * normal(u).0;
    }
}

/// The gradient of a row of the result, `out`, becomes that of the row of the input; the sum grows by it.
#[inline(always)]
fn row_backward(x: &[f32], bias: &[f32], out: &mut [f32], sum: &mut [f32]) {
    let width = out.len();
    let (x, bias, sum) = (&x[..width], &bias[..width], &mut sum[..width]);
    for i in 0..width {
        let u = x[i] + bias[i];
        let (below, density) = normal(u);
        let slope = out[i] * (u * DENSITY).mul_add(density, below);
        out[i] = slope;
        sum[i] += slope;
    }
}
