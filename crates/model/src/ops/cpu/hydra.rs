//! Hydra attention on the CPU.

use super::buffer::overwritten;
use super::math::{exp, max, sigmoid, tanh};
use super::pieces::pieces;
use super::sums::{products, squares, total};
use super::tensor::{in_order, tensor, values};
use super::vector::{add, add_product, multiply, product};
use crate::attention::kernel::Kernel;
use crate::attention::kernel::NORM_EPSILON;
use crate::ops::HydraOps;
use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;

/// Tokens that a thread takes at a time, and that share a partial sum.
const TOKENS: usize = 32;

impl HydraOps for Flex {
    fn hydra(qkv: FlexTensor, kernel: Kernel) -> FlexTensor {
        let qkv = in_order(qkv);
        let shape = Packed::of(&qkv);
        let input = values(&qkv);
        let summary = shape.sums(
            1,
            #[inline(always)]
            |row, [work, _], sums| {
                let (_, k, v) = shape.thirds(input, row);
                phi(kernel, k, work);
                add_product(sums, work, v);
            },
        );
        let Packed { batch, tokens, width } = shape;
        let mut out = overwritten(batch * tokens * width);
        shape.each_row(
            &mut out,
            width,
            #[inline(always)]
            |row, out, _| {
                let (q, ..) = shape.thirds(input, row);
                let summary = &summary[row / tokens * width..][..width];
                phi(kernel, q, out);
                multiply(out, summary);
            },
        );
        tensor(out, Shape::new([batch, tokens, width]))
    }

    fn hydra_backward(qkv: FlexTensor, gradient: FlexTensor, kernel: Kernel) -> FlexTensor {
        let (qkv, gradient) = (in_order(qkv), in_order(gradient));
        let shape = Packed::of(&qkv);
        let Packed { batch, tokens, width } = shape;
        let (input, gradient) = (values(&qkv), values(&gradient));
        // Of each image the summary, and the gradient of the summary.
        let sums = shape.sums(
            2,
            #[inline(always)]
            |row, [query, key], sums| {
                let (q, k, v) = shape.thirds(input, row);
                let g = &gradient[row * width..][..width];
                phi(kernel, q, query);
                phi(kernel, k, key);
                let (summary, summary_gradient) = sums.split_at_mut(width);
                add_product(summary, key, v);
                add_product(summary_gradient, query, g);
            },
        );
        let mut out = overwritten(input.len());
        shape.each_row(
            &mut out,
            3 * width,
            #[inline(always)]
            |row, out, [work, slope]| {
                let (q, k, v) = shape.thirds(input, row);
                let g = &gradient[row * width..][..width];
                let (summary, summary_gradient) = sums[row / tokens * 2 * width..][..2 * width].split_at(width);
                let (dq, rest) = out.split_at_mut(width);
                let (dk, dv) = rest.split_at_mut(width);
                product(slope, g, summary);
                phi_backward(kernel, q, work, slope, dq);
                product(slope, v, summary_gradient);
                phi_backward(kernel, k, work, slope, dk);
                product(dv, work, summary_gradient);
            },
        );
        tensor(out, Shape::new([batch, tokens, 3 * width]))
    }
}

/// The sides of packed queries, keys and values.
#[derive(Clone, Copy)]
struct Packed {
    batch: usize,
    tokens: usize,
    width: usize,
}

impl Packed {
    fn of(qkv: &FlexTensor) -> Self {
        let [batch, tokens, tripled] = qkv.shape().dims();
        assert_eq!(tripled % 3, 0, "queries, keys and values of one width");
        Self { batch, tokens, width: tripled / 3 }
    }

    /// Query, key and value of a token, counted over all images.
    #[inline(always)]
    fn thirds(self, qkv: &[f32], row: usize) -> (&[f32], &[f32], &[f32]) {
        let row = &qkv[row * 3 * self.width..][..3 * self.width];
        let (q, rest) = row.split_at(self.width);
        let (k, v) = rest.split_at(self.width);
        (q, k, v)
    }

