//! The losses, against soft targets; and what logits say of a label.

use burn::tensor::{Tensor, activation};

/// Sum over the batch of −Σ_c target_c · log softmax(logits)_c. `logits` and `targets` are `[B, classes]`; the result is `[1]`.
///
/// A sum, not a mean: the caller divides by the number of images in the step, so that batches of any size accumulate exactly.
pub fn soft_cross_entropy_sum(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    let rows = (activation::log_softmax(logits, 1) * targets).sum_dim(1);
    let [batch, _] = rows.dims();
    rows.reshape([1, batch]).sum_dim(1).reshape([1]).neg()
}

/// Sum over the batch of the mean over classes of the binary cross-entropy of each logit, as `torch.nn.BCEWithLogitsLoss` has it.
/// `logits` and `targets` are `[B, classes]`; the result is `[1]`.
pub fn binary_cross_entropy_sum(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    let [batch, classes] = logits.dims();
    // max(x, 0) − x t + ln(1 + e^−|x|): no exponential overflows.
    let smooth = (logits.clone().abs().neg().exp() + 1.0).log();
    let rows = (logits.clone().clamp_min(0.0) - logits * targets + smooth).sum_dim(1);
    rows.reshape([1, batch]).sum_dim(1).reshape([1]) / classes as f64
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
        let loss: f32 = soft_cross_entropy_sum(Tensor::from_data(logits, &device), targets).into_scalar();
        let mut expected = 0.0f64;
        for (row, t) in logits.iter().zip(t.chunks(3)) {
            let max = row.iter().copied().fold(f32::MIN, f32::max) as f64;
            let log_sum = max + row.iter().map(|v| (*v as f64 - max).exp()).sum::<f64>().ln();
            expected += row.iter().zip(t).map(|(v, t)| *t as f64 * (log_sum - *v as f64)).sum::<f64>();
        }
        assert!((loss as f64 / expected - 1.0).abs() < 1e-6, "{loss} is not {expected}");
    }

    #[test]
    fn binary_cross_entropy_equals_its_formula() {
        let device = Device::flex();
        let (x, t) = ([[1.0f32, -2.0, 0.0], [90.0, -90.0, 3.0]], [[1.0f32, 0.0, 1.0], [1.0, 1.0, 0.5]]);
        let loss: f32 = binary_cross_entropy_sum(Tensor::from_data(x, &device), Tensor::from_data(t, &device)).into_scalar();
        let mut expected = 0.0f64;
        for (x, t) in x.iter().flatten().zip(t.iter().flatten()) {
            let (x, t) = (f64::from(*x), f64::from(*t));
            expected += (t * (1.0 + (-x).exp()).ln() + (1.0 - t) * (1.0 + x.exp()).ln()) / 3.0;
        }
        assert!((f64::from(loss) / expected - 1.0).abs() < 1e-6, "{loss} is not {expected}");
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
