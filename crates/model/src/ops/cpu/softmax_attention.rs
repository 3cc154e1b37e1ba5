//! Softmax attention in tiles, forward and backward, without a matrix of scores.
//!
//! Dao et al., FlashAttention, 2022 (arXiv 2205.14135), algorithms 1 and 4, for a processor's caches: scores exist for a few rows and
//! a block of keys at a time. Of every row of scores the forward pass keeps the greatest and the sum of exponentials, in two numbers, not
//! as one log-sum-exp: where scores are large the logarithm of the sum is lost in the greatest.

use super::element::{Element, in_order, tensor, values};
use super::exp::exp;
use super::scratch::{Scratch, take};
use super::strided::{RectangleMut, Rows};
use super::tile::{Onto, pack_panels, pack_rows, pack_transposed, panel_width, product, transposed_product, vectors};
use crate::ops::SoftmaxAttentionOps;
use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{self, DType, bf16, f16};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::array::from_fn;
use std::ops::Range;

impl SoftmaxAttentionOps for Flex {
    fn softmax_attention(qkv: FlexTensor, heads: usize) -> (FlexTensor, FlexTensor) {
        match qkv.dtype() {
            DType::BF16 => forward_of::<bf16>(qkv, heads),
            DType::F16 => forward_of::<f16>(qkv, heads),
            _ => forward_of::<f32>(qkv, heads),
        }
    }

    fn softmax_attention_backward(
        qkv: FlexTensor,
        mixed: FlexTensor,
        statistics: FlexTensor,
        gradient: FlexTensor,
        heads: usize,
    ) -> FlexTensor {
        match qkv.dtype() {
            DType::BF16 => backward_of::<bf16>(qkv, mixed, statistics, gradient, heads),
            DType::F16 => backward_of::<f16>(qkv, mixed, statistics, gradient, heads),
            _ => backward_of::<f32>(qkv, mixed, statistics, gradient, heads),
        }
    }
}

fn forward_of<E: Element>(qkv: FlexTensor, heads: usize) -> (FlexTensor, FlexTensor) {
    let qkv = in_order::<E>(qkv);
    let shape = Shape::of(&qkv, heads);
    let Shape { batch, tokens, .. } = shape;
    let (mixed, statistics) = forward::<E>(values(&qkv), shape);
    let statistics = tensor(statistics, tensor::Shape::new([batch, heads, tokens, STATISTICS]));
    (tensor(mixed, tensor::Shape::new([batch, tokens, shape.width()])), statistics)
}

fn backward_of<E: Element>(
    qkv: FlexTensor,
    mixed: FlexTensor,
    statistics: FlexTensor,
    gradient: FlexTensor,
    heads: usize,
) -> FlexTensor {
    let [qkv, mixed, gradient] = [qkv, mixed, gradient].map(in_order::<E>);
    let statistics = in_order::<f32>(statistics);
    let d_qkv = backward::<E>(values(&qkv), values(&mixed), values(&statistics), values(&gradient), Shape::of(&qkv, heads));
    tensor(d_qkv, qkv.shape())
}

/// What attention mixes: `tokens` tokens of `heads * head_width` features, in each of `batch` images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) head_width: usize,
}

impl Shape {
    /// Of packed queries, keys and values.
    ///
    /// # Panics
    /// Where their width is not three times `heads` heads.
    fn of(qkv: &FlexTensor, heads: usize) -> Self {
        let [batch, tokens, packed] = qkv.shape().dims();
        assert!(heads > 0 && packed.is_multiple_of(3 * heads), "queries, keys and values of {heads} heads in rows of {packed}");
        Self { batch, tokens, heads, head_width: packed / (3 * heads) }
    }

    fn width(self) -> usize {
        self.heads * self.head_width
    }

    fn scale(self) -> f32 {
        (self.head_width as f64).sqrt().recip() as f32
    }
}

/// Greatest score and reciprocal sum of exponentials, per row.
const STATISTICS: usize = 2;

/// Values of keys, and as many of values, that a block holds: 128 KiB each, so that a core's second cache holds both.
const FORWARD_BLOCK: usize = 32 * 1024;

/// Half the forward pass's: the backward pass holds keys and values twice, and their gradients.
const BACKWARD_BLOCK: usize = 16 * 1024;

