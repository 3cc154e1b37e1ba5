//! Functions of one number that compile to vector instructions: no branch, no table, no call.

/// Partial sums of a sum: four vectors of AVX2, so that additions need not wait for one another.
pub const LANES: usize = 32;

/// Adds up partial sums by halves.
#[inline(always)]
pub fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// The sum of `term` over the places of two slices of one length.
#[inline(always)]
pub fn sum2(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for i in 0..LANES {
            lanes[i] += term(a[i], b[i]);
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += term(*a, *b);
    }
    fold(lanes)
}

/// The sum of `term` over a slice.
#[inline(always)]
pub fn sum(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    sum2(x, x, |value, _| term(value))
}

/// The greatest of a slice.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = greater(lanes[i], chunk[i]);
        }
    }
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |a, b| greater(a, *b))
}

/// e^x to 2 units in the last place, 0 below -87.3 and infinity above 88.7.
///
/// The power of two nearest to `x / ln 2` is taken out; e^r of the rest, |r| <= ln 2 / 2, is a polynomial of degree 6 fitted for the least
/// greatest relative error (1.9e-9).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LEAST: f32 = -87.336_54;
    const MOST: f32 = 88.722_84;
    /// 1.5 * 2^23: added to a number of less than 2^22 it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(LEAST, MOST);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let power = shifted - ROUND;
    let r = power.mul_add(-LN2_LOW, power.mul_add(-LN2_HIGH, clamped));
    let p = 1.383_684e-3_f32;
    let p = p.mul_add(r, 8.374_817e-3);
    let p = p.mul_add(r, 4.166_822_6e-2);
    let p = p.mul_add(r, 0.166_664_2);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r, 1.0);
    let p = p.mul_add(r, 1.0);
    // Half of the power at a time: 2^128 is no f32.
    let power = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    let half = power >> 1;
    let scale = |power: i32| f32::from_bits(((power + 127) << 23) as u32);
    let value = p * scale(half) * scale(power - half);
    let value = if x < LEAST { 0.0 } else { value };
    let value = if x > MOST { f32::INFINITY } else { value };
    // A comparison with NaN is false: it must come out as it went in.
    if x.is_nan() { x } else { value }
}

/// The normal distribution function at `u`, and `e^(-u²/2)`.
///
/// The tail beyond |u| is `t P(t) e^(-u²/2) / 2` with `t = 1 / (1 + 0.4 |u| / √2)` and P a polynomial of degree 8 fitted to `erfc` for the
/// least greatest relative error (5.6e-8): small values on the far negative side are right in relative terms.
#[inline(always)]
pub fn normal(u: f32) -> (f32, f32) {
    const P: [f32; 9] = [
        0.225_622_6,
        0.226_636_8,
        0.200_535_09,
        0.198_575_67,
        0.067_811_27,
        0.104_967_58,
        0.069_351_71,
        -0.133_336_04,
        0.039_835_386,
    ];
    let density = exp(-0.5 * u * u);
    let t = 1.0 / (u.abs() * (0.4 * std::f32::consts::FRAC_1_SQRT_2) + 1.0);
    let mut p = P[8];
    for coefficient in P[..8].iter().rev() {
        p = p.mul_add(t, *coefficient);
    }
    let tail = 0.5 * t * p * density;
    (if u < 0.0 { tail } else { 1.0 - tail }, density)
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    // Below 0.625 the odd series, fitted; above, by the exponential, where nothing cancels.
    let s = x * x;
    let p = -6.113_188e-3_f32;
    let p = p.mul_add(s, 2.101_008e-2);
    let p = p.mul_add(s, -5.385_407e-2);
    let p = p.mul_add(s, 0.133_327_95);
    let p = p.mul_add(s, -0.333_333_3);
    let near = (x * s).mul_add(p, x);
    let e = exp(-2.0 * a);
    let far = ((1.0 - e) / (1.0 + e)).copysign(x);
    if a < 0.625 { near } else { far }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> impl Iterator<Item = f32> {
        (-200_000..=200_000).map(|i| i as f32 * 6e-5)
    }

    #[track_caller]
    fn relative(f: impl Fn(f32) -> f32, reference: impl Fn(f64) -> f64, bound: f64) {
        for x in sweep() {
            let (value, expected) = (f64::from(f(x)), reference(f64::from(x)));
            let error = (value - expected).abs() / expected.abs().max(1e-30);
            assert!(error <= bound, "at {x}: {value} instead of {expected}, off by {error:e}");
        }
    }

    #[test]
    fn functions_are_those_of_mathematics() {
        relative(exp, f64::exp, 2e-7);
        relative(tanh, f64::tanh, 3e-7);
        relative(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 4e-7);
    }

    #[test]
    fn far_exponentials_end_well() {
        for (x, expected) in
            [(-1e4, 0.0), (f32::NEG_INFINITY, 0.0), (1e4, f32::INFINITY), (f32::INFINITY, f32::INFINITY), (0.0, 1.0)]
        {
            assert_eq!(exp(x), expected, "{x}");
        }
        assert!(exp(88.7).is_finite() && exp(-87.3) > 0.0);
        assert!((f64::from(exp(88.7)) / 88.7f32.to_f64().exp() - 1.0).abs() < 1e-6);
        for f in [exp, tanh, sigmoid, |x| normal(x).0] {
            assert!(f(f32::NAN).is_nan());
        }
    }

    trait ToF64 {
        fn to_f64(self) -> f64;
    }

    impl ToF64 for f32 {
        fn to_f64(self) -> f64 {
            self.into()
        }
    }

    #[test]
    fn sums_take_every_place_once() {
        for length in [0, 1, 31, 32, 33, 100, 1000] {
            let x: Vec<f32> = (0..length).map(|i| (i % 11) as f32).collect();
            assert_eq!(sum(&x, |v| v), x.iter().sum::<f32>());
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
