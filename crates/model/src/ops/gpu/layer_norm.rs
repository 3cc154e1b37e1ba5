//! Layer norm on GPUs.

use super::rows::{LANES, ROWS, sum_of_lanes, sum_of_vector, workgroup};
use super::sums::{pieces, sum_pieces};
use super::tensor::{address, element, empty, empty_like, grid, in_order, rows, vector};
use crate::ops::{LayerNormOps, Skip};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Rows that share a piece of the gradients of gamma and beta, and pieces.
const SPAN: usize = 16;
const PIECES: usize = 1024;

impl LayerNormOps for CubeBackend {
    fn normalise(x: CubeTensor, gamma: CubeTensor, beta: CubeTensor, epsilon: f64, _: Skip) -> CubeTensor {
        let (x, gamma, beta) = (in_order(x), in_order(gamma), in_order(beta));
        let (rows, width) = rows(&x);
        let n = vector(width);
        let out = empty_like(&x);
        if rows > 0 {
            normalise_kernel::launch(
                &x.client.clone(),
                grid(rows.div_ceil(ROWS)),
                workgroup(ROWS),
                address([&x]),
                n,
                x.clone().into_buffer_arg(),
                gamma.into_buffer_arg(),
                beta.into_buffer_arg(),
                out.clone().into_buffer_arg(),
                rows,
                epsilon as f32,
                width / n,
                element(&x),
            );
        }
        out
    }

    fn normalise_backward(
        x: CubeTensor,
        gamma: CubeTensor,
        gradient: CubeTensor,
        epsilon: f64,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        backward(x, gamma, gradient, None, epsilon)
    }

    fn normalise_backward_add(
        x: CubeTensor,
        gamma: CubeTensor,
        gradient: CubeTensor,
        past: CubeTensor,
        epsilon: f64,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        backward(x, gamma, gradient, Some(past), epsilon)
    }
}

fn backward(
    x: CubeTensor,
    gamma: CubeTensor,
    gradient: CubeTensor,
    past: Option<CubeTensor>,
    epsilon: f64,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let (x, gamma, gradient, past) = (in_order(x), in_order(gamma), in_order(gradient), past.map(in_order));
    let (rows, width) = rows(&x);
    let n = vector(width);
    let vectors = width / n;
    let height = vectors.div_ceil(LANES).min(ROWS);
    let (count, span) = pieces(rows, SPAN.next_multiple_of(height), PIECES);
    let out = empty_like(&x);
    let [of_gamma, of_beta] = [(); 2].map(|()| empty(&x, [count, width], DType::F32));
    let with_past = past.is_some();
    normalise_backward_kernel::launch(
        &x.client.clone(),
        grid(count),
        workgroup(height),
        address([&x]),
        n,
        x.clone().into_buffer_arg(),
        gamma.into_buffer_arg(),
        gradient.clone().into_buffer_arg(),
        // Without a gradient that goes past, its place is taken by one that is not read there.
        past.unwrap_or(gradient).into_buffer_arg(),
        out.clone().into_buffer_arg(),
        of_gamma.clone().into_buffer_arg(),
        of_beta.clone().into_buffer_arg(),
        rows,
        count,
        span,
        epsilon as f32,
        with_past,
        vectors,
        height,
        element(&x),
    );
    let total = |partial| reshape(sum_pieces(partial, 1, count, width), [width].into());
    (out, total(of_gamma), total(of_beta))
}

/// Mean of a row and the reciprocal of its deviation.
#[derive(CubeType, Clone, Copy)]
struct Moments {
    mean: f32,
    inverse: f32,
}

/// The moments of the row that begins at `first`, for each of the lanes that share it: the mean first, for a difference of large squares
/// has no digits. All units of a workgroup have to come here together.
#[cube]
fn moments<F: Float, N: Size>(
    x: &[Vector<F, N>],
    first: usize,
    epsilon: f32,
    #[comptime] vectors: usize,
    scratch: &mut Shared<[f32]>,
) -> Moments {
    let n = N::value();
    let share = comptime!(1.0 / (vectors * n) as f32);
    let mut sum = Vector::<f32, N>::new(0.0);
    let mut i = UNIT_POS_X as usize;
    while i < vectors {
        sum += Vector::<f32, N>::cast_from(x[first + i]);
        i += LANES;
    }
    let mean = sum_of_lanes(sum_of_vector::<N>(sum), scratch) * share;
    let mut square = Vector::<f32, N>::new(0.0);
    let mut i = UNIT_POS_X as usize;
    while i < vectors {
        let apart = Vector::<f32, N>::cast_from(x[first + i]) - Vector::new(mean);
        square += apart * apart;
        i += LANES;
    }
    let variance = sum_of_lanes(sum_of_vector::<N>(square), scratch) * share;
    Moments { mean, inverse: 1.0 / (variance + epsilon).sqrt() }
}

