//! Random numbers as pure functions: a stream is named by (seed, purpose, epoch, index) and starts afresh each time.
//!
//! No generator has a state to save. A restart, another number of threads, or a look at one sample alone see the same draws.
//! The generator is ChaCha with 8 rounds; its 256-bit key is the four numbers, little-endian. Its 64-bit stream number is 0,
//! and is kept free for the copy of an item where an epoch holds it more than once (repeated augmentation).
//!
//! The helpers turn raw 64-bit words into numbers by rules written here, so that no version of another crate changes a run.
//! Golden tests hold them.

pub use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// What a stream is for. The numbers are part of every run's result and never change; new purposes get new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Purpose {
    /// Initial weights. Index: the parameter.
    Init = 1,
    /// Order of the samples of an epoch. Index: 0.
    Order = 2,
    /// Crop, flip and further augmentation of one sample. Index: the item.
    Augment = 3,
    /// Masks of stochastic depth. Index: the step or sample.
    StochasticDepth = 4,
    /// Choice of a subset of a dataset. Index: 0.
    Subset = 5,
    /// Mixup and CutMix. Index: the batch.
    Mix = 6,
}

/// The stream of draws named by its four numbers.
pub fn stream(seed: u64, purpose: Purpose, epoch: u64, index: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (part, number) in key.chunks_exact_mut(8).zip([seed, purpose as u64, epoch, index]) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Uniform in [0, 1), from the upper 53 bits of one word.
pub fn uniform(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Uniform in [low, high), computed as `low + (high - low) * uniform`. One word.
pub fn uniform_in(rng: &mut impl Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * uniform(rng)
}

/// True with the given probability; one word, also where the probability is 0 or 1.
pub fn chance(rng: &mut impl Rng, probability: f64) -> bool {
    uniform(rng) < probability
}

/// Uniform in 0..n without bias, by Lemire's multiply and reject (arXiv:1805.10941). One word nearly always.
///
/// # Panics
/// If `n` is 0: there is no such number.
pub fn below(rng: &mut impl Rng, n: u64) -> u64 {
    assert!(n > 0, "below(0) has no answer");
    let mut product = u128::from(rng.next_u64()) * u128::from(n);
    if (product as u64) < n {
        let reject = n.wrapping_neg() % n;
        while (product as u64) < reject {
            product = u128::from(rng.next_u64()) * u128::from(n);
        }
    }
    (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first block of ChaCha8 under the all-zero key, as in draft-strombergson-chacha-test-vectors.
    #[test]
    fn the_generator_is_chacha8() {
        let mut rng = ChaCha8Rng::from_seed([0; 32]);
        let mut bytes = [0u8; 16];
        rng.fill_bytes(&mut bytes);
        assert_eq!(bytes, [0x3e, 0x00, 0xef, 0x2f, 0x89, 0x5f, 0x40, 0xd6, 0x7f, 0x5b, 0xb8, 0xe8, 0x1f, 0x09, 0xa5, 0xa1]);
    }

    #[test]
    fn purposes_keep_their_numbers() {
        let numbers = [Purpose::Init, Purpose::Order, Purpose::Augment, Purpose::StochasticDepth, Purpose::Subset, Purpose::Mix]
            .map(|p| p as u64);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let first = |s, p, e, i| stream(s, p, e, i).next_u64();
        let base = first(1, Purpose::Order, 2, 3);
        assert_eq!(base, first(1, Purpose::Order, 2, 3));
        for other in [
            first(2, Purpose::Order, 2, 3),
            first(1, Purpose::Augment, 2, 3),
            first(1, Purpose::Order, 3, 3),
            first(1, Purpose::Order, 2, 4),
            first(3, Purpose::Order, 2, 1),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn uniform_is_flat() {
        let mut rng = stream(5, Purpose::Augment, 0, 0);
        let mut bins = [0u32; 10];
        for _ in 0..100_000 {
            let u = uniform(&mut rng);
            assert!((0.0..1.0).contains(&u));
            bins[(u * 10.0) as usize] += 1;
        }
        let chi2: f64 = bins.iter().map(|&b| (f64::from(b) - 10_000.0).powi(2) / 10_000.0).sum();
        // 9 degrees of freedom, p = 0.001.
        assert!(chi2 < 27.88, "chi-square {chi2}");
    }

    #[test]
    fn below_is_flat_and_in_range() {
        let mut rng = stream(6, Purpose::Augment, 0, 0);
        let mut bins = [0u32; 7];
        for _ in 0..70_000 {
            bins[below(&mut rng, 7) as usize] += 1;
        }
        let chi2: f64 = bins.iter().map(|&b| (f64::from(b) - 10_000.0).powi(2) / 10_000.0).sum();
        // 6 degrees of freedom, p = 0.001.
        assert!(chi2 < 22.46, "chi-square {chi2}");
        assert_eq!(below(&mut rng, 1), 0);
        // A bound above 2^63 rejects nearly half of all words.
        for _ in 0..100 {
            assert!(below(&mut rng, (1 << 63) + 1) <= 1 << 63);
        }
    }
}
