//! The passes of an optimizer on the CPU.

use super::pieces::{pieces, pieces3};
use super::sums::squares;
use super::tensor::{Reused, in_order, tensor, values};
use crate::ops::{AdamW, AdamWOps};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::Shape;

/// Values of a piece.
const PIECE: usize = 1 << 14;

impl AdamWOps for Flex {
    fn adamw_step(
        weights: FlexTensor,
        gradient: FlexTensor,
        first: FlexTensor,
        second: FlexTensor,
        numbers: AdamW,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let AdamW { betas: [beta1, beta2], epsilon, learning_rate, weight_decay, correction1, correction2 } = numbers;
        let (beta1, beta2, rest1, rest2) = (beta1 as f32, beta2 as f32, (1.0 - beta1) as f32, (1.0 - beta2) as f32);
        let (epsilon, correction2) = (epsilon as f32, correction2.recip() as f32);
        let (keep, rate) = ((1.0 - learning_rate * weight_decay) as f32, (learning_rate / correction1) as f32);
        let gradient = in_order(gradient);
        let gradient = values(&gradient);
        let [mut weights, mut first, mut second] = [weights, first, second].map(Reused::new);
        {
            let [(w, old_w), (m, old_m), (v, old_v)] = [&mut weights, &mut first, &mut second].map(Reused::parts);
            pieces3(
                [w, m, v],
                PIECE,
                #[inline(always)]
                |number, [w, m, v]| {
                    let from = number * PIECE;
                    let count = w.len();
                    for (new, old) in [(&mut *w, old_w), (&mut *m, old_m), (&mut *v, old_v)] {
                        if let Some(old) = old {
                            new.copy_from_slice(&old[from..][..count]);
                        }
                    }
                    let g = &gradient[from..][..count];
                    means(g, [beta1, beta2], [rest1, rest2], m, v);
                    step(w, m, v, [keep, rate], [correction2, epsilon]);
                },
            );
        }
        (weights.into_tensor(), first.into_tensor(), second.into_tensor())
    }

    fn sum_of_squares(x: FlexTensor) -> FlexTensor {
        let x = in_order(x);
        let input = values(&x);
        let mut parts = vec![0.0; input.len().div_ceil(PIECE).max(1)];
        // In f64 the rest of the way: a sum of many like parts loses digits in f32.
        pieces(
            &mut parts,
            1,
            #[inline(always)]
            |number, part: &mut [f32]| {
                let from = (number * PIECE).min(input.len());
                let to = (from + PIECE).min(input.len());
                part[0] = squares(&input[from..to], 0.0);
            },
        );
        let total: f64 = parts.iter().map(|part| f64::from(*part)).sum();
        tensor(vec![total as f32], Shape::new([1]))
    }
}

// Slices that are parameters are known not to overlap, without which a loop over several does not become vectors.

/// The new means of the gradient and of its square.
#[inline(always)]
fn means(g: &[f32], beta: [f32; 2], rest: [f32; 2], m: &mut [f32], v: &mut [f32]) {
    let count = g.len();
    let (m, v) = (&mut m[..count], &mut v[..count]);
    for i in 0..count {
        m[i] = m[i].mul_add(beta[0], g[i] * rest[0]);
        v[i] = v[i].mul_add(beta[1], g[i] * g[i] * rest[1]);
    }
}

/// `w * keep - rate * m / (sqrt(v) * correction + epsilon)`.
#[inline(always)]
fn step(w: &mut [f32], m: &[f32], v: &[f32], [keep, rate]: [f32; 2], [correction, epsilon]: [f32; 2]) {
    let count = w.len();
    let (m, v) = (&m[..count], &v[..count]);
    for i in 0..count {
        let denominator = v[i].sqrt().mul_add(correction, epsilon);
        w[i] = w[i] * keep - rate * (m[i] / denominator);
    }
}
