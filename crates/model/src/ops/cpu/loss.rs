//! Losses on the CPU. A batch of logits is small: one thread, with the sums of a row in f32 and that over rows in f64.

use super::math::{exp, max, sigmoid, sum, sum2};
use super::sums::total;
use super::tensor::{in_order, rows, tensor, values};
use super::vector::{inlined, run};
use crate::ops::{Loss, LossOps};
use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;

impl LossOps for Flex {
    fn loss_sum(logits: FlexTensor, targets: FlexTensor, loss: Loss) -> FlexTensor {
        let (logits, targets) = (in_order(logits), in_order(targets));
        let (_, classes) = rows(&logits.shape());
        let row = inlined(
            #[inline(always)]
            |(x, t): (&[f32], &[f32])| match loss {
                Loss::SoftCrossEntropy => cross_entropy(x, t),
                Loss::BinaryCrossEntropy => binary(x, t) / classes as f64,
            },
        );
        let pairs = values(&logits).chunks_exact(classes).zip(values(&targets).chunks_exact(classes));
        let total: f64 = pairs.map(|pair| run(&row, pair)).sum();
        tensor(vec![total as f32], Shape::new([1]))
    }

    fn loss_sum_backward(logits: FlexTensor, targets: FlexTensor, gradient: FlexTensor, loss: Loss) -> FlexTensor {
        let (logits, targets, gradient) = (in_order(logits), in_order(targets), in_order(gradient));
        let (_, classes) = rows(&logits.shape());
        let slope = values(&gradient)[0];
        let mut out = vec![0.0; values(&logits).len()];
        let row = inlined(
            #[inline(always)]
            |(out, x, t): (&mut [f32], &[f32], &[f32])| match loss {
                Loss::SoftCrossEntropy => {
                    let greatest = max(x);
                    for i in 0..classes {
                        out[i] = exp(x[i] - greatest);
                    }
                    let scale = total(t) / total(out);
                    for i in 0..classes {
                        out[i] = slope * (out[i] * scale - t[i]);
                    }
                }
                Loss::BinaryCrossEntropy => {
                    let slope = slope / classes as f32;
                    for i in 0..classes {
                        out[i] = slope * (sigmoid(x[i]) - t[i]);
                    }
                }
            },
        );
        let pairs = values(&logits).chunks_exact(classes).zip(values(&targets).chunks_exact(classes));
        for (out, (x, t)) in out.chunks_exact_mut(classes).zip(pairs) {
            run(&row, (out, x, t));
        }
        tensor(out, logits.shape())
    }
}

/// `sum_c t_c (ln sum e^x - x_c)`, with the greatest logit taken out of the exponentials.
#[inline(always)]
fn cross_entropy(x: &[f32], t: &[f32]) -> f64 {
    let greatest = max(x);
    let log_sum = f64::from(sum(x, |x| exp(x - greatest))).ln();
    let weight = f64::from(total(t));
    weight * log_sum - f64::from(sum2(x, t, |x, t| if t == 0.0 { 0.0 } else { t * (x - greatest) }))
}

/// `sum_c max(x, 0) - x t + ln(1 + e^-|x|)`.
#[inline(always)]
fn binary(x: &[f32], t: &[f32]) -> f64 {
    let linear = f64::from(sum2(x, t, |x, t| if x > 0.0 { x - x * t } else { -x * t }));
    // The logarithm is no vector function; a batch of logits has few of them.
    linear + x.iter().map(|x| f64::from(exp(-x.abs())).ln_1p()).sum::<f64>()
}
