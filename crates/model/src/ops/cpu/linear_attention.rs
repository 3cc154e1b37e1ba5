//! Multi-head linear attention on the CPU: phi over whole tokens, then per head the products of small matrices in tiles.

use super::element::{in_order, tensor, values};
use super::hydra::{phi, phi_backward};
use super::scratch::{Scratch, take};
use super::strided::Rows;
use super::tile::{Onto, pack_panels, pack_transposed, panel_width, product, transposed_product, vectors};
use crate::Kernel;
use crate::ops::LinearAttentionOps;
use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::ops::Range;

/// Tokens that share a step of a sum over tokens, and that a task works on.
const TOKENS: usize = 128;

/// Rows of a summary that a task sums.
const SUMMARY_ROWS: usize = 96;

impl LinearAttentionOps for Flex {
    fn linear_attention(qkv: FlexTensor, heads: usize, kernel: Kernel) -> FlexTensor {
        let qkv = in_order::<f32>(qkv);
        let shape = Shape::of(&qkv, heads, kernel);
        let mixed = shape.forward(values(&qkv));
        tensor(mixed, tensor::Shape::new([shape.batch, shape.tokens, shape.width()]))
    }

    fn linear_attention_backward(qkv: FlexTensor, gradient: FlexTensor, heads: usize, kernel: Kernel) -> FlexTensor {
        let [qkv, gradient] = [qkv, gradient].map(in_order::<f32>);
        let d_qkv = Shape::of(&qkv, heads, kernel).backward(values(&qkv), values(&gradient));
        tensor(d_qkv, qkv.shape())
    }
}

/// What attention mixes: `tokens` tokens of `heads * head_width` features, in each of `batch` images.
#[derive(Debug, Clone, Copy)]
struct Shape {
    batch: usize,
    tokens: usize,
    heads: usize,
    head_width: usize,
    kernel: Kernel,
}

impl Shape {
    /// Of packed queries, keys and values.
    ///
    /// # Panics
    /// Where their width is not three times `heads` heads.
    fn of(qkv: &FlexTensor, heads: usize, kernel: Kernel) -> Self {
        let [batch, tokens, packed] = qkv.shape().dims();
        assert!(heads > 0 && packed.is_multiple_of(3 * heads), "queries, keys and values of {heads} heads in rows of {packed}");
        Self { batch, tokens, heads, head_width: packed / (3 * heads), kernel }
    }

    fn width(self) -> usize {
        self.heads * self.head_width
    }

    /// Values of a summary.
    fn summary(self) -> usize {
        self.head_width * self.head_width
    }

    fn forward(self, qkv: &[f32]) -> Vec<f32> {
        let width = self.width();
        let mut mixed = vec![0.0; self.batch * self.tokens * width];
        if mixed.is_empty() {
            return mixed;
        }
        let keys = self.phi_of(qkv, 1);
        let summaries = self.summaries(&keys, (qkv, 3 * width, 2 * width));
        self.each_chunk(&mut mixed, width, |image, tokens, out| Mix {
            shape: self,
            qkv: self.image(qkv, 3 * width, image),
            summaries: &summaries[image * self.heads * self.summary()..],
            tokens,
            out,
        });
        mixed
    }

    fn backward(self, qkv: &[f32], gradient: &[f32]) -> Vec<f32> {
        let width = self.width();
        assert_eq!(3 * gradient.len(), qkv.len(), "the gradient of the result of {self:?}");
        let mut d_qkv = vec![0.0; qkv.len()];
        if d_qkv.is_empty() {
            return d_qkv;
        }
        let [queries, keys] = [0, 1].map(|third| self.phi_of(qkv, third));
        let summaries = self.summaries(&keys, (qkv, 3 * width, 2 * width));
        let d_summaries = self.summaries(&queries, (gradient, width, 0));
        self.each_chunk(&mut d_qkv, 3 * width, |image, tokens, out| Spread {
            shape: self,
            qkv: self.image(qkv, 3 * width, image),
            keys: self.image(&keys, width, image),
            gradient: self.image(gradient, width, image),
            summaries: [&summaries, &d_summaries].map(|all| &all[image * self.heads * self.summary()..]),
            tokens,
            out,
        });
        d_qkv
    }

    /// The tokens of one image in a matrix of `stride` columns.
    fn image(self, matrix: &[f32], stride: usize, image: usize) -> &[f32] {
        &matrix[image * self.tokens * stride..][..self.tokens * stride]
    }

