//! The end of a residual branch on the CPU.

use super::linear::column_sums;
use super::pieces::{pieces, pieces2, rows_of_part, rows_of_piece, sum_parts};
use super::tensor::{Reused, in_order, rows, tensor, values};
use super::vector::add;
use crate::ops::{ResidualOps, Skip};
use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;

impl ResidualOps for Flex {
    fn residual(x: FlexTensor, branch: FlexTensor, bias: FlexTensor, _: Skip) -> FlexTensor {
        forward(x, branch, bias, None)
    }

    fn residual_scaled(
        x: FlexTensor,
        branch: FlexTensor,
        bias: FlexTensor,
        features: FlexTensor,
        samples: FlexTensor,
        _: Skip,
    ) -> FlexTensor {
        let (features, samples) = (in_order(features), in_order(samples));
        forward(x, branch, bias, Some((values(&features), values(&samples))))
    }

    fn residual_backward(gradient: FlexTensor) -> FlexTensor {
        column_sums(gradient)
    }

    fn residual_scaled_backward(
        branch: FlexTensor,
        bias: FlexTensor,
        features: FlexTensor,
        samples: FlexTensor,
        gradient: FlexTensor,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (branch, bias) = (in_order(branch), in_order(bias));
        let (branch, bias, features) = backward(features, samples, gradient, Some((values(&branch), values(&bias))));
        (branch, bias, features)
    }

    fn residual_samples_backward(features: FlexTensor, samples: FlexTensor, gradient: FlexTensor) -> (FlexTensor, FlexTensor) {
        let (branch, bias, _) = backward(features, samples, gradient, None);
        (branch, bias)
    }
}

fn forward(x: FlexTensor, branch: FlexTensor, bias: FlexTensor, scales: Option<(&[f32], &[f32])>) -> FlexTensor {
    let (x, bias) = (in_order(x), in_order(bias));
    let (_, width) = rows(&x.shape());
    let tokens = x.shape()[1];
    let skipped = values(&x);
    let bias = &values(&bias)[..width];
    let mut branch = Reused::new(branch);
    let (out, source) = branch.parts();
    let piece = rows_of_piece(width);
    pieces(
        out,
        piece * width,
        #[inline(always)]
        |number, out| {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let row = number * piece + row;
                if let Some(source) = source {
                    out.copy_from_slice(&source[row * width..][..width]);
                }
                let x = &skipped[row * width..][..width];
                match scales {
                    Some((features, samples)) => scaled(x, bias, features, samples[row / tokens], out),
                    None => plain(x, bias, out),
                }
            }
        },
    );
    branch.into_tensor()
}

/// Gradients of the branch and the bias, and with the branch and the bias that of the features' factors.
fn backward(
    features: FlexTensor,
    samples: FlexTensor,
    gradient: FlexTensor,
    learned: Option<(&[f32], &[f32])>,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let (features, samples) = (in_order(features), in_order(samples));
    let (count, width) = rows(&gradient.shape());
    let tokens = gradient.shape()[1];
    let (features, samples) = (&values(&features)[..width], values(&samples));
    let part = rows_of_part(count, width);
    let mut parts = vec![0.0; count.div_ceil(part) * 2 * width];
    let mut gradient = Reused::new(gradient);
    let (out, source) = gradient.parts();
    pieces2(
        (out, part * width),
        (&mut parts, 2 * width),
        #[inline(always)]
        |number, out, sums| {
            let (bias_sum, features_sum) = sums.split_at_mut(width);
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let row = number * part + row;
                if let Some(source) = source {
                    out.copy_from_slice(&source[row * width..][..width]);
                }
                let sample = samples[row / tokens];
                if let Some((branch, bias)) = learned {
                    features_share(&branch[row * width..][..width], bias, sample, out, features_sum);
                }
                scale(features, sample, out);
                add(bias_sum, out);
            }
        },
    );
    let mut sums = sum_parts(&parts, 2 * width);
    let features = sums.split_off(width);
    let vector = |values| tensor(values, Shape::new([width]));
    (gradient.into_tensor(), vector(sums), vector(features))
}

// Slices that are parameters are known not to overlap, without which a loop over several does not become vectors.

/// `x + (out + bias) * features * sample`.
#[inline(always)]
fn scaled(x: &[f32], bias: &[f32], features: &[f32], sample: f32, out: &mut [f32]) {
    let width = out.len();
    let (x, bias, features) = (&x[..width], &bias[..width], &features[..width]);
    for i in 0..width {
        out[i] = (out[i] + bias[i]).mul_add(features[i] * sample, x[i]);
    }
}

/// `x + (out + bias)`.
#[inline(always)]
fn plain(x: &[f32], bias: &[f32], out: &mut [f32]) {
    let width = out.len();
    let (x, bias) = (&x[..width], &bias[..width]);
    for i in 0..width {
        out[i] = x[i] + (out[i] + bias[i]);
    }
}

/// Adds a row's share to the gradient of the features' factors.
#[inline(always)]
fn features_share(branch: &[f32], bias: &[f32], sample: f32, gradient: &[f32], sum: &mut [f32]) {
    let width = sum.len();
    let (branch, bias, gradient) = (&branch[..width], &bias[..width], &gradient[..width]);
    for i in 0..width {
        sum[i] = (gradient[i] * sample).mul_add(branch[i] + bias[i], sum[i]);
    }
}

/// `out * features * sample`.
#[inline(always)]
fn scale(features: &[f32], sample: f32, out: &mut [f32]) {
    for (out, feature) in out.iter_mut().zip(features) {
        *out *= *feature * sample;
    }
}
