//! Cross-entropy against soft targets, and label smoothing as DeiT puts it into them.

use burn::tensor::{Device, Tensor, TensorData, activation};

/// Targets `[labels.len(), classes]` with label smoothing, as timm's `mixup_target` makes them:
/// smoothing / classes everywhere, and 1 − smoothing more at the label.
///
/// They are dense, because a gather's gradient adds in no fixed order on a GPU.
pub fn smooth_targets(labels: &[u32], classes: usize, smoothing: f64, device: &Device) -> Tensor<2> {
    let off = smoothing / classes as f64;
    let on = (1.0 - smoothing + off) as f32;
    let mut targets = vec![off as f32; labels.len() * classes];
    for (row, label) in targets.chunks_exact_mut(classes).zip(labels) {
        row[*label as usize] = on;
    }
    Tensor::from_data(TensorData::new(targets, [labels.len(), classes]), device)
}

/// Sum over the batch of −Σ_c target_c · log softmax(logits)_c. `logits` and `targets` are `[B, classes]`; the result is `[1]`.
///
/// A sum, not a mean: the caller divides by the number of images in the step, so that batches of any size accumulate exactly.
pub fn soft_cross_entropy_sum(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    let rows = (activation::log_softmax(logits, 1) * targets).sum_dim(1);
    let [batch, _] = rows.dims();
    rows.reshape([1, batch]).sum_dim(1).reshape([1]).neg()
}

/// What one image's logits say, computed on the host in f64.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// −log softmax(logits) at the label.
    pub loss: f64,
    /// Classes ranked before the label: 0 counts for top-1, up to 4 for top-5.
    pub rank: usize,
}

/// Rank and loss of `label` among `logits`. Of equal logits the lower class ranks first, as in a stable descending sort.
pub fn judge(logits: &[f32], label: usize) -> Verdict {
    let mine = logits[label];
    let rank = logits.iter().enumerate().filter(|(class, value)| **value > mine || (**value == mine && *class < label)).count();
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = logits.iter().map(|v| (*v as f64 - max).exp()).sum();
    Verdict { loss: max + sum.ln() - mine as f64, rank }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn smoothed_targets_are_timms() {
        let targets = smooth_targets(&[2, 0], 4, 0.1, &Device::flex()).into_data().try_to_vec::<f32>().unwrap();
        let expected = [0.025, 0.025, 0.925, 0.025, 0.925, 0.025, 0.025, 0.025];
        assert!(targets.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-7), "{targets:?}");
    }

    #[test]
    fn cross_entropy_equals_its_formula() {
        let device = Device::flex();
        let logits = [[1.0f32, -2.0, 0.5], [100.0, 3.0, -50.0]];
        let targets = smooth_targets(&[1, 0], 3, 0.3, &device);
        let t = targets.clone().into_data().try_to_vec::<f32>().unwrap();
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
    fn ranks_count_better_classes_and_lower_equal_ones() {
        assert_eq!(judge(&[0.0, 3.0, 1.0], 1).rank, 0);
        assert_eq!(judge(&[0.0, 3.0, 1.0], 0).rank, 2);
        assert_eq!(judge(&[1.0, 1.0, 1.0], 0).rank, 0);
        assert_eq!(judge(&[1.0, 1.0, 1.0], 2).rank, 2);
        let verdict = judge(&[0.0, 0.0], 1);
        assert!((verdict.loss - 2f64.ln()).abs() < 1e-12);
        assert!((judge(&[1000.0, 0.0], 0).loss).abs() < 1e-12, "large logits do not overflow");
    }
}
