//! Layer norm on the CPU.

use super::buffer::overwritten;
use super::pieces::{pieces, pieces2, rows_of_part, rows_of_piece, sum_parts};
use super::sums::{products, squares, total};
use super::tensor::{Reused, in_order, rows, tensor, values};
use super::vector::add;
use crate::ops::{LayerNormOps, Skip};
use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;

impl LayerNormOps for Flex {
    fn normalise(x: FlexTensor, gamma: FlexTensor, beta: FlexTensor, epsilon: f64, _: Skip) -> FlexTensor {
        let (x, gamma, beta) = (in_order(x), in_order(gamma), in_order(beta));
        let (_, width) = rows(&x.shape());
        let input = values(&x);
        let (gamma, beta) = (&values(&gamma)[..width], &values(&beta)[..width]);
        let mut out = overwritten(input.len());
        let piece = rows_of_piece(width) * width;
        pieces(
            &mut out,
            piece,
            #[inline(always)]
            |number, out| {
                let input = &input[number * piece..][..out.len()];
                for (out, x) in out.chunks_exact_mut(width).zip(input.chunks_exact(width)) {
                    let (mean, inverse) = moments(x, epsilon);
                    affine(x, mean, inverse, gamma, beta, out);
                }
            },
        );
        tensor(out, x.shape())
    }

    fn normalise_backward(
        x: FlexTensor,
        gamma: FlexTensor,
        gradient: FlexTensor,
        epsilon: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        backward(x, gamma, gradient, None, epsilon)
    }

    fn normalise_backward_add(
        x: FlexTensor,
        gamma: FlexTensor,
        gradient: FlexTensor,
        past: FlexTensor,
        epsilon: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        backward(x, gamma, gradient, Some(past), epsilon)
    }
}

fn backward(
    x: FlexTensor,
    gamma: FlexTensor,
    gradient: FlexTensor,
    past: Option<FlexTensor>,
    epsilon: f64,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let (x, gamma, past) = (in_order(x), in_order(gamma), past.map(in_order));
    let (count, width) = rows(&x.shape());
    let input = values(&x);
    let past = past.as_ref().map(values);
    let gamma = &values(&gamma)[..width];
    let part = rows_of_part(count, width);
    let mut parts = vec![0.0; count.div_ceil(part) * 2 * width];
    let mut gradient = Reused::new(gradient);
    let (out, source) = gradient.parts();
    pieces2(
        (out, part * width),
        (&mut parts, 2 * width),
        #[inline(always)]
        |number, out, sums| {
            let from = number * part * width;
            let (gamma_sum, beta_sum) = sums.split_at_mut(width);
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let from = from + row * width;
                if let Some(source) = source {
                    out.copy_from_slice(&source[from..][..width]);
                }
                row_backward(&input[from..][..width], gamma, out, gamma_sum, beta_sum, epsilon);
                if let Some(past) = past {
                    add(out, &past[from..][..width]);
                }
            }
        },
    );
    let mut sums = sum_parts(&parts, 2 * width);
    let beta = sums.split_off(width);
    let vector = |values| tensor(values, Shape::new([width]));
    (gradient.into_tensor(), vector(sums), vector(beta))
}

/// Mean and reciprocal deviation of a row.
#[inline(always)]
fn moments(x: &[f32], epsilon: f64) -> (f32, f32) {
    let scale = 1.0 / x.len() as f32;
    let mean = total(x) * scale;
    let variance = squares(x, mean) * scale;
    (mean, 1.0 / (variance + epsilon as f32).sqrt())
}

/// The gradient of a row of the result, `out`, becomes that of the row of the input; the sums grow by the row's share.
#[inline(always)]
fn row_backward(x: &[f32], gamma: &[f32], out: &mut [f32], gamma_sum: &mut [f32], beta_sum: &mut [f32], epsilon: f64) {
    let width = x.len();
    let out = &mut out[..width];
    let (mean, inverse) = moments(x, epsilon);
    share(x, mean, inverse, gamma, out, gamma_sum, beta_sum);
    let scale = 1.0 / width as f32;
    let shift = total(out) * scale;
    let slope = products(out, x, mean) * inverse * scale;
    finish(x, mean, inverse, shift, slope, out);
}

// Slices that are parameters are known not to overlap, without which a loop over several does not become vectors.

/// `(x - mean) * inverse * gamma + beta`.
#[inline(always)]
fn affine(x: &[f32], mean: f32, inverse: f32, gamma: &[f32], beta: &[f32], out: &mut [f32]) {
    let width = out.len();
    let (x, gamma, beta) = (&x[..width], &gamma[..width], &beta[..width]);
    for i in 0..width {
        out[i] = ((x[i] - mean) * inverse).mul_add(gamma[i], beta[i]);
    }
}

/// Adds a row's share to the sums of gamma and beta, and multiplies its gradient by gamma.
#[inline(always)]
fn share(x: &[f32], mean: f32, inverse: f32, gamma: &[f32], out: &mut [f32], gamma_sum: &mut [f32], beta_sum: &mut [f32]) {
    let width = out.len();
    let (x, gamma) = (&x[..width], &gamma[..width]);
    let (gamma_sum, beta_sum) = (&mut gamma_sum[..width], &mut beta_sum[..width]);
    for i in 0..width {
        let slope = out[i];
        beta_sum[i] += slope;
        gamma_sum[i] = slope.mul_add((x[i] - mean) * inverse, gamma_sum[i]);
        out[i] = slope * gamma[i];
    }
}

/// Takes from a row's gradient what moves mean and deviation.
#[inline(always)]
fn finish(x: &[f32], mean: f32, inverse: f32, shift: f32, slope: f32, out: &mut [f32]) {
    let width = out.len();
    let x = &x[..width];
    for i in 0..width {
        out[i] = inverse * (out[i] - shift - (x[i] - mean) * inverse * slope);
    }
}
