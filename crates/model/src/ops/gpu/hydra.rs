//! Hydra attention on GPUs.

use super::phi::{Statistics, along, phi, phi_backward, statistics};
use super::rows::{LANES, ROWS, sum_of_lanes, sum_of_vector, workgroup};
use super::sums::{pieces, sum_pieces};
use super::tensor::{address, element, empty, grid, in_order, vector};
use crate::attention::kernel::Kernel;
use crate::ops::HydraOps;
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Tokens that share a piece of a sum over tokens, and pieces of an image.
const TOKENS: usize = 16;
const PIECES: usize = 64;

impl HydraOps for CubeBackend {
    fn hydra(qkv: CubeTensor, kernel: Kernel) -> CubeTensor {
        let qkv = in_order(qkv);
        let shape = Packed::of(&qkv);
        let Packed { batch, tokens, width, n } = shape;
        let out = empty(&qkv, [batch, tokens, width], qkv.dtype);
        if batch * tokens == 0 {
            return out;
        }
        let summary = shape.token_sum(&qkv, 1, &qkv, 2, kernel);
        gate::launch(
            &qkv.client.clone(),
            grid((batch * tokens).div_ceil(ROWS)),
            workgroup(ROWS),
            address([&qkv]),
            n,
            qkv.clone().into_buffer_arg(),
            summary.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            tokens,
            batch * tokens,
            width / n,
            kernel,
            element(&qkv),
        );
        out
    }

    fn hydra_backward(qkv: CubeTensor, gradient: CubeTensor, kernel: Kernel) -> CubeTensor {
        let (qkv, gradient) = (in_order(qkv), in_order(gradient));
        let shape = Packed::of(&qkv);
        let Packed { batch, tokens, width, n } = shape;
        let out = empty(&qkv, [batch, tokens, 3 * width], qkv.dtype);
        if batch * tokens == 0 {
            return out;
        }
        let summary = shape.token_sum(&qkv, 1, &qkv, 2, kernel);
        let summary_gradient = shape.token_sum(&qkv, 0, &gradient, 0, kernel);
        gate_backward::launch(
            &qkv.client.clone(),
            grid((batch * tokens).div_ceil(ROWS)),
            workgroup(ROWS),
            address([&qkv]),
            n,
            qkv.clone().into_buffer_arg(),
            gradient.into_buffer_arg(),
            summary.into_buffer_arg(),
            summary_gradient.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            tokens,
            batch * tokens,
            width / n,
            kernel,
            element(&qkv),
        );
        out
    }
}

/// The sides of packed queries, keys and values.
#[derive(Clone, Copy)]
struct Packed {
    batch: usize,
    tokens: usize,
    width: usize,
    /// Values of a vector.
    n: usize,
}

impl Packed {
    fn of(qkv: &CubeTensor) -> Self {
        let [batch, tokens, tripled] = qkv.shape().dims();
        assert_eq!(tripled % 3, 0, "queries, keys and values of one width");
        let width = tripled / 3;
        Self { batch, tokens, width, n: vector(width) }
    }

    /// `sum_t(phi(x_t) * y_t)` of each image, `[batch, width]` in f32. Each of `x` and `y` is a third of a tensor of queries, keys and
    /// values, counted from 0, or a tensor of one width.
    fn token_sum(self, x: &CubeTensor, x_third: usize, y: &CubeTensor, y_third: usize, kernel: Kernel) -> CubeTensor {
        let Self { batch, tokens, width, n } = self;
        let vectors = width / n;
        let thirds = |tensor: &CubeTensor| tensor.shape()[2] / width;
        let (count, span) = pieces(tokens, TOKENS, PIECES);
        let rows = vectors.div_ceil(LANES).min(ROWS);
        let partial = empty(x, [batch * count, width], DType::F32);
        token_sums::launch(
            &x.client,
            grid(batch * count),
            workgroup(rows),
            address([x, y]),
            n,
            x.clone().into_buffer_arg(),
            y.clone().into_buffer_arg(),
            partial.clone().into_buffer_arg(),
            tokens,
            batch * count,
            count,
            span,
            [thirds(x), x_third, thirds(y), y_third],
            vectors,
            rows,
            kernel,
            element(x),
        );
        sum_pieces(partial, batch, count, width)
    }
}

