//! Bias and GELU on GPUs.

use super::columns::{Columns, sum_of_heights};
use super::rows::{LANES, ROWS, workgroup};
use super::tensor::{address, element, empty_like, grid, in_order, rows, vector};
use crate::ops::GeluOps;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use std::f32::consts::{FRAC_1_SQRT_2, PI};

impl GeluOps for CubeBackend {
    fn bias_gelu(x: CubeTensor, bias: CubeTensor) -> CubeTensor {
        let (x, bias) = (in_order(x), in_order(bias));
        let (rows, width) = rows(&x);
        let out = empty_like(&x);
        let n = vector(width);
        let all = rows * width / n;
        if all > 0 {
            bias_gelu_kernel::launch(
                &x.client.clone(),
                grid(all.div_ceil(LANES * ROWS)),
                workgroup(ROWS),
                address([&x]),
                n,
                x.clone().into_buffer_arg(),
                bias.into_buffer_arg(),
                out.clone().into_buffer_arg(),
                all,
                width / n,
                element(&x),
            );
        }
        out
    }

    fn bias_gelu_backward(x: CubeTensor, bias: CubeTensor, gradient: CubeTensor) -> (CubeTensor, CubeTensor) {
        let (x, bias, gradient) = (in_order(x), in_order(bias), in_order(gradient));
        let (rows, width) = rows(&x);
        let n = vector(width);
        let columns = Columns::of(rows, width, n);
        let (out, partial) = (empty_like(&x), columns.partial(&x));
        bias_gelu_backward_kernel::launch(
            &x.client.clone(),
            columns.grid(),
            workgroup(ROWS),
            address([&x]),
            n,
            x.clone().into_buffer_arg(),
            bias.into_buffer_arg(),
            gradient.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            partial.clone().into_buffer_arg(),
            columns.rows,
            columns.pieces,
            columns.span,
            columns.blocks,
            width / n,
            element(&x),
        );
        (out, columns.total(partial))
    }
}

#[cube(launch, address_type = "dynamic")]
fn bias_gelu_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    bias: &[Vector<f32, N>],
    out: &mut [Vector<F, N>],
    all: usize,
    #[comptime] vectors: usize,
    #[define(F)] _element: ElemType,
) {
    let place = CUBE_POS * (LANES * ROWS) + UNIT_POS as usize;
    if place < all {
        let u = Vector::<f32, N>::cast_from(x[place]) + bias[place % vectors];
        out[place] = Vector::cast_from(u * normal::<N>(u));
    }
}

#[cube(launch, address_type = "dynamic")]
fn bias_gelu_backward_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    bias: &[Vector<f32, N>],
    gradient: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    partial: &mut [Vector<f32, N>],
    rows: usize,
    pieces: usize,
    span: usize,
    blocks: usize,
    #[comptime] vectors: usize,
    #[define(F)] _element: ElemType,
) {
    let mut shares = Shared::<[Vector<f32, N>]>::new_slice(LANES * ROWS);
    let piece = CUBE_POS / blocks;
    let column = CUBE_POS % blocks * LANES + UNIT_POS_X as usize;
    let mut sum = Vector::<f32, N>::new(0.0);
    if column < vectors {
        let to = min((piece + 1) * span, rows);
        let mut row = piece * span + UNIT_POS_Y as usize;
        let shift = bias[column];
        while row < to {
            let place = row * vectors + column;
            let u = Vector::<f32, N>::cast_from(x[place]) + shift;
            let density = (u * u * Vector::new(-0.5)).exp() * Vector::new(comptime!(1.0 / (2.0 * PI).sqrt()));
            let slope = Vector::<f32, N>::cast_from(gradient[place]) * (normal::<N>(u) + u * density);
            out[place] = Vector::cast_from(slope);
            sum += slope;
            row += ROWS;
        }
    }
    let total = sum_of_heights::<N>(sum, &mut shares);
    if UNIT_POS_Y == 0 && column < vectors && piece < pieces {
        partial[piece * vectors + column] = total;
    }
}

/// The normal distribution function.
#[cube]
fn normal<N: Size>(u: Vector<f32, N>) -> Vector<f32, N> {
    ((u * Vector::new(FRAC_1_SQRT_2)).erf() + Vector::new(1.0)) * Vector::new(0.5)
}
