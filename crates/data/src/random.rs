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
    /// Masks of dropout. Index: the item. The stream number's upper half is the place in the network.
    Dropout = 7,
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

/// Fills a slice with booleans that are true with the given probability, to 1 in 65,536; four from a word, lowest bits first.
pub fn fill_chance(rng: &mut impl Rng, probability: f64, out: &mut [bool]) {
    let threshold = (probability * 65536.0).round() as u64;
    for four in out.chunks_mut(4) {
        let word = rng.next_u64();
        four.iter_mut().zip(0..).for_each(|(value, part)| *value = (word >> (16 * part)) & 0xffff < threshold);
    }
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

/// Standard normal, by the transform of Box and Muller. Two words.
pub fn normal(rng: &mut impl Rng) -> f64 {
    // In (0, 1], so that the logarithm is finite.
    let radius = (-2.0 * (1.0 - uniform(rng)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(rng)).cos()
}

/// Fills a slice with standard normal numbers, two from a word (one from the last word of an odd number).
///
/// The transform of Box and Muller in single precision, with polynomials in place of the logarithm, sine and cosine: fast,
/// and the same bits on every machine. The upper half of a word gives the radius, the lower the angle; numbers reach to ±5.77.
pub fn fill_normal(rng: &mut impl Rng, out: &mut [f32]) {
    const BLOCK: usize = 32;
    for block in out.chunks_mut(2 * BLOCK) {
        let mut words = [0u64; BLOCK];
        words[..block.len().div_ceil(2)].iter_mut().for_each(|word| *word = rng.next_u64());
        let pairs = words.map(normal_pair);
        for (values, pair) in block.chunks_mut(2).zip(&pairs) {
            values.copy_from_slice(&pair[..values.len()]);
        }
    }
}

/// Coefficients of the polynomials: S. Moshier's Cephes library, single precision.
#[inline(always)]
fn normal_pair(word: u64) -> [f32; 2] {
    // u in (0, 1), 23 bits; split as m * 2^e with m from sqrt(1/2) to sqrt(2).
    let u = (((word >> 41) as u32) as f32 + 0.5) * (1.0 / (1u32 << 23) as f32);
    let shifted = u.to_bits() - 0x3f35_04f3;
    let e = (shifted as i32 >> 23) as f32;
    let x = f32::from_bits((shifted & 0x007f_ffff) + 0x3f35_04f3) - 1.0;
    let z = x * x;
    let mut p = 7.037_683_6e-2 * x - 1.151_461e-1;
    p = p * x + 1.167_699_9e-1;
    p = p * x - 1.242_014_1e-1;
    p = p * x + 1.424_932_3e-1;
    p = p * x - 1.666_805_8e-1;
    p = p * x + 2.000_071_5e-1;
    p = p * x - 2.499_999_4e-1;
    p = p * x + 3.333_333e-1;
    let ln = x - 0.5 * z + p * x * z + std::f32::consts::LN_2 * e;
    let radius = (-2.0 * ln).max(0.0).sqrt();

    // The angle in quarter turns, 24 bits; its rest within an eighth of a turn of the nearest quarter.
    let turns = ((word as u32) >> 8) as f32 * (4.0 / (1u32 << 24) as f32);
    let quarter = (turns + 0.5) as i32;
    let x = (turns - quarter as f32) * std::f32::consts::FRAC_PI_2;
    let z = x * x;
    let sin = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 1.666_665_5e-1) * z * x + x;
    let cos = ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * z * z - 0.5 * z + 1.0;
    let (first, second) = if quarter & 1 == 0 { (cos, sin) } else { (sin, cos) };
    let first = if (quarter + 1) & 2 == 0 { first } else { -first };
    let second = if quarter & 2 == 0 { second } else { -second };
    [radius * first, radius * second]
}

/// Beta distributed with both parameters `alpha`, above 0.
///
/// Up to 1 by the method of Jöhnk: two words a try. Above 1 as a quotient of gamma numbers by the method of Marsaglia and
/// Tsang: three words or more for each.
pub fn symmetric_beta(rng: &mut impl Rng, alpha: f64) -> f64 {
    if alpha > 1.0 {
        let (a, b) = (gamma(rng, alpha), gamma(rng, alpha));
        return a / (a + b);
    }
    loop {
        let (u, v) = (uniform(rng), uniform(rng));
        let (x, y) = (u.powf(1.0 / alpha), v.powf(1.0 / alpha));
        if x + y <= 1.0 {
            if x + y > 0.0 {
                return x / (x + y);
            }
            // Both powers vanish for a small alpha; their quotient does not.
            let (x, y) = (u.ln() / alpha, v.ln() / alpha);
            let most = x.max(y);
            if most.is_finite() {
                let (x, y) = ((x - most).exp(), (y - most).exp());
                return x / (x + y);
            }
        }
    }
}

/// Gamma distributed with a shape above 1.
fn gamma(rng: &mut impl Rng, shape: f64) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        let u = uniform(rng);
        if v > 0.0 && (1.0 - u).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
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
        use Purpose::{Augment, Dropout, Init, Mix, Order, StochasticDepth, Subset};
        let numbers = [Init, Order, Augment, StochasticDepth, Subset, Mix, Dropout].map(|p| p as u64);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
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
    fn many_chances_are_as_likely_as_said() {
        let mut rng = stream(10, Purpose::Dropout, 0, 0);
        for probability in [0.0, 1.0 / 65536.0, 0.1, 0.75, 1.0] {
            let mut values = vec![false; 400_003];
            fill_chance(&mut rng, probability, &mut values);
            let share = values.iter().filter(|value| **value).count() as f64 / 400_003.0;
            // Four standard deviations.
            assert!(
                (share - probability).abs() <= 4.0 * (probability * (1.0 - probability) / 4e5).sqrt(),
                "{probability}: {share}"
            );
        }
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

    /// Kolmogorov's distance between sorted samples and a distribution function, times the root of their number: above 1.95
    /// with probability 0.001.
    fn kolmogorov(mut samples: Vec<f64>, law: impl Fn(f64) -> f64) -> f64 {
        samples.sort_by(f64::total_cmp);
        let n = samples.len() as f64;
        let distance = samples.iter().enumerate().map(|(i, &x)| {
            let p = law(x);
            (p - i as f64 / n).abs().max((p - (i + 1) as f64 / n).abs())
        });
        distance.fold(0.0, f64::max) * n.sqrt()
    }

    /// The normal distribution function, by the midpoint rule: to 1e-6, which is enough.
    fn normal_law(x: f64) -> f64 {
        let steps = 400;
        let h = x / f64::from(steps);
        let density = |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
        0.5 + (0..steps).map(|i| density((f64::from(i) + 0.5) * h) * h).sum::<f64>()
    }

    #[test]
    fn both_normals_are_normal() {
        let mut rng = stream(7, Purpose::Augment, 0, 0);
        let one = (0..100_000).map(|_| normal(&mut rng)).collect();
        let distance = kolmogorov(one, normal_law);
        assert!(distance < 1.95, "{distance}");
        let mut many = vec![0f32; 100_001];
        fill_normal(&mut rng, &mut many);
        let distance = kolmogorov(many.iter().map(|&x| f64::from(x)).collect(), normal_law);
        assert!(distance < 1.95, "{distance}");
        // Neighbours, which share a word, are independent: so are their signs and sizes.
        let pairs = many.chunks_exact(2);
        let correlation = |f: fn(f32) -> f64| pairs.clone().map(|p| f(p[0]) * f(p[1])).sum::<f64>() / 5e4;
        assert!(correlation(f64::from).abs() < 0.02);
        assert!(correlation(|x| f64::from(x).powi(2) - 1.0).abs() < 0.04);
    }

    #[test]
    fn the_polynomials_are_near_the_functions() {
        let mut rng = stream(8, Purpose::Augment, 0, 0);
        for _ in 0..100_000 {
            let word = rng.next_u64();
            let u = (f64::from((word >> 41) as u32) + 0.5) / f64::from(1u32 << 23);
            let angle = f64::from((word as u32) >> 8) / f64::from(1u32 << 24) * std::f64::consts::TAU;
            let radius = (-2.0 * u.ln()).sqrt();
            let [cos, sin] = normal_pair(word).map(f64::from);
            assert!((cos - radius * angle.cos()).abs() < 4e-6 && (sin - radius * angle.sin()).abs() < 4e-6, "{word:x}");
        }
        assert!(normal_pair(0).iter().chain(&normal_pair(u64::MAX)).all(|v| v.is_finite()));
    }

    /// For alpha 1 the law is uniform, for 2 it is 3x² - 2x³, for 1/2 the arc sine's.
    #[test]
    fn betas_follow_their_laws() {
        let mut rng = stream(9, Purpose::Mix, 0, 0);
        let mut samples = |alpha| (0..100_000).map(|_| symmetric_beta(&mut rng, alpha)).collect::<Vec<f64>>();
        for distance in [
            kolmogorov(samples(1.0), |x| x),
            kolmogorov(samples(2.0), |x| x * x * (3.0 - 2.0 * x)),
            kolmogorov(samples(0.5), |x| 2.0 / std::f64::consts::PI * x.sqrt().asin()),
        ] {
            assert!(distance < 1.95, "{distance}");
        }
        assert!((0..1000).all(|_| (0.0..=1.0).contains(&symmetric_beta(&mut rng, 1e-3))));
    }
}