/// Rows of scores at a time, a multiple of the rows of an inner loop.
const FORWARD_ROWS: usize = 24;
const BACKWARD_ROWS: usize = 48;

/// Rows of a task of the forward pass, where a head has more.
const TASK_ROWS: usize = 512;

/// The backward pass divides the keys of a head where there are fewer heads than this many tasks, into parts of at least so many keys
/// and at most so many parts, each with its own sum of the gradient of the queries.
const BACKWARD_TASKS: usize = 24;
const BACKWARD_TASK_KEYS: usize = 256;
const BACKWARD_PARTS: usize = 8;

/// `n` in equal blocks of at most `limit`, each but the last a multiple of `unit`.
fn block_size(n: usize, limit: usize, unit: usize) -> usize {
    let limit = limit.next_multiple_of(unit);
    n.div_ceil(n.div_ceil(limit)).next_multiple_of(unit)
}

/// `softmax(q k^T / sqrt(head_width)) v` per head, and what [`backward`] needs of it.
///
/// Shapes: `qkv` `[batch, tokens, 3 * width]`; the results `[batch, tokens, width]` and `[batch, heads, tokens, 2]`.
pub(crate) fn forward<E: Element>(qkv: &[E], shape: Shape) -> (Vec<E>, Vec<f32>) {
    let Shape { batch, tokens, heads, head_width } = shape;
    let width = shape.width();
    assert_eq!(qkv.len(), batch * tokens * 3 * width, "queries, keys and values of {shape:?}");
    let mut out = vec![E::default(); batch * tokens * width];
    let mut statistics = vec![0.0; batch * heads * tokens * STATISTICS];
    if out.is_empty() {
        return (out, statistics);
    }

    let rows = block_size(tokens, TASK_ROWS, FORWARD_ROWS);
    let images = qkv.chunks_exact(tokens * 3 * width).zip(out.chunks_exact_mut(tokens * width));
    let mut tasks = Vec::with_capacity(batch * heads * tokens.div_ceil(rows));
    for ((qkv, out), statistics) in images.zip(statistics.chunks_exact_mut(heads * tokens * STATISTICS)) {
        let heads = RectangleMut::new(out, width).split_columns(head_width).zip(statistics.chunks_exact_mut(tokens * STATISTICS));
        for (head, (out, statistics)) in heads.enumerate() {
            let [q, k, v] = head_rows(qkv, shape, head);
            for (part, (out, statistics)) in out.split_rows(rows).zip(statistics.chunks_mut(rows * STATISTICS)).enumerate() {
                let first = part * rows;
                tasks.push(Forward { q, k, v, rows: first..tokens.min(first + rows), out, statistics, shape });
            }
        }
    }
    let arch = Arch::new();
    tasks.into_par_iter().with_max_len(1).for_each(|task| arch.dispatch(task));
    (out, statistics)
}

/// The queries, keys and values of one head of one image.
fn head_rows<E>(qkv: &[E], shape: Shape, head: usize) -> [Rows<'_, E>; 3] {
    let width = shape.width();
    [0, 1, 2].map(|third| Rows::of_columns(qkv, 3 * width, third * width + head * shape.head_width, shape.head_width))
}

struct Forward<'a, E> {
    q: Rows<'a, E>,
    k: Rows<'a, E>,
    v: Rows<'a, E>,
    rows: Range<usize>,
    out: RectangleMut<'a, E>,
    statistics: &'a mut [f32],
    shape: Shape,
}