/// A row for each height of units.
#[cube(launch, address_type = "dynamic")]
fn normalise_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    gamma: &[Vector<f32, N>],
    beta: &[Vector<f32, N>],
    out: &mut [Vector<F, N>],
    rows: usize,
    epsilon: f32,
    #[comptime] vectors: usize,
    #[define(F)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(ROWS * LANES);
    let row = CUBE_POS * ROWS + UNIT_POS_Y as usize;
    let first = min(row, rows - 1) * vectors;
    let of_row = moments::<F, N>(x, first, epsilon, vectors, &mut scratch);
    if row < rows {
        let mut i = UNIT_POS_X as usize;
        while i < vectors {
            let apart = Vector::<f32, N>::cast_from(x[first + i]) - Vector::new(of_row.mean);
            out[first + i] = Vector::cast_from(apart * Vector::new(of_row.inverse) * gamma[i] + beta[i]);
            i += LANES;
        }
    }
}

/// A workgroup takes a piece of the rows, `height` at a time: first the gradient of each row, then all units the shares of those rows in
/// the gradients of gamma and beta, vector by vector of the width.
#[cube(launch, address_type = "dynamic")]
fn normalise_backward_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    gamma: &[Vector<f32, N>],
    gradient: &[Vector<F, N>],
    past: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    of_gamma: &mut [Vector<f32, N>],
    of_beta: &mut [Vector<f32, N>],
    rows: usize,
    count: usize,
    span: usize,
    epsilon: f32,
    #[comptime] with_past: bool,
    #[comptime] vectors: usize,
    #[comptime] height: usize,
    #[define(F)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(height * LANES);
    let mut means = Shared::<[f32]>::new_slice(height);
    let mut inverses = Shared::<[f32]>::new_slice(height);
    let units = comptime!(height * LANES);
    let slots = comptime!(vectors.div_ceil(units));
    let n = N::value();
    let share = comptime!(1.0 / (vectors * n) as f32);
    let mut row = CUBE_POS * span;
    let to = min(row + span, rows);

    let mut gammas = Array::<Vector<f32, N>>::new(slots);
    let mut betas = Array::<Vector<f32, N>>::new(slots);
    #[unroll]
    for slot in 0..slots {
        gammas[slot] = Vector::new(0.0);
        betas[slot] = Vector::new(0.0);
    }
    while row < to {
        let own = row + UNIT_POS_Y as usize;
        let first = min(own, to - 1) * vectors;
        let of_row = moments::<F, N>(x, first, epsilon, vectors, &mut scratch);
        let mean = Vector::<f32, N>::new(of_row.mean);
        let inverse = Vector::<f32, N>::new(of_row.inverse);
        let mut sum = Vector::<f32, N>::new(0.0);
        let mut along = Vector::<f32, N>::new(0.0);
        let mut i = UNIT_POS_X as usize;
        while i < vectors {
            let slope = Vector::<f32, N>::cast_from(gradient[first + i]) * gamma[i];
            sum += slope;
            along += slope * (Vector::<f32, N>::cast_from(x[first + i]) - mean) * inverse;
            i += LANES;
        }
        let sum = Vector::<f32, N>::new(sum_of_lanes(sum_of_vector::<N>(sum), &mut scratch) * share);
        let along = Vector::<f32, N>::new(sum_of_lanes(sum_of_vector::<N>(along), &mut scratch) * share);
        if own < to {
            let mut i = UNIT_POS_X as usize;
            while i < vectors {
                let slope = Vector::<f32, N>::cast_from(gradient[first + i]) * gamma[i];
                let unit = (Vector::<f32, N>::cast_from(x[first + i]) - mean) * inverse;
                let mut of_x = (slope - sum - unit * along) * inverse;
                if with_past {
                    of_x += Vector::<f32, N>::cast_from(past[first + i]);
                }
                out[first + i] = Vector::cast_from(of_x);
                i += LANES;
            }
        }
        if UNIT_POS_X == 0 {
            means[UNIT_POS_Y as usize] = of_row.mean;
            inverses[UNIT_POS_Y as usize] = of_row.inverse;
        }
        sync_cube();
        for other in 0..height {
            if row + other < to {
                let mean = Vector::<f32, N>::new(means[other]);
                let inverse = Vector::<f32, N>::new(inverses[other]);
                #[unroll]
                for slot in 0..slots {
                    let i = slot * units + UNIT_POS as usize;
                    if i < vectors {
                        let place = (row + other) * vectors + i;
                        let slope = Vector::<f32, N>::cast_from(gradient[place]);
                        gammas[slot] += slope * (Vector::<f32, N>::cast_from(x[place]) - mean) * inverse;
                        betas[slot] += slope;
                    }
                }
            }
        }
        row += height;
    }
    if CUBE_POS < count {
        #[unroll]
        for slot in 0..slots {
            let i = slot * units + UNIT_POS as usize;
            if i < vectors {
                of_gamma[CUBE_POS * vectors + i] = gammas[slot];
                of_beta[CUBE_POS * vectors + i] = betas[slot];
            }
        }
    }
}