    /// Runs a task for every image and chunk of tokens, which writes its rows of `out`.
    fn each_chunk<'a, T: WithSimd<Output = ()>>(
        self,
        out: &'a mut [f32],
        stride: usize,
        task: impl Fn(usize, Range<usize>, &'a mut [f32]) -> T + Sync,
    ) {
        let arch = Arch::new();
        out.par_chunks_mut(self.tokens * stride).enumerate().for_each(|(image, out)| {
            out.par_chunks_mut(TOKENS * stride).enumerate().for_each(|(chunk, out)| {
                let first = chunk * TOKENS;
                arch.dispatch(task(image, first..first + out.len() / stride, out));
            });
        });
    }

    /// phi of the queries (0) or keys (1): `[batch, tokens, width]`.
    fn phi_of(self, qkv: &[f32], third: usize) -> Vec<f32> {
        let width = self.width();
        let mut features = vec![0.0; self.batch * self.tokens * width];
        self.each_chunk(&mut features, width, |image, tokens, out| Features {
            kernel: self.kernel,
            rows: Rows::of_columns(self.image(qkv, 3 * width, image), 3 * width, third * width, width),
            tokens,
            out,
        });
        features
    }

    /// Per head `a^T b`, summed over tokens: `a` `[batch, tokens, width]`, `b` the columns of width `width` of a matrix that start at a
    /// place in its rows. The result is `[batch, heads, head_width, head_width]`.
    fn summaries(self, a: &[f32], (b, stride, start): (&[f32], usize, usize)) -> Vec<f32> {
        let mut summaries = vec![0.0; self.batch * self.heads * self.summary()];
        let arch = Arch::new();
        summaries.par_chunks_exact_mut(self.summary()).enumerate().for_each(|(index, summary)| {
            let (image, head) = (index / self.heads, index % self.heads);
            let column = head * self.head_width;
            let a = self.image(a, self.width(), image);
            let b = Rows::of_columns(self.image(b, stride, image), stride, start + column, self.head_width);
            summary.par_chunks_mut(SUMMARY_ROWS * self.head_width).enumerate().for_each(|(block, out)| {
                arch.dispatch(Summary { shape: self, a, first: column + block * SUMMARY_ROWS, b, out });
            });
        });
        summaries
    }
}

/// phi of some tokens.
struct Features<'a> {
    kernel: Kernel,
    rows: Rows<'a, f32>,
    tokens: Range<usize>,
    out: &'a mut [f32],
}

impl WithSimd for Features<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let width = self.out.len() / self.tokens.len();
        for (token, out) in self.tokens.zip(self.out.chunks_exact_mut(width)) {
            phi(self.kernel, self.rows.row(token), out);
        }
    }
}

/// Some rows of one summary: the columns of `a` from `first` on, times `b`.
struct Summary<'a> {
    shape: Shape,
    a: &'a [f32],
    first: usize,
    b: Rows<'a, f32>,
    out: &'a mut [f32],
}

impl WithSimd for Summary<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Shape { tokens, head_width, .. } = self.shape;
        let width = self.shape.width();
        let columns = vectors::<S>(head_width);
        let padded = columns * S::F32_LANES;
        let rows = self.out.len() / head_width;
        let lengths = [TOKENS * padded, rows * padded];
        let mut scratch = Scratch::new(lengths.iter().sum());
        let mut scratch = scratch.values();
        let [panels, sums] = lengths.map(|length| take(&mut scratch, length));
        sums.fill(0.0);
        for start in (0..tokens).step_by(TOKENS) {
            let here = start..tokens.min(start + TOKENS);
            let count = here.len();
            pack_panels::<S, f32>(self.b, here, 1.0, head_width, panels);
            let a = &self.a[start * width..(start + count) * width][self.first..];
            transposed_product(simd, (a, width), [rows, count, columns], panels, (sums, padded));
        }
        for (out, sums) in self.out.chunks_exact_mut(head_width).zip(sums.chunks_exact(padded)) {
            out.copy_from_slice(&sums[..head_width]);
        }
    }
}

/// `out = phi(q) summary`, per head, for some tokens of an image.
struct Mix<'a> {
    shape: Shape,
    qkv: &'a [f32],
    summaries: &'a [f32],
    tokens: Range<usize>,
    out: &'a mut [f32],
}

