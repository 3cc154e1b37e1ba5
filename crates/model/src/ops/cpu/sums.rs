//! Sums over a row, in vectors written out: a loop over an array of partial sums becomes vectors or not as the compiler sees fit, and in a
//! large function it does not.
//!
//! Every sum has [`LANES`] partial sums, whatever the processor's vectors hold, so that its value is the same on all.

use super::math::{LANES, fold};
use pulp::{Arch, Simd, WithSimd};

/// The sum of a row.
#[inline(always)]
pub fn total(x: &[f32]) -> f32 {
    struct Total<'a>(&'a [f32]);
    impl WithSimd for Total<'_> {
        type Output = f32;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> f32 {
            let row = (self.0, 0.0);
            accumulate(
                simd,
                row,
                row,
                #[inline(always)]
                |sum, x, _| simd.add_f32s(sum, x),
            )
        }
    }
    Arch::new().dispatch(Total(x))
}

/// `sum((x - about)²)`.
#[inline(always)]
pub fn squares(x: &[f32], about: f32) -> f32 {
    struct Squares<'a>(&'a [f32], f32);
    impl WithSimd for Squares<'_> {
        type Output = f32;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> f32 {
            let Self(x, about) = self;
            let middle = simd.splat_f32s(about);
            accumulate(
                simd,
                (x, about),
                (x, about),
                #[inline(always)]
                |sum, x, _| {
                    let x = simd.sub_f32s(x, middle);
                    simd.mul_add_f32s(x, x, sum)
                },
            )
        }
    }
    Arch::new().dispatch(Squares(x, about))
}

/// `sum(g * (x - about))`, of two rows of one length.
#[inline(always)]
pub fn products(g: &[f32], x: &[f32], about: f32) -> f32 {
    struct Products<'a>(&'a [f32], &'a [f32], f32);
    impl WithSimd for Products<'_> {
        type Output = f32;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> f32 {
            let Self(g, x, about) = self;
            let middle = simd.splat_f32s(about);
            accumulate(
                simd,
                (g, 0.0),
                (x, about),
                #[inline(always)]
                |sum, g, x| simd.mul_add_f32s(g, simd.sub_f32s(x, middle), sum),
            )
        }
    }
    Arch::new().dispatch(Products(g, x, about))
}

/// Sums what `add` adds for each place of two rows, which are continued by a number each that adds nothing.
#[inline(always)]
fn accumulate<S: Simd>(
    simd: S,
    (a, a_past): (&[f32], f32),
    (b, b_past): (&[f32], f32),
    add: impl Fn(S::f32s, S::f32s, S::f32s) -> S::f32s,
) -> f32 {
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    // As many as the narrowest vectors, of one number, need.
    let mut sums = [simd.splat_f32s(0.0); LANES];
    let vectors = LANES / S::F32_LANES;
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        take::<S>(&mut sums, a, b, &add);
    }
    if !a_rest.is_empty() {
        let (mut a, mut b) = ([a_past; LANES], [b_past; LANES]);
        a[..a_rest.len()].copy_from_slice(a_rest);
        b[..b_rest.len()].copy_from_slice(b_rest);
        take::<S>(&mut sums, &a, &b, &add);
    }
    let mut lanes = [0.0; LANES];
    S::as_mut_simd_f32s(&mut lanes).0.copy_from_slice(&sums[..vectors]);
    fold(lanes)
}

#[inline(always)]
fn take<S: Simd>(
    sums: &mut [S::f32s; LANES],
    a: &[f32; LANES],
    b: &[f32; LANES],
    add: &impl Fn(S::f32s, S::f32s, S::f32s) -> S::f32s,
) {
    let ((a, _), (b, _)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    for i in 0..LANES / S::F32_LANES {
        sums[i] = add(sums[i], a[i], b[i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_take_every_place_once() {
        for length in [0, 1, 15, 16, 31, 32, 33, 64, 100, 1000] {
            let x: Vec<f32> = (0..length).map(|i| (i % 11) as f32).collect();
            let g: Vec<f32> = (0..length).map(|i| (i % 7) as f32 - 3.0).collect();
            assert_eq!(total(&x), x.iter().sum::<f32>());
            assert_eq!(squares(&x, 5.0), x.iter().map(|x| (x - 5.0) * (x - 5.0)).sum::<f32>());
            assert_eq!(products(&g, &x, 5.0), g.iter().zip(&x).map(|(g, x)| g * (x - 5.0)).sum::<f32>());
        }
    }

    #[test]
    fn a_number_that_is_none_shows() {
        for place in [0, 40, 70] {
            let mut x = vec![1.0; 71];
            x[place] = f32::NAN;
            assert!(total(&x).is_nan() && squares(&x, 0.0).is_nan() && products(&x, &x, 0.0).is_nan());
        }
    }

    #[test]
    fn vectors_of_any_width_give_the_same_bits() {
        let x: Vec<f32> = (0..777).map(|i| ((i * 7919) % 1013) as f32 * 1.37e-3 - 0.5).collect();
        let mut lanes = [0.0f32; LANES];
        for (i, x) in x.iter().enumerate() {
            let x = x - 0.1;
            lanes[i % LANES] = x.mul_add(x, lanes[i % LANES]);
        }
        assert_eq!(squares(&x, 0.1), fold(lanes));
    }
}
