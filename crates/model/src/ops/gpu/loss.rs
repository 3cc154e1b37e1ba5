//! Losses on GPUs.

use super::rows::{LANES, ROWS, max_of_lanes, sum_of_lanes, workgroup};
use super::sums::sum_pieces;
use super::tensor::{address, element, empty, empty_like, grid, in_order, rows};
use crate::ops::{Loss, LossOps};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl LossOps for CubeBackend {
    fn loss_sum(logits: CubeTensor, targets: CubeTensor, loss: Loss) -> CubeTensor {
        let (logits, targets) = (in_order(logits), in_order(targets));
        let (rows, classes) = rows(&logits);
        let losses = empty(&logits, [rows, 1], DType::F32);
        losses_kernel::launch(
            &logits.client.clone(),
            grid(rows.div_ceil(ROWS).max(1)),
            workgroup(ROWS),
            address([&logits]),
            logits.clone().into_buffer_arg(),
            targets.into_buffer_arg(),
            losses.clone().into_buffer_arg(),
            rows,
            classes,
            loss,
            element(&logits),
        );
        reshape(sum_pieces(losses, 1, rows, 1), [1].into())
    }

    fn loss_sum_backward(logits: CubeTensor, targets: CubeTensor, gradient: CubeTensor, loss: Loss) -> CubeTensor {
        let [logits, targets, gradient] = [logits, targets, gradient].map(in_order);
        let (rows, classes) = rows(&logits);
        let out = empty_like(&logits);
        if rows > 0 {
            losses_backward_kernel::launch(
                &logits.client.clone(),
                grid(rows.div_ceil(ROWS)),
                workgroup(ROWS),
                address([&logits]),
                logits.clone().into_buffer_arg(),
                targets.into_buffer_arg(),
                gradient.into_buffer_arg(),
                out.clone().into_buffer_arg(),
                rows,
                classes,
                loss,
                element(&logits),
            );
        }
        out
    }
}

/// The greatest logit of the row that begins at `first`, for each of the lanes that share it.
#[cube]
fn greatest_logit<F: Float>(logits: &[F], first: usize, classes: usize, scratch: &mut Shared<[f32]>) -> f32 {
    // Lanes without a class take the first: a maximum may count it twice.
    let mut greatest = f32::cast_from(logits[first]);
    let mut i = UNIT_POS_X as usize;
    while i < classes {
        greatest = max(greatest, f32::cast_from(logits[first + i]));
        i += LANES;
    }
    max_of_lanes(greatest, scratch)
}

/// The loss of a row for each height of units.
#[cube(launch, address_type = "dynamic")]
fn losses_kernel<F: Float>(
    logits: &[F],
    targets: &[F],
    losses: &mut [f32],
    rows: usize,
    classes: usize,
    #[comptime] loss: Loss,
    #[define(F)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(LANES * ROWS);
    let row = CUBE_POS * ROWS + UNIT_POS_Y as usize;
    let first = min(row, rows - 1) * classes;
    let mut value = 0.0f32;
    if comptime!(loss == Loss::SoftCrossEntropy) {
        let greatest = greatest_logit::<F>(logits, first, classes, &mut scratch);
        let mut exponentials = 0.0f32;
        let mut weight = 0.0f32;
        let mut along = 0.0f32;
        let mut i = UNIT_POS_X as usize;
        while i < classes {
            let apart = f32::cast_from(logits[first + i]) - greatest;
            let target = f32::cast_from(targets[first + i]);
            exponentials += apart.exp();
            weight += target;
            along += target * apart;
            i += LANES;
        }
        let exponentials = sum_of_lanes(exponentials, &mut scratch);
        let weight = sum_of_lanes(weight, &mut scratch);
        value = weight * exponentials.ln() - sum_of_lanes(along, &mut scratch);
    } else {
        let mut i = UNIT_POS_X as usize;
        while i < classes {
            let logit = f32::cast_from(logits[first + i]);
            let target = f32::cast_from(targets[first + i]);
            // No exponential overflows.
            value += max(logit, 0.0) - logit * target + (1.0 + (-logit.abs()).exp()).ln();
            i += LANES;
        }
        value = sum_of_lanes(value, &mut scratch) / f32::cast_from(classes);
    }
    if UNIT_POS_X == 0 && row < rows {
        losses[row] = value;
    }
}

/// The gradients of a row for each height of units.
#[cube(launch, address_type = "dynamic")]
fn losses_backward_kernel<F: Float>(
    logits: &[F],
    targets: &[F],
    gradient: &[F],
    out: &mut [F],
    rows: usize,
    classes: usize,
    #[comptime] loss: Loss,
    #[define(F)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(LANES * ROWS);
    let row = CUBE_POS * ROWS + UNIT_POS_Y as usize;
    let first = min(row, rows - 1) * classes;
    let slope = f32::cast_from(gradient[0]);
    let lane = UNIT_POS_X as usize;
    if comptime!(loss == Loss::SoftCrossEntropy) {
        let greatest = greatest_logit::<F>(logits, first, classes, &mut scratch);
        let mut exponentials = 0.0f32;
        let mut weight = 0.0f32;
        let mut i = lane;
        while i < classes {
            exponentials += (f32::cast_from(logits[first + i]) - greatest).exp();
            weight += f32::cast_from(targets[first + i]);
            i += LANES;
        }
        let exponentials = sum_of_lanes(exponentials, &mut scratch);
        let scale = sum_of_lanes(weight, &mut scratch) / exponentials;
        if row < rows {
            let mut i = lane;
            while i < classes {
                let exponential = (f32::cast_from(logits[first + i]) - greatest).exp();
                out[first + i] = F::cast_from(slope * (exponential * scale - f32::cast_from(targets[first + i])));
                i += LANES;
            }
        }
    } else if row < rows {
        let slope = slope / f32::cast_from(classes);
        let mut i = lane;
        while i < classes {
            let logit = f32::cast_from(logits[first + i]);
            let probability = 1.0 / (1.0 + (-logit).exp());
            out[first + i] = F::cast_from(slope * (probability - f32::cast_from(targets[first + i])));
            i += LANES;
        }
    }
}