    /// Sums over the tokens of each image, `parts * width` numbers an image: `share` adds the share of a token, with two rows to work in.
    #[inline(always)]
    fn sums(self, parts: usize, share: impl Fn(usize, [&mut [f32]; 2], &mut [f32]) + Sync) -> Vec<f32> {
        let Self { batch, tokens, width } = self;
        let size = parts * width;
        let groups = tokens.div_ceil(TOKENS);
        let mut partial = vec![0.0; batch * groups * size];
        pieces(
            &mut partial,
            size,
            #[inline(always)]
            |number, sums| {
                let (image, group) = (number / groups, number % groups);
                let mut work = vec![0.0; 2 * width];
                let (first, second) = work.split_at_mut(width);
                for token in group * TOKENS..((group + 1) * TOKENS).min(tokens) {
                    share(image * tokens + token, [&mut *first, &mut *second], sums);
                }
            },
        );
        if groups == 1 {
            return partial;
        }
        let mut sums = vec![0.0; batch * size];
        pieces(
            &mut sums,
            size,
            #[inline(always)]
            |image, sums| {
                for partial in partial[image * groups * size..][..groups * size].chunks_exact(size) {
                    add(sums, partial);
                }
            },
        );
        sums
    }

    /// Works on each row of `out`, `size` numbers for each token, with two rows to work in.
    #[inline(always)]
    fn each_row(self, out: &mut [f32], size: usize, work: impl Fn(usize, &mut [f32], [&mut [f32]; 2]) + Sync) {
        let width = self.width;
        pieces(
            out,
            TOKENS * size,
            #[inline(always)]
            |number, out| {
                let mut rows = vec![0.0; 2 * width];
                let (first, second) = rows.split_at_mut(width);
                for (row, out) in out.chunks_exact_mut(size).enumerate() {
                    work(number * TOKENS + row, out, [&mut *first, &mut *second]);
                }
            },
        );
    }
}

/// phi of a token.
#[inline(always)]
pub fn phi(kernel: Kernel, x: &[f32], out: &mut [f32]) {
    let out = &mut out[..x.len()];
    #[inline(always)]
    fn map(x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = f(*x);
        }
    }
    match kernel {
        Kernel::Cosine => {
            let inverse = inverse_norm(x);
            map(x, out, |x| x * inverse);
        }
        Kernel::Mean => {
            let scale = mean_scale(x);
            map(x, out, |x| x * scale);
        }
        Kernel::Tanh => map(x, out, tanh),
        Kernel::Sigmoid => map(x, out, sigmoid),
        Kernel::Relu => map(x, out, above),
        Kernel::Softmax => {
            let greatest = max(x);
            map(x, out, |x| exp(x - greatest));
            let inverse = 1.0 / total(out);
            out.iter_mut().for_each(|value| *value *= inverse);
        }
        Kernel::Elu1 => map(x, out, |x| above(x) + exp(-above(-x))),
        Kernel::Identity => out.copy_from_slice(x),
    }
}

/// phi of a token into `y`, and the gradient of the token from that of phi, `slope`.
#[inline(always)]
pub fn phi_backward(kernel: Kernel, x: &[f32], y: &mut [f32], slope: &[f32], out: &mut [f32]) {
    let width = x.len();
    let (y, slope, out) = (&mut y[..width], &slope[..width], &mut out[..width]);
    phi(kernel, x, y);
    match kernel {
        Kernel::Cosine => {
            let inverse = inverse_norm(x);
            let along = products(y, slope, 0.0);
            for i in 0..width {
                out[i] = inverse * (slope[i] - y[i] * along);
            }
        }
        Kernel::Mean => {
            let scale = mean_scale(x);
            for i in 0..width {
                out[i] = slope[i] * scale;
            }
        }
        Kernel::Tanh => {
            for i in 0..width {
                out[i] = slope[i] * (1.0 - y[i] * y[i]);
            }
        }
        Kernel::Sigmoid => {
            for i in 0..width {
                out[i] = slope[i] * (y[i] * (1.0 - y[i]));
            }
        }
        Kernel::Relu => {
            for i in 0..width {
                out[i] = if x[i] > 0.0 { slope[i] } else { 0.0 };
            }
        }
        Kernel::Softmax => {
            let along = products(y, slope, 0.0);
            for i in 0..width {
                out[i] = y[i] * (slope[i] - along);
            }
        }
        Kernel::Elu1 => {
            for i in 0..width {
                out[i] = if x[i] > 0.0 { slope[i] } else { slope[i] * y[i] };
            }
        }
        Kernel::Identity => out.copy_from_slice(slope),
    }
}

/// What of `x` is above zero; NaN stays, so that a broken number is not hidden.
#[inline(always)]
fn above(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
fn inverse_norm(x: &[f32]) -> f32 {
    1.0 / (squares(x, 0.0) + NORM_EPSILON as f32).sqrt()
}

#[inline(always)]
fn mean_scale(x: &[f32]) -> f32 {
    (x.len() as f64).sqrt().recip() as f32
}