/// A workgroup adds the tokens of a piece: first what phi needs of `rows` tokens, then their products, vector by vector of the width.
#[cube(launch, address_type = "dynamic")]
fn token_sums<F: Float, N: Size>(
    x: &[Vector<F, N>],
    y: &[Vector<F, N>],
    partial: &mut [Vector<f32, N>],
    tokens: usize,
    all: usize,
    count: usize,
    span: usize,
    #[comptime] places: [usize; 4],
    #[comptime] vectors: usize,
    #[comptime] rows: usize,
    #[comptime] kernel: Kernel,
    #[define(F)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(rows * LANES);
    let mut scales = Shared::<[f32]>::new_slice(rows);
    let mut shifts = Shared::<[f32]>::new_slice(rows);
    let units = comptime!(rows * LANES);
    let slots = comptime!(vectors.div_ceil(units));
    let piece = min(CUBE_POS, all - 1);
    let image = piece / count;
    let mut token = piece % count * span;
    let to = min(token + span, tokens);
    let x_first = (image * tokens * comptime!(places[0]) + comptime!(places[1])) * vectors;
    let y_first = (image * tokens * comptime!(places[2]) + comptime!(places[3])) * vectors;
    let x_row = comptime!(places[0] * vectors);
    let y_row = comptime!(places[2] * vectors);

    let mut sums = Array::<Vector<f32, N>>::new(slots);
    #[unroll]
    for slot in 0..slots {
        sums[slot] = Vector::new(0.0);
    }
    while token < to {
        let own = min(token + UNIT_POS_Y as usize, to - 1);
        let of_row = statistics::<F, N>(x, x_first + own * x_row, vectors, kernel, &mut scratch);
        // Whoever is late still reads those of the rows before.
        sync_cube();
        if UNIT_POS_X == 0 {
            scales[UNIT_POS_Y as usize] = of_row.scale;
            shifts[UNIT_POS_Y as usize] = of_row.shift;
        }
        sync_cube();
        for row in 0..rows {
            if token + row < to {
                let of_row = Statistics { scale: scales[row], shift: shifts[row] };
                #[unroll]
                for slot in 0..slots {
                    let i = slot * units + UNIT_POS as usize;
                    if i < vectors {
                        let value = Vector::<f32, N>::cast_from(x[x_first + (token + row) * x_row + i]);
                        let other = Vector::<f32, N>::cast_from(y[y_first + (token + row) * y_row + i]);
                        sums[slot] += phi::<N>(value, &of_row, kernel) * other;
                    }
                }
            }
        }
        token += rows;
    }
    #[unroll]
    for slot in 0..slots {
        let i = slot * units + UNIT_POS as usize;
        if i < vectors && CUBE_POS < all {
            partial[CUBE_POS * vectors + i] = sums[slot];
        }
    }
}

/// `phi(q) * summary`, a token for each height of units.
#[cube(launch, address_type = "dynamic")]
fn gate<F: Float, N: Size>(
    qkv: &[Vector<F, N>],
    summary: &[Vector<f32, N>],
    out: &mut [Vector<F, N>],
    tokens: usize,
    all: usize,
    #[comptime] vectors: usize,
    #[comptime] kernel: Kernel,
    #[define(F)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(ROWS * LANES);
    let row = CUBE_POS * ROWS + UNIT_POS_Y as usize;
    let own = min(row, all - 1);
    let first = own * 3 * vectors;
    let of_row = statistics::<F, N>(qkv, first, vectors, kernel, &mut scratch);
    if row < all {
        let image = row / tokens;
        let mut i = UNIT_POS_X as usize;
        while i < vectors {
            let value = Vector::<f32, N>::cast_from(qkv[first + i]);
            out[row * vectors + i] = Vector::cast_from(phi::<N>(value, &of_row, kernel) * summary[image * vectors + i]);
            i += LANES;
        }
    }
}

/// The gradient of a token's query, key and value, a token for each height of units.
#[cube(launch, address_type = "dynamic")]
fn gate_backward<F: Float, N: Size>(
    qkv: &[Vector<F, N>],
    gradient: &[Vector<F, N>],
    summary: &[Vector<f32, N>],
    summary_gradient: &[Vector<f32, N>],
    out: &mut [Vector<F, N>],
    tokens: usize,
    all: usize,
    #[comptime] vectors: usize,
    #[comptime] kernel: Kernel,
    #[define(F)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(ROWS * LANES);
    let row = CUBE_POS * ROWS + UNIT_POS_Y as usize;
    let own = min(row, all - 1);
    let sums = own / tokens * vectors;
    let query = own * 3 * vectors;
    let key = query + vectors;
    let value = key + vectors;
    let upstream = own * vectors;

    let of_query = statistics::<F, N>(qkv, query, vectors, kernel, &mut scratch);
    let of_key = statistics::<F, N>(qkv, key, vectors, kernel, &mut scratch);
    let mut query_along = 0.0f32;
    let mut key_along = 0.0f32;
    if comptime!(along(kernel)) {
        let mut i = UNIT_POS_X as usize;
        while i < vectors {
            let q = phi::<N>(Vector::cast_from(qkv[query + i]), &of_query, kernel);
            let k = phi::<N>(Vector::cast_from(qkv[key + i]), &of_key, kernel);
            let g = Vector::<f32, N>::cast_from(gradient[upstream + i]);
            let v = Vector::<f32, N>::cast_from(qkv[value + i]);
            query_along += sum_of_vector::<N>(q * g * summary[sums + i]);
            key_along += sum_of_vector::<N>(k * v * summary_gradient[sums + i]);
            i += LANES;
        }
        query_along = sum_of_lanes(query_along, &mut scratch);
        key_along = sum_of_lanes(key_along, &mut scratch);
    }
    if row < all {
        let mut i = UNIT_POS_X as usize;
        while i < vectors {
            let q = Vector::<f32, N>::cast_from(qkv[query + i]);
            let k = Vector::<f32, N>::cast_from(qkv[key + i]);
            let v = Vector::<f32, N>::cast_from(qkv[value + i]);
            let g = Vector::<f32, N>::cast_from(gradient[upstream + i]);
            let dq = phi_backward::<N>(q, g * summary[sums + i], &of_query, query_along, kernel);
            let dk = phi_backward::<N>(k, v * summary_gradient[sums + i], &of_key, key_along, kernel);
            let dv = phi::<N>(k, &of_key, kernel) * summary_gradient[sums + i];
            out[query + i] = Vector::cast_from(dq);
            out[key + i] = Vector::cast_from(dk);
            out[value + i] = Vector::cast_from(dv);
            i += LANES;
        }
    }
}
