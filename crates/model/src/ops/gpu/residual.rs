//! The end of a residual branch on GPUs.

use super::columns::{Columns, sum_of_heights};
use super::rows::{LANES, ROWS, workgroup};
use super::tensor::{address, element, empty_like, grid, in_order, rows, vector};
use crate::ops::{ResidualOps, Skip};
use burn::backend::TensorMetadata;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl ResidualOps for CubeBackend {
    fn residual(x: CubeTensor, branch: CubeTensor, bias: CubeTensor, _: Skip) -> CubeTensor {
        sum(x, branch, bias, None)
    }

    fn residual_scaled(
        x: CubeTensor,
        branch: CubeTensor,
        bias: CubeTensor,
        features: CubeTensor,
        samples: CubeTensor,
        _: Skip,
    ) -> CubeTensor {
        sum(x, branch, bias, Some((features, samples)))
    }

    fn residual_backward(gradient: CubeTensor) -> CubeTensor {
        let gradient = in_order(gradient);
        let (rows, width) = rows(&gradient);
        let n = vector(width);
        let columns = Columns::of(rows, width, n);
        let partial = columns.partial(&gradient);
        column_sums_kernel::launch(
            &gradient.client.clone(),
            columns.grid(),
            workgroup(ROWS),
            address([&gradient]),
            n,
            gradient.clone().into_buffer_arg(),
            partial.clone().into_buffer_arg(),
            columns.rows,
            columns.pieces,
            columns.span,
            columns.blocks,
            width / n,
            element(&gradient),
        );
        columns.total(partial)
    }

    fn residual_scaled_backward(
        branch: CubeTensor,
        bias: CubeTensor,
        features: CubeTensor,
        samples: CubeTensor,
        gradient: CubeTensor,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let (out, columns, of_bias, of_features) = scaled_backward(Some((branch, bias)), features, samples, gradient);
        (out, columns.total(of_bias), columns.total(of_features))
    }

    fn residual_samples_backward(features: CubeTensor, samples: CubeTensor, gradient: CubeTensor) -> (CubeTensor, CubeTensor) {
        let (out, columns, of_bias, _) = scaled_backward(None, features, samples, gradient);
        (out, columns.total(of_bias))
    }
}

fn sum(x: CubeTensor, branch: CubeTensor, bias: CubeTensor, scales: Option<(CubeTensor, CubeTensor)>) -> CubeTensor {
    let (x, branch, bias) = (in_order(x), in_order(branch), in_order(bias));
    let (_, width) = rows(&x);
    let tokens = x.shape()[1];
    let n = vector(width);
    let out = empty_like(&x);
    let all = x.shape().num_elements() / n;
    if all == 0 {
        return out;
    }
    let scaled = scales.is_some();
    // Without scales the bias takes their places, which are not read.
    let (features, samples) =
        scales.map_or((bias.clone(), bias.clone()), |(features, samples)| (in_order(features), in_order(samples)));
    residual_kernel::launch(
        &x.client.clone(),
        grid(all.div_ceil(LANES * ROWS)),
        workgroup(ROWS),
        address([&x]),
        n,
        x.clone().into_buffer_arg(),
        branch.into_buffer_arg(),
        bias.into_buffer_arg(),
        features.into_buffer_arg(),
        samples.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        all,
        tokens,
        scaled,
        width / n,
        element(&x),
    );
    out
}

