//! The passes of an optimizer on GPUs.

use super::rows::{LANES, ROWS, sum_of_lanes, sum_of_vector, workgroup};
use super::sums::{pieces, sum_pieces};
use super::tensor::{address, empty, grid, in_order, rows, vector};
use crate::ops::{AdamW, AdamWOps};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Vectors that share a piece of a sum of squares, and pieces.
const SPAN: usize = 8 * LANES * ROWS;
const PIECES: usize = 256;

impl AdamWOps for CubeBackend {
    fn adamw_step(
        values: CubeTensor,
        gradient: CubeTensor,
        first: CubeTensor,
        second: CubeTensor,
        numbers: AdamW,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let AdamW { betas: [beta1, beta2], epsilon, learning_rate, weight_decay, correction1, correction2 } = numbers;
        let gradient = in_order(gradient);
        let [values, first, second] = [values, first, second].map(own);
        let (_, count) = rows(&values);
        let n = vector(count);
        if count > 0 {
            step_kernel::launch(
                &values.client.clone(),
                grid((count / n).div_ceil(LANES * ROWS)),
                workgroup(ROWS),
                address([&values]),
                n,
                gradient.into_buffer_arg(),
                values.clone().into_buffer_arg(),
                first.clone().into_buffer_arg(),
                second.clone().into_buffer_arg(),
                count / n,
                beta1 as f32,
                beta2 as f32,
                (1.0 - beta1) as f32,
                (1.0 - beta2) as f32,
                epsilon as f32,
                correction2.recip() as f32,
                (1.0 - learning_rate * weight_decay) as f32,
                (learning_rate / correction1) as f32,
            );
        }
        (values, first, second)
    }

    fn sum_of_squares(x: CubeTensor) -> CubeTensor {
        let x = in_order(x);
        let (_, count) = rows(&x);
        let n = vector(count);
        let (parts, span) = pieces(count / n, SPAN, PIECES);
        let partial = empty(&x, [parts, 1], DType::F32);
        squares_kernel::launch(
            &x.client.clone(),
            grid(parts),
            workgroup(ROWS),
            address([&x]),
            n,
            x.into_buffer_arg(),
            partial.clone().into_buffer_arg(),
            count / n,
            parts,
            span,
        );
        reshape(sum_pieces(partial, 1, parts, 1), [1].into())
    }
}

/// `tensor` in memory that nothing else refers to.
fn own(tensor: CubeTensor) -> CubeTensor {
    let tensor = in_order(tensor);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

#[cube(launch, address_type = "dynamic")]
fn step_kernel<N: Size>(
    gradient: &[Vector<f32, N>],
    values: &mut [Vector<f32, N>],
    first: &mut [Vector<f32, N>],
    second: &mut [Vector<f32, N>],
    all: usize,
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    epsilon: f32,
    correction: f32,
    keep: f32,
    rate: f32,
) {
    let place = CUBE_POS * (LANES * ROWS) + UNIT_POS as usize;
    if place < all {
        let g = gradient[place];
        let m = first[place] * Vector::new(beta1) + g * Vector::new(rest1);
        let v = second[place] * Vector::new(beta2) + g * g * Vector::new(rest2);
        let denominator = v.sqrt() * Vector::new(correction) + Vector::new(epsilon);
        first[place] = m;
        second[place] = v;
        values[place] = values[place] * Vector::new(keep) - m / denominator * Vector::new(rate);
    }
}

/// A workgroup adds a piece: each unit every so many vectors of it, then each row of units, then the first unit the rows.
#[cube(launch, address_type = "dynamic")]
fn squares_kernel<N: Size>(x: &[Vector<f32, N>], partial: &mut [f32], all: usize, parts: usize, span: usize) {
    let mut scratch = Shared::<[f32]>::new_slice(LANES * ROWS);
    let to = min((CUBE_POS + 1) * span, all);
    let mut i = CUBE_POS * span + UNIT_POS as usize;
    let mut sum = Vector::<f32, N>::new(0.0);
    while i < to {
        sum += x[i] * x[i];
        i += LANES * ROWS;
    }
    let of_row = sum_of_lanes(sum_of_vector::<N>(sum), &mut scratch);
    sync_cube();
    if UNIT_POS_X == 0 {
        scratch[UNIT_POS_Y as usize] = of_row;
    }
    sync_cube();
    if UNIT_POS == 0 && CUBE_POS < parts {
        let mut total = scratch[0];
        #[unroll]
        for row in 1..ROWS {
            total += scratch[row];
        }
        partial[CUBE_POS] = total;
    }
}
