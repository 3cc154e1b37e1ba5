//! The order of the samples of an epoch.

use crate::random::{Purpose, below, stream};

/// A permutation of 0..n, uniform over all of them, as a pure function of (n, seed, epoch).
///
/// Fisher and Yates' shuffle from the last place to the first, over the whole index: a shuffle inside a window or a shard
/// leaves classes clustered and costs accuracy. All ranks of a distributed run make the same one and stride over it.
///
/// # Panics
/// If `n` exceeds `u32::MAX`; [`crate::Loader::new`] refuses such a source before.
pub fn permutation(n: usize, seed: u64, epoch: u64) -> Vec<u32> {
    let n = u32::try_from(n).expect("at most u32::MAX items");
    let mut order: Vec<u32> = (0..n).collect();
    let mut rng = stream(seed, Purpose::Order, epoch, 0);
    for last in (1..order.len()).rev() {
        let chosen = below(&mut rng, last as u64 + 1) as usize;
        order.swap(last, chosen);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_permutation_for_every_small_n() {
        for n in 0..40 {
            let mut order = permutation(n, 7, n as u64);
            order.sort_unstable();
            assert!(order.iter().copied().eq(0..n as u32));
        }
    }

    #[test]
    fn depends_on_seed_and_epoch_only() {
        assert_eq!(permutation(100, 1, 2), permutation(100, 1, 2));
        assert_ne!(permutation(100, 1, 2), permutation(100, 1, 3));
        assert_ne!(permutation(100, 1, 2), permutation(100, 2, 2));
    }

    /// All 24 orders of 4 items come equally often.
    #[test]
    fn is_uniform_over_orders() {
        let mut counts = std::collections::HashMap::new();
        for epoch in 0..24_000 {
            *counts.entry(permutation(4, 3, epoch)).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        let chi2: f64 = counts.values().map(|&c| (f64::from(c) - 1000.0).powi(2) / 1000.0).sum();
        // 23 degrees of freedom, p = 0.001.
        assert!(chi2 < 49.73, "chi-square {chi2}");
    }
}