impl<E: Element> WithSimd for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let Shape { tokens, head_width, .. } = self.shape;
        let columns = vectors::<S>(head_width);
        let padded = columns * S::F32_LANES;
        let block = block_size(tokens, (FORWARD_BLOCK / padded).max(64), panel_width::<S>());
        let rows = self.rows.len();
        let lengths =
            [head_width * block, padded * block, head_width * FORWARD_ROWS, block * FORWARD_ROWS, padded * rows, rows, rows];

        let mut scratch = Scratch::new(lengths.iter().sum());
        let mut scratch = scratch.values();
        let [k, v, q, scores, mixed, greatest, total] = lengths.map(|length| take(&mut scratch, length));
        for start in (0..tokens).step_by(block) {
            let keys = start..tokens.min(start + block);
            let filled = keys.len().next_multiple_of(panel_width::<S>());
            pack_transposed::<S, E>(self.k, keys.clone(), head_width, k);
            pack_panels::<S, E>(self.v, keys.clone(), 1.0, head_width, v);

            for first in (0..rows).step_by(FORWARD_ROWS) {
                let here = FORWARD_ROWS.min(rows - first);
                let query = self.rows.start + first;
                pack_rows(self.q, query..query + here, self.shape.scale(), q, head_width);
                product(simd, (q, head_width), [here, head_width, filled / S::F32_LANES], k, (scores, block), Onto::Empty);

                for row in 0..here {
                    let scores = &mut scores[row * block..][..filled];
                    scores[keys.len()..].fill(f32::NEG_INFINITY);
                    let scores = S::as_mut_simd_f32s(scores).0;
                    let row = first + row;
                    let before = if start == 0 { f32::NEG_INFINITY } else { greatest[row] };
                    greatest[row] = before.max(maximum(simd, scores));
                    let sum = exponentials(simd, scores, shift(greatest[row]));
                    if start == 0 {
                        total[row] = sum;
                    } else {
                        // What was summed so far was relative to the greatest score so far.
                        let factor = scalar_exp(simd, shift(before) - shift(greatest[row]));
                        total[row] = total[row] * factor + sum;
                        if factor != 1.0 {
                            for x in S::as_mut_simd_f32s(&mut mixed[row * padded..][..padded]).0 {
                                *x = simd.mul_f32s(*x, simd.splat_f32s(factor));
                            }
                        }
                    }
                }
                let onto = if start == 0 { Onto::Empty } else { Onto::Sum };
                let mixed = &mut mixed[first * padded..];
                product(simd, (scores, block), [here, keys.len(), columns], v, (mixed, padded), onto);
            }
        }

        for row in 0..rows {
            let share = total[row].recip();
            self.statistics[STATISTICS * row] = shift(greatest[row]);
            self.statistics[STATISTICS * row + 1] = share;
            for (out, x) in self.out.row_mut(row).iter_mut().zip(&mixed[row * padded..]) {
                *out = E::narrow(x * share);
            }
        }
    }
}

/// What is taken from a row's scores before the exponential. A row of -inf alone has no finite one; any gives it the weights 0 / 0, as
/// the definition does, and leaves alone what other blocks of keys add.
#[inline(always)]
fn shift(greatest: f32) -> f32 {
    if greatest == f32::NEG_INFINITY { 0.0 } else { greatest }
}

/// Vectors of a row that are worked on in step.
const IN_STEP: usize = 4;

#[inline(always)]
fn maximum<S: Simd>(simd: S, row: &[S::f32s]) -> f32 {
    let (groups, rest) = row.as_chunks::<IN_STEP>();
    let mut greatest = [simd.splat_f32s(f32::NEG_INFINITY); IN_STEP];
    for x in groups {
        for i in 0..IN_STEP {
            greatest[i] = simd.max_f32s(x[i], greatest[i]);
        }
    }
    for x in rest {
        greatest[0] = simd.max_f32s(*x, greatest[0]);
    }
    for i in 1..IN_STEP {
        greatest[0] = simd.max_f32s(greatest[0], greatest[i]);
    }
    simd.reduce_max_f32s(greatest[0])
}

/// Replaces scores by exp(score - shift) and sums them.
#[inline(always)]
fn exponentials<S: Simd>(simd: S, row: &mut [S::f32s], shift: f32) -> f32 {
    let shift = simd.splat_f32s(shift);
    let mut sum = simd.splat_f32s(0.0);
    let (groups, rest) = row.as_chunks_mut::<IN_STEP>();
    for x in groups {
        for x in &mut *x {
            *x = simd.sub_f32s(*x, shift);
        }
        *x = exp(simd, *x);
        let pairs = [simd.add_f32s(x[0], x[1]), simd.add_f32s(x[2], x[3])];
        sum = simd.add_f32s(sum, simd.add_f32s(pairs[0], pairs[1]));
    }
    for x in rest {
        [*x] = exp(simd, [simd.sub_f32s(*x, shift)]);
        sum = simd.add_f32s(sum, *x);
    }
    simd.reduce_sum_f32s(sum)
}

