//! The exponential function over vectors.

use pulp::Simd;

/// Adding it leaves the nearest integer of a small number in the low bits of the sum, which then also hold the bias of an exponent.
const ROUND_AND_BIAS: f32 = 12_582_912.0 + 127.0;

/// ln 2 in two parts, the first with few enough digits that its product with an exponent is exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2, highest power first. Cephes, `expf.c`.
const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// Where the result would be below the smallest normal number: 0 from here on.
const LEAST: f32 = -87.336_54;

/// Where 2^127 is the largest power that the result may be made of: infinite beyond.
const GREATEST: f32 = 88.376_26;

/// exp(x), within 2 units in the last place; 0 where it would be subnormal, infinite above 88.37; NaN stays NaN.
///
/// Takes `N` vectors in step: each operation waits for the one before, and a processor looks ahead only so far for others to do meanwhile.
#[inline(always)]
pub(crate) fn exp<S: Simd, const N: usize>(simd: S, x: [S::f32s; N]) -> [S::f32s; N] {
    let zero = simd.splat_f32s(0.0);
    let [mut shifted, mut r, mut sum, mut value] = [[zero; N]; 4];
    for i in 0..N {
        shifted[i] = simd.mul_add_f32s(x[i], simd.splat_f32s(std::f32::consts::LOG2_E), simd.splat_f32s(ROUND_AND_BIAS));
    }
    for i in 0..N {
        let exponent = simd.sub_f32s(shifted[i], simd.splat_f32s(ROUND_AND_BIAS));
        r[i] = simd.mul_add_f32s(exponent, simd.splat_f32s(-LN_2[0]), x[i]);
        r[i] = simd.mul_add_f32s(exponent, simd.splat_f32s(-LN_2[1]), r[i]);
        sum[i] = simd.splat_f32s(POLYNOMIAL[0]);
    }
    for coefficient in &POLYNOMIAL[1..] {
        for i in 0..N {
            sum[i] = simd.mul_add_f32s(sum[i], r[i], simd.splat_f32s(*coefficient));
        }
    }
    for i in 0..N {
        sum[i] = simd.mul_add_f32s(simd.mul_f32s(r[i], r[i]), sum[i], simd.add_f32s(r[i], simd.splat_f32s(1.0)));
        // A product, not a sum of the exponents' bits: so NaN stays NaN.
        let power = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted[i]), simd.splat_u32s(23));
        value[i] = simd.mul_f32s(sum[i], simd.transmute_f32s_u32s(power));
        value[i] = simd.select_f32s(simd.less_than_f32s(x[i], simd.splat_f32s(LEAST)), zero, value[i]);
        let infinite = simd.greater_than_f32s(x[i], simd.splat_f32s(GREATEST));
        value[i] = simd.select_f32s(infinite, simd.splat_f32s(f32::INFINITY), value[i]);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, WithSimd};

    struct Map<'a>(&'a mut [f32]);

    impl WithSimd for Map<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (vectors, rest) = S::as_mut_simd_f32s(self.0);
            assert!(rest.is_empty());
            let (groups, rest) = vectors.as_chunks_mut::<2>();
            for x in groups {
                *x = exp(simd, *x);
            }
            for x in rest {
                [*x] = exp(simd, [*x]);
            }
        }
    }

    fn assert_close(map: impl Fn(&mut [f32])) {
        let xs: Vec<f32> = (0..1 << 16).map(|i| -87.3 + i as f32 * (175.6 / 65536.0)).collect();
        let mut ys = xs.clone();
        map(&mut ys);
        for (x, y) in xs.into_iter().zip(ys) {
            let exact = f64::from(x).exp();
            assert!((f64::from(y) / exact - 1.0).abs() < 2.0 * f64::from(f32::EPSILON), "exp({x}) = {y}, not {exact}");
        }

        let inf = f32::INFINITY;
        let mut special = [0.0, -0.0, -87.4, -1e4, -3e38, -inf, 88.4, 1e4, 3e38, inf, f32::NAN, -f32::NAN, 1.0, 1.0, 1.0, 1.0];
        map(&mut special);
        assert_eq!(special[..10], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, inf, inf, inf, inf]);
        assert!(special[10].is_nan() && special[11].is_nan());
    }

    #[test]
    fn close_to_the_exact_value() {
        assert_close(|xs| Arch::new().dispatch(Map(xs)));
        assert_close(|xs| Map(xs).with_simd(pulp::Scalar));
    }
}