/// The gradient of the branch, and sums of pieces for those of the bias and of the features; the latter are without values where there is
/// no branch to compute them from.
fn scaled_backward(
    branch: Option<(CubeTensor, CubeTensor)>,
    features: CubeTensor,
    samples: CubeTensor,
    gradient: CubeTensor,
) -> (CubeTensor, Columns, CubeTensor, CubeTensor) {
    let (features, samples, gradient) = (in_order(features), in_order(samples), in_order(gradient));
    let (rows, width) = rows(&gradient);
    let tokens = gradient.shape()[1];
    let n = vector(width);
    let columns = Columns::of(rows, width, n);
    let out = empty_like(&gradient);
    let (of_bias, of_features) = (columns.partial(&gradient), columns.partial(&gradient));
    let learned = branch.is_some();
    let (branch, bias) = branch.map_or((gradient.clone(), features.clone()), |(branch, bias)| (in_order(branch), in_order(bias)));
    scaled_backward_kernel::launch(
        &gradient.client.clone(),
        columns.grid(),
        workgroup(ROWS),
        address([&gradient]),
        n,
        branch.into_buffer_arg(),
        bias.into_buffer_arg(),
        features.into_buffer_arg(),
        samples.into_buffer_arg(),
        gradient.clone().into_buffer_arg(),
        out.clone().into_buffer_arg(),
        of_bias.clone().into_buffer_arg(),
        of_features.clone().into_buffer_arg(),
        columns.rows,
        columns.pieces,
        columns.span,
        columns.blocks,
        tokens,
        learned,
        width / n,
        element(&gradient),
    );
    (out, columns, of_bias, of_features)
}

#[cube(launch, address_type = "dynamic")]
fn residual_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    branch: &[Vector<F, N>],
    bias: &[Vector<f32, N>],
    features: &[Vector<f32, N>],
    samples: &[f32],
    out: &mut [Vector<F, N>],
    all: usize,
    tokens: usize,
    #[comptime] scaled: bool,
    #[comptime] vectors: usize,
    #[define(F)] _element: ElemType,
) {
    let place = CUBE_POS * (LANES * ROWS) + UNIT_POS as usize;
    if place < all {
        let column = place % vectors;
        let mut added = Vector::<f32, N>::cast_from(branch[place]) + bias[column];
        if scaled {
            added = added * features[column] * Vector::new(samples[place / vectors / tokens]);
        }
        out[place] = Vector::cast_from(Vector::<f32, N>::cast_from(x[place]) + added);
    }
}

#[cube(launch, address_type = "dynamic")]
fn column_sums_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
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
        while row < to {
            sum += Vector::<f32, N>::cast_from(x[row * vectors + column]);
            row += ROWS;
        }
    }
    let total = sum_of_heights::<N>(sum, &mut shares);
    if UNIT_POS_Y == 0 && column < vectors && piece < pieces {
        partial[piece * vectors + column] = total;
    }
}

#[cube(launch, address_type = "dynamic")]
fn scaled_backward_kernel<F: Float, N: Size>(
    branch: &[Vector<F, N>],
    bias: &[Vector<f32, N>],
    features: &[Vector<f32, N>],
    samples: &[f32],
    gradient: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    of_bias: &mut [Vector<f32, N>],
    of_features: &mut [Vector<f32, N>],
    rows: usize,
    pieces: usize,
    span: usize,
    blocks: usize,
    tokens: usize,
    #[comptime] learned: bool,
    #[comptime] vectors: usize,
    #[define(F)] _element: ElemType,
) {
    let mut shares = Shared::<[Vector<f32, N>]>::new_slice(LANES * ROWS);
    let piece = CUBE_POS / blocks;
    let column = CUBE_POS % blocks * LANES + UNIT_POS_X as usize;
    let mut sum = Vector::<f32, N>::new(0.0);
    let mut along = Vector::<f32, N>::new(0.0);
    if column < vectors {
        let to = min((piece + 1) * span, rows);
        let mut row = piece * span + UNIT_POS_Y as usize;
        let feature = features[column];
        while row < to {
            let place = row * vectors + column;
            let slope = Vector::<f32, N>::cast_from(gradient[place]) * Vector::new(samples[row / tokens]);
            out[place] = Vector::cast_from(slope * feature);
            sum += slope * feature;
            if learned {
                along += slope * (Vector::<f32, N>::cast_from(branch[place]) + bias[column]);
            }
            row += ROWS;
        }
    }
    let total = sum_of_heights::<N>(sum, &mut shares);
    let total_along = sum_of_heights::<N>(along, &mut shares);
    if UNIT_POS_Y == 0 && column < vectors && piece < pieces {
        of_bias[piece * vectors + column] = total;
        if learned {
            of_features[piece * vectors + column] = total_along;
        }
    }
}