impl WithSimd for Mix<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Shape { heads, head_width, kernel, .. } = self.shape;
        let width = self.shape.width();
        let columns = vectors::<S>(head_width);
        let padded = columns * S::F32_LANES;
        let count = self.tokens.len();
        let lengths = [count * width, head_width * padded, count * padded];
        let mut scratch = Scratch::new(lengths.iter().sum());
        let mut scratch = scratch.values();
        let [queries, panels, mixed] = lengths.map(|length| take(&mut scratch, length));
        let rows = Rows::of_columns(self.qkv, 3 * width, 0, width);
        for (token, out) in self.tokens.zip(queries.chunks_exact_mut(width)) {
            phi(kernel, rows.row(token), out);
        }
        for head in 0..heads {
            let column = head * head_width;
            let summary = &self.summaries[head * self.shape.summary()..][..self.shape.summary()];
            pack_panels::<S, f32>(Rows::of_columns(summary, head_width, 0, head_width), 0..head_width, 1.0, head_width, panels);
            product(simd, (&queries[column..], width), [count, head_width, columns], panels, (mixed, padded), Onto::Empty);
            for (out, mixed) in self.out.chunks_exact_mut(width).zip(mixed.chunks_exact(padded)) {
                out[column..column + head_width].copy_from_slice(&mixed[..head_width]);
            }
        }
    }
}

/// The gradients of the queries, keys and values of some tokens of an image, from the summaries and their gradients.
struct Spread<'a> {
    shape: Shape,
    qkv: &'a [f32],
    keys: &'a [f32],
    gradient: &'a [f32],
    summaries: [&'a [f32]; 2],
    tokens: Range<usize>,
    out: &'a mut [f32],
}

impl WithSimd for Spread<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Shape { heads, head_width, kernel, .. } = self.shape;
        let width = self.shape.width();
        let columns = vectors::<S>(head_width);
        let padded = columns * S::F32_LANES;
        // Panels of transposed rows are all of full width.
        let full = head_width.next_multiple_of(panel_width::<S>());
        let count = self.tokens.len();
        let lengths = [count * width, count * width, head_width * full, count * full, width];
        let mut scratch = Scratch::new(lengths.iter().sum());
        let mut scratch = scratch.values();
        let [d_queries, d_keys, panels, product_of, work] = lengths.map(|length| take(&mut scratch, length));

        let first = self.tokens.start;
        let [gradient, keys] = [self.gradient, self.keys].map(|x| &x[first * width..]);
        let values = &self.qkv[first * 3 * width + 2 * width..];
        for head in 0..heads {
            let column = head * head_width;
            let sizes = [count, head_width, full / S::F32_LANES];
            let [summary, d_summary] = self.summaries.map(|all| {
                let summary = &all[head * self.shape.summary()..][..self.shape.summary()];
                Rows::of_columns(summary, head_width, 0, head_width)
            });

            pack_transposed::<S, f32>(summary, 0..head_width, head_width, panels);
            product(simd, (&gradient[column..], width), sizes, panels, (&mut *product_of, full), Onto::Empty);
            for (out, x) in d_queries.chunks_exact_mut(width).zip(product_of.chunks_exact(full)) {
                out[column..column + head_width].copy_from_slice(&x[..head_width]);
            }

            pack_transposed::<S, f32>(d_summary, 0..head_width, head_width, panels);
            product(simd, (&values[column..], 3 * width), sizes, panels, (&mut *product_of, full), Onto::Empty);
            for (out, x) in d_keys.chunks_exact_mut(width).zip(product_of.chunks_exact(full)) {
                out[column..column + head_width].copy_from_slice(&x[..head_width]);
            }

            pack_panels::<S, f32>(d_summary, 0..head_width, 1.0, head_width, panels);
            product(
                simd,
                (&keys[column..], width),
                [count, head_width, columns],
                panels,
                (&mut *product_of, padded),
                Onto::Empty,
            );
            for (out, x) in self.out.chunks_exact_mut(3 * width).zip(product_of.chunks_exact(padded)) {
                out[2 * width + column..][..head_width].copy_from_slice(&x[..head_width]);
            }
        }

        let rows = self.qkv[first * 3 * width..].chunks_exact(3 * width).zip(self.out.chunks_exact_mut(3 * width));
        for ((x, out), (d_query, d_key)) in rows.zip(d_queries.chunks_exact(width).zip(d_keys.chunks_exact(width))) {
            let (d_q, rest) = out.split_at_mut(width);
            phi_backward(kernel, &x[..width], work, d_query, d_q);
            phi_backward(kernel, &x[width..2 * width], work, d_key, &mut rest[..width]);
        }
    }
}