#[inline(always)]
fn scalar_exp<S: Simd>(simd: S, x: f32) -> f32 {
    let [x] = exp(simd, [simd.splat_f32s(x)]);
    simd.reduce_max_f32s(x)
}

/// Turns scores into weights, `exp(score - greatest) * share`, and returns the sum of their products with `gradients`.
#[inline(always)]
fn weigh<S: Simd>(simd: S, scores: &mut [S::f32s], gradients: &[S::f32s], greatest: f32, share: f32) -> f32 {
    let [greatest, share] = [simd.splat_f32s(greatest), simd.splat_f32s(share)];
    let mut sum = simd.splat_f32s(0.0);
    let (groups, rest) = scores.as_chunks_mut::<IN_STEP>();
    let (gradients, last_gradients) = gradients.as_chunks::<IN_STEP>();
    for (x, gradient) in groups.iter_mut().zip(gradients) {
        for x in &mut *x {
            *x = simd.sub_f32s(*x, greatest);
        }
        *x = exp(simd, *x);
        for (x, gradient) in x.iter_mut().zip(gradient) {
            *x = simd.mul_f32s(*x, share);
            sum = simd.mul_add_f32s(*x, *gradient, sum);
        }
    }
    for (x, gradient) in rest.iter_mut().zip(last_gradients) {
        [*x] = exp(simd, [simd.sub_f32s(*x, greatest)]);
        *x = simd.mul_f32s(*x, share);
        sum = simd.mul_add_f32s(*x, *gradient, sum);
    }
    simd.reduce_sum_f32s(sum)
}

/// Turns the gradients of weights into those of scores: `weight * (gradient - mean)`.
#[inline(always)]
fn score_gradients<S: Simd>(simd: S, weights: &[S::f32s], gradients: &mut [S::f32s], mean: f32) {
    let mean = simd.splat_f32s(mean);
    for (weight, gradient) in weights.iter().zip(gradients) {
        *gradient = simd.mul_f32s(*weight, simd.sub_f32s(*gradient, mean));
    }
}

/// The gradient of `qkv` from that of [`forward`]'s first result.
///
/// Shapes: `qkv` and the result `[batch, tokens, 3 * width]`, `out` and `gradient` `[batch, tokens, width]`, `statistics`
/// `[batch, heads, tokens, 2]` as [`forward`] gave them.
pub(crate) fn backward<E: Element>(qkv: &[E], out: &[E], statistics: &[f32], gradient: &[E], shape: Shape) -> Vec<E> {
    let Shape { batch, tokens, heads, head_width } = shape;
    let width = shape.width();
    assert_eq!(qkv.len(), batch * tokens * 3 * width, "queries, keys and values of {shape:?}");
    assert_eq!([out.len(), gradient.len()], [batch * tokens * width; 2], "the result of {shape:?} and its gradient");
    assert_eq!(statistics.len(), batch * heads * tokens * STATISTICS, "the statistics of {shape:?}");
    let mut d_qkv = vec![E::default(); qkv.len()];
    if qkv.is_empty() {
        return d_qkv;
    }

    let parts = BACKWARD_TASKS.div_ceil(batch * heads).min(tokens.div_ceil(BACKWARD_TASK_KEYS)).min(BACKWARD_PARTS);
    let part_keys = tokens.div_ceil(parts);
    let parts = tokens.div_ceil(part_keys);
    let mut partial_d_q = vec![0.0; if parts > 1 { batch * heads * parts * tokens * head_width } else { 0 }];
    let mut partials = partial_d_q.chunks_exact_mut(tokens * head_width);

    let mut tasks = Vec::with_capacity(batch * heads * parts);
    let mut queries = Vec::with_capacity(if parts > 1 { batch * heads } else { 0 });
    for (image, d_qkv) in d_qkv.chunks_exact_mut(tokens * 3 * width).enumerate() {
        let qkv = &qkv[image * tokens * 3 * width..][..tokens * 3 * width];
        let [out, gradient] = [out, gradient].map(|x| &x[image * tokens * width..][..tokens * width]);
        let mut columns: Vec<_> = RectangleMut::new(d_qkv, 3 * width).split_columns(head_width).collect();
        let d_v = columns.split_off(2 * heads);
        let d_k = columns.split_off(heads);
        for (head, ((d_q, d_k), d_v)) in columns.into_iter().zip(d_k).zip(d_v).enumerate() {
            let [q, k, v] = head_rows(qkv, shape, head);
            let [out, gradient] = [out, gradient].map(|x| Rows::of_columns(x, width, head * head_width, head_width));
            let statistics = &statistics[(image * heads + head) * tokens * STATISTICS..][..tokens * STATISTICS];
            let mut d_q = Some(d_q);
            for (part, (d_k, d_v)) in d_k.split_rows(part_keys).zip(d_v.split_rows(part_keys)).enumerate() {
                let first = part * part_keys;
                let keys = first..tokens.min(first + part_keys);
                let d_q = match partials.next() {
                    Some(partial) => QueryGradient::Partial(partial),
                    None => QueryGradient::Whole(d_q.take().expect("one part where there are no partial sums")),
                };
                tasks.push(Backward { q, k, v, out, gradient, statistics, keys, d_q, d_k, d_v, shape });
            }
            queries.extend(d_q);
        }
    }
    let arch = Arch::new();
    tasks.into_par_iter().with_max_len(1).for_each(|task| arch.dispatch(task));

    let partials = partial_d_q.par_chunks_exact(parts * tokens * head_width);
    queries.into_par_iter().zip(partials).for_each(|(mut d_q, partials)| {
        for row in 0..tokens {
            for (column, d_q) in d_q.row_mut(row).iter_mut().enumerate() {
                let of_part = partials.iter().skip(row * head_width + column).step_by(tokens * head_width);
                *d_q = E::narrow(of_part.sum());
            }
        }
    });
    d_qkv
}

