//! Which residual branches a sample skips, drawn on the host (law 1).
//!
//! Huang et al., "Deep Networks with Stochastic Depth", per sample and scaled by 1/(1 − p) where kept, as timm's `DropPath`.

use burn::tensor::{Device, Tensor, TensorData};
use manyheads_data::random::{Purpose, stream, uniform};
use manyheads_model::profile::{self, Kind};

/// Factors `[depth, 2, items.len()]` for the attention and MLP branch of each layer: 0 where dropped, 1/(1 − p) where kept.
///
/// A sample's draws depend on seed, epoch, its number in the dataset and the copy of it alone, so that splitting a batch changes nothing.
/// `rates` has a probability per layer. `None` where every rate is 0.
pub fn factors(seed: u64, epoch: u64, items: &[usize], copies: &[u32], rates: &[f64], device: &Device) -> Option<Tensor<3>> {
    if rates.iter().all(|rate| *rate == 0.0) {
        return None;
    }
    let values = profile::on_host(Kind::Data, || host_factors(seed, epoch, items, copies, rates));
    Some(Tensor::from_data(TensorData::new(values, [rates.len(), 2, items.len()]), device))
}

fn host_factors(seed: u64, epoch: u64, items: &[usize], copies: &[u32], rates: &[f64]) -> Vec<f32> {
    let mut values = vec![0f32; rates.len() * 2 * items.len()];
    for (sample, (item, copy)) in items.iter().zip(copies).enumerate() {
        let mut rng = stream(seed, Purpose::StochasticDepth, epoch, *item as u64);
        rng.set_stream(u64::from(*copy));
        for (layer, rate) in rates.iter().enumerate() {
            for branch in 0..2 {
                let kept = uniform(&mut rng) >= *rate;
                values[(layer * 2 + branch) * items.len() + sample] = if kept { (1.0 / (1.0 - rate)) as f32 } else { 0.0 };
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_draws_the_same_in_every_batch() {
        let rates = [0.0, 0.3, 0.6];
        let whole = host_factors(7, 2, &[5, 9, 11], &[0; 3], &rates);
        let part = host_factors(7, 2, &[9], &[0], &rates);
        for row in 0..6 {
            assert_eq!(whole[row * 3 + 1], part[row]);
        }
        assert_ne!(whole, host_factors(7, 3, &[5, 9, 11], &[0; 3], &rates));
        assert_ne!(part, host_factors(7, 2, &[9], &[1], &rates), "copies of an item draw by themselves");
        assert!(whole[..6].iter().all(|factor| *factor == 1.0), "a rate of 0 keeps everything");
    }

    #[test]
    fn branches_are_dropped_at_their_rate_and_keep_the_mean() {
        let items: Vec<usize> = (0..20_000).collect();
        let values = host_factors(1, 0, &items, &vec![0; items.len()], &[0.25]);
        for branch in values.chunks(items.len()) {
            let dropped = branch.iter().filter(|factor| **factor == 0.0).count() as f64 / items.len() as f64;
            // Four standard deviations.
            assert!((dropped - 0.25).abs() < 4.0 * (0.25f64 * 0.75 / 20_000.0).sqrt(), "{dropped}");
            let mean: f64 = branch.iter().map(|factor| *factor as f64).sum::<f64>() / items.len() as f64;
            assert!((mean - 1.0).abs() < 0.02, "{mean}");
        }
    }
}
