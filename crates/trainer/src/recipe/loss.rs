//! The losses, against soft targets; and what logits say of a label.

use burn::tensor::Tensor;
use manyheads_model::ops::{Loss, loss_sum, loss_sum_plain};

/// Sum over the batch of −Σ_c target_c · log softmax(logits)_c. `logits` and `targets` are `[B, classes]`; the result is `[1]`.
///
/// A sum, not a mean: the caller divides by the number of images in the step, so that batches of any size accumulate exactly.
/// `fused`: in one pass, where the device has that form.
pub fn soft_cross_entropy_sum(logits: Tensor<2>, targets: Tensor<2>, fused: bool) -> Tensor<1> {
    form(fused)(logits, targets, Loss::SoftCrossEntropy)
}

/// Sum over the batch of the mean over classes of the binary cross-entropy of each logit, as `torch.nn.BCEWithLogitsLoss` has it.
/// `logits` and `targets` are `[B, classes]`; the result is `[1]`.
pub fn binary_cross_entropy_sum(logits: Tensor<2>, targets: Tensor<2>, fused: bool) -> Tensor<1> {
    form(fused)(logits, targets, Loss::BinaryCrossEntropy)
}

fn form(fused: bool) -> fn(Tensor<2>, Tensor<2>, Loss) -> Tensor<1> {
    if fused { loss_sum } else { loss_sum_plain }
}

/// Classes ranked before `class` among `logits`: 0 counts for top-1, up to 4 for top-5. Of equal logits the lower class ranks
/// first, as in a stable descending sort.
pub fn rank(logits: &[f32], class: usize) -> usize {
    let mine = logits[class];
    logits.iter().enumerate().filter(|(other, value)| **value > mine || (**value == mine && *other < class)).count()
}

/// −log softmax(logits) at `class`, computed on the host in f64.
pub fn softmax_loss(logits: &[f32], class: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = logits.iter().map(|v| (*v as f64 - max).exp()).sum();
    max + sum.ln() - logits[class] as f64
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn cross_entropy_equals_its_formula() {
        let device = Device::flex();
        let logits = [[1.0f32, -2.0, 0.5], [100.0, 3.0, -50.0]];
        let t = [0.1f32, 0.8, 0.1, 0.8, 0.1, 0.1];
        let targets = Tensor::from_data(TensorData::new(t.to_vec(), [2, 3]), &device);
        let [fused, loss]: [f32; 2] = [true, false]
            .map(|fused| soft_cross_entropy_sum(Tensor::from_data(logits, &device), targets.clone(), fused).into_scalar());
        let mut expected = 0.0f64;
        for (row, t) in logits.iter().zip(t.chunks(3)) {
            let max = row.iter().copied().fold(f32::MIN, f32::max) as f64;
            let log_sum = max + row.iter().map(|v| (*v as f64 - max).exp()).sum::<f64>().ln();
            expected += row.iter().zip(t).map(|(v, t)| *t as f64 * (log_sum - *v as f64)).sum::<f64>();
        }
        for loss in [fused, loss] {
            assert!((loss as f64 / expected - 1.0).abs() < 1e-6, "{loss} is not {expected}");
        }
    }

    #[test]
    fn binary_cross_entropy_equals_its_formula() {
        let device = Device::flex();
        let (x, t) = ([[1.0f32, -2.0, 0.0], [90.0, -90.0, 3.0]], [[1.0f32, 0.0, 1.0], [1.0, 1.0, 0.5]]);
        let [fused, loss]: [f32; 2] = [true, false].map(|fused| {
            binary_cross_entropy_sum(Tensor::from_data(x, &device), Tensor::from_data(t, &device), fused).into_scalar()
        });
        let mut expected = 0.0f64;
        for (x, t) in x.iter().flatten().zip(t.iter().flatten()) {
            let (x, t) = (f64::from(*x), f64::from(*t));
            expected += (t * (1.0 + (-x).exp()).ln() + (1.0 - t) * (1.0 + x.exp()).ln()) / 3.0;
        }
        for loss in [fused, loss] {
            assert!((f64::from(loss) / expected - 1.0).abs() < 1e-6, "{loss} is not {expected}");
        }
    }

    #[test]
    fn ranks_count_better_classes_and_lower_equal_ones() {
        assert_eq!(rank(&[0.0, 3.0, 1.0], 1), 0);
        assert_eq!(rank(&[0.0, 3.0, 1.0], 0), 2);
        assert_eq!(rank(&[1.0, 1.0, 1.0], 0), 0);
        assert_eq!(rank(&[1.0, 1.0, 1.0], 2), 2);
        assert!((softmax_loss(&[0.0, 0.0], 1) - 2f64.ln()).abs() < 1e-12);
        assert!(softmax_loss(&[1000.0, 0.0], 0).abs() < 1e-12, "large logits do not overflow");
    }
}
