//! The order of the samples of an epoch, and which of them a rank takes.

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

/// Repeated augmentation takes as many samples as there are whole groups of this many items, as timm and DeiT do.
const REPEATED_GROUP: usize = 256;

/// Which positions of an epoch's order a rank takes. The one place where samples are left out or added so that all ranks have
/// equally many: ranks with unequal numbers of batches wait for each other for ever.
///
/// The samples of an epoch are one list for all ranks: the items in the epoch's order, each `repeats` times in a row. Rank r of
/// w takes the places r, r + w, r + 2w, …, so that the batches of one step hold the same samples for any number of ranks.
///
/// - Without repeats and with `drop_last` each rank takes `n / w` items, rounded down to whole batches.
/// - Without repeats and without `drop_last` each takes `n / w` rounded up; the places past the end begin again at the start,
///   and are marked as padding, not to be counted: all ranks together count each item once.
/// - With repeats it is timm's `RepeatAugSampler` (DeiT's `RASampler`): each rank takes the first `n / 256 * 256 / w` of its
///   places, so that an epoch is as long as one without repeats, and shows a part of the items. Sets of fewer than 256 items,
///   of which timm would take none, give `n / w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    items: usize,
    repeats: usize,
    rank: usize,
    world: usize,
    len: usize,
}

/// A sample of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Place of the item in the epoch's order.
    pub index: usize,
    /// Which of its copies, from 0.
    pub copy: u32,
    /// Whether it only fills up the rank's share and is counted elsewhere.
    pub padding: bool,
}

impl Plan {
    /// The share of rank `rank` of `world`. `repeats`, `world` and `batch_size` are at least 1, and `rank < world`.
    pub fn new(items: usize, repeats: usize, rank: usize, world: usize, batch_size: usize, drop_last: bool) -> Self {
        let share = match (repeats, drop_last) {
            (1, true) => items / world,
            (1, false) => items.div_ceil(world),
            _ if items < REPEATED_GROUP => items / world,
            _ => items / REPEATED_GROUP * REPEATED_GROUP / world,
        };
        let len = if drop_last { share / batch_size * batch_size } else { share };
        Self { items, repeats, rank, world, len }
    }

    /// Samples of an epoch on this rank, padding included. The same on every rank.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sample at a position of this rank's share.
    pub fn at(&self, position: usize) -> Place {
        let place = position * self.world + self.rank;
        let total = self.items * self.repeats;
        let within = place % total;
        Place { index: within / self.repeats, copy: (within % self.repeats) as u32, padding: place >= total }
    }
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

    fn shares(items: usize, repeats: usize, world: usize, batch: usize, drop_last: bool) -> Vec<Vec<Place>> {
        let share = |rank| {
            let plan = Plan::new(items, repeats, rank, world, batch, drop_last);
            (0..plan.len()).map(|p| plan.at(p)).collect()
        };
        (0..world).map(share).collect()
    }

    /// Eleven items on two ranks: equal counts, each item counted once, padding marked.
    #[test]
    fn lightning_17389_unequal_shares_hang() {
        let shares = shares(11, 1, 2, 4, false);
        assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [6, 6]);
        let mut counted: Vec<usize> = shares.iter().flatten().filter(|p| !p.padding).map(|p| p.index).collect();
        counted.sort_unstable();
        assert_eq!(counted, (0..11).collect::<Vec<_>>());
        assert_eq!(shares.iter().flatten().filter(|p| p.padding).count(), 1);
        let dropped = self::shares(11, 1, 2, 4, true);
        assert_eq!(dropped.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4]);
        let indices: std::collections::HashSet<usize> = dropped.iter().flatten().map(|p| p.index).collect();
        assert_eq!(indices.len(), 8);
    }

    #[test]
    fn ranks_share_without_overlap_for_all_small_sizes() {
        for items in 1..40 {
            for world in 1..9 {
                let shares = shares(items, 1, world, 3, false);
                assert!(shares.iter().all(|share| share.len() == shares[0].len()));
                let mut counted: Vec<usize> = shares.iter().flatten().filter(|p| !p.padding).map(|p| p.index).collect();
                counted.sort_unstable();
                assert!(counted.into_iter().eq(0..items), "{items} items on {world} ranks");
                // Padding comes last, so that what counts is the beginning of a batch.
                assert!(shares.iter().all(|share| share.is_sorted_by_key(|p| p.padding)));
            }
        }
    }

    /// The samples of a step are the same for any number of ranks.
    #[test]
    fn llm_c_792_one_order_strided_over_ranks() {
        let one: Vec<usize> = shares(64, 1, 1, 16, true)[0].iter().map(|p| p.index).collect();
        let four = shares(64, 1, 4, 4, true);
        for step in 0..4 {
            let mut union: Vec<usize> = four.iter().flat_map(|share| &share[4 * step..4 * step + 4]).map(|p| p.index).collect();
            union.sort_unstable();
            assert_eq!(union, one[16 * step..16 * step + 16]);
        }
    }

    /// DeiT's figures: 1,281,024 samples an epoch, 1,251 steps of 1,024, three copies of about a third of the images.
    #[test]
    fn repeated_augmentation_has_deits_length() {
        let plan = Plan::new(1_281_167, 3, 5, 16, 64, true);
        assert_eq!((plan.len(), plan.len() / 64), (80_064, 1251));
        assert_eq!(
            (plan.at(0), plan.at(1)),
            (Place { index: 1, copy: 2, padding: false }, Place { index: 7, copy: 0, padding: false })
        );
        let shares = shares(600, 3, 4, 1, false);
        assert!(shares.iter().all(|share| share.len() == 128));
        let mut copies: Vec<(usize, u32)> = shares.iter().flatten().map(|p| (p.index, p.copy)).collect();
        copies.sort_unstable();
        assert!(copies.into_iter().eq((0..512).map(|p| (p / 3, (p % 3) as u32))));
        assert_eq!(Plan::new(90, 3, 0, 2, 1, true).len(), 45);
    }
}