/// Rows whose products are summed side by side.
const ROWS_IN_STEP: usize = 8;

/// The products of rows of `a`, from `first` on, with as many rows of `b`, which lie one after the other.
///
/// Each sum runs as in the tiles, one product after the other: where a row attends to one key alone its result is the value, and the mean
/// is exactly the gradient of that one weight, so that the scores get the gradient 0 and not what rounding leaves.
#[inline(always)]
fn dots<E: Element>(a: Rows<'_, E>, first: usize, b: &[f32], out: &mut [f32]) {
    let width = b.len() / out.len();
    let rows = b.chunks(ROWS_IN_STEP * width).zip(out.chunks_mut(ROWS_IN_STEP));
    for (group, (b, out)) in rows.enumerate() {
        let first = first + group * ROWS_IN_STEP;
        let mut sums = [0.0_f32; ROWS_IN_STEP];
        if let Some(out) = out.first_chunk_mut::<ROWS_IN_STEP>() {
            let a: [&[E]; ROWS_IN_STEP] = from_fn(|i| &a.row(first + i)[..width]);
            let b: [&[f32]; ROWS_IN_STEP] = from_fn(|i| &b[i * width..][..width]);
            for p in 0..width {
                for i in 0..ROWS_IN_STEP {
                    sums[i] = b[i][p].mul_add(a[i][p].widen(), sums[i]);
                }
            }
            *out = sums;
        } else {
            for (i, (b, out)) in b.chunks_exact(width).zip(out).enumerate() {
                *out = b.iter().zip(a.row(first + i)).fold(0.0, |sum, (b, a)| b.mul_add(a.widen(), sum));
            }
        }
    }
}

enum QueryGradient<'a, E> {
    /// The task has all keys and writes the gradient.
    Whole(RectangleMut<'a, E>),
    /// The task has some of the keys and writes their share, `[tokens, head_width]`.
    Partial(&'a mut [f32]),
}

struct Backward<'a, E> {
    q: Rows<'a, E>,
    k: Rows<'a, E>,
    v: Rows<'a, E>,
    out: Rows<'a, E>,
    gradient: Rows<'a, E>,
    statistics: &'a [f32],
    keys: Range<usize>,
    d_q: QueryGradient<'a, E>,
    d_k: RectangleMut<'a, E>,
    d_v: RectangleMut<'a, E>,
    shape: Shape,
}

impl<E: Element> WithSimd for Backward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let Shape { tokens, head_width, .. } = self.shape;
        let scale = self.shape.scale();
        let columns = vectors::<S>(head_width);
        let padded = columns * S::F32_LANES;
        let block = block_size(self.keys.len(), (BACKWARD_BLOCK / padded).clamp(32, 512), panel_width::<S>());
        let [by_key, by_row] = [padded * block, padded * BACKWARD_ROWS];
        let tile = block * BACKWARD_ROWS;
        let lengths =
            [by_key, by_key, by_key, by_key, by_key, by_row, by_row, by_row, by_row, tile, tile, tokens * padded, BACKWARD_ROWS];

        let mut scratch = Scratch::new(lengths.iter().sum());
        let mut scratch = scratch.values();
        let [kt, vt, k, d_k, d_v, q, dy, q_panels, dy_panels, weights, d_scores, d_q, means] =
            lengths.map(|length| take(&mut scratch, length));
        for start in self.keys.clone().step_by(block) {
            let keys = start..self.keys.end.min(start + block);
            let count = keys.len();
            let filled = count.next_multiple_of(panel_width::<S>());
            pack_transposed::<S, E>(self.k, keys.clone(), head_width, kt);
            pack_transposed::<S, E>(self.v, keys.clone(), head_width, vt);
            pack_panels::<S, E>(self.k, keys.clone(), scale, head_width, k);
            d_k.fill(0.0);
            d_v.fill(0.0);

            for first in (0..tokens).step_by(BACKWARD_ROWS) {
                let rows = first..tokens.min(first + BACKWARD_ROWS);
                let here = rows.len();
                pack_rows(self.q, rows.clone(), scale, q, head_width);
                pack_rows(self.gradient, rows.clone(), 1.0, dy, head_width);
                pack_panels::<S, E>(self.q, rows.clone(), scale, head_width, q_panels);
                pack_panels::<S, E>(self.gradient, rows.clone(), 1.0, head_width, dy_panels);

                let sizes = [here, head_width, filled / S::F32_LANES];
                product(simd, (q, head_width), sizes, kt, (weights, block), Onto::Empty);
                product(simd, (dy, head_width), sizes, vt, (d_scores, block), Onto::Empty);
                // The mean of the gradients of a row's weights. Of all keys it is the sum itself; of a part of the keys it is what the
                // result tells.
                let whole = count == tokens;
                if !whole {
                    dots(self.out, first, &dy[..here * head_width], &mut means[..here]);
                }
                for row in 0..here {
                    let [greatest, share] = [0, 1].map(|i| self.statistics[STATISTICS * (first + row) + i]);
                    let weights = &mut weights[row * block..][..filled];
                    weights[count..].fill(f32::NEG_INFINITY);
                    let weights = S::as_mut_simd_f32s(weights).0;
                    let d_scores = S::as_mut_simd_f32s(&mut d_scores[row * block..][..filled]).0;
                    let sum = weigh(simd, weights, d_scores, greatest, share);
                    score_gradients(simd, weights, d_scores, if whole { sum } else { means[row] });
                }
                transposed_product(simd, (weights, block), [count, here, columns], dy_panels, (d_v, padded));
                transposed_product(simd, (d_scores, block), [count, here, columns], q_panels, (d_k, padded));
                let onto = if start == self.keys.start { Onto::Empty } else { Onto::Sum };
                product(simd, (d_scores, block), [here, count, columns], k, (&mut d_q[first * padded..], padded), onto);
            }

            for key in 0..count {
                let row = start - self.keys.start + key;
                for (sum, out) in [(&*d_k, &mut self.d_k), (&*d_v, &mut self.d_v)] {
                    for (out, x) in out.row_mut(row).iter_mut().zip(&sum[key * padded..]) {
                        *out = E::narrow(*x);
                    }
                }
            }
        }

        for (row, sums) in d_q.chunks_exact(padded).enumerate() {
            match &mut self.d_q {
                QueryGradient::Whole(out) => out.row_mut(row).iter_mut().zip(sums).for_each(|(out, x)| *out = E::narrow(*x)),
                QueryGradient::Partial(out) => out[row * head_width..][..head_width].copy_from_slice(&sums[..head_width]),
            }
        }
    }
}
