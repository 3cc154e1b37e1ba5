//! Affine resampling with AVX2, the four values of a pixel in four lanes of double precision; the bits are those of the plain
//! form.
#![expect(unsafe_code, reason = "vector loads, and reads of pixels whose place was checked")]

use std::arch::x86_64::*;

use super::affine::{Image, Matrix, Pixel};

/// The bicubic form of [`super::affine::transform`]. False: nothing was done, for want of AVX2.
pub(super) fn bicubic(image: Image<'_>, out: &mut [Pixel], matrix: Matrix, fill: Pixel) -> bool {
    if !is_x86_feature_detected!("avx2") {
        return false;
    }
    // SAFETY: AVX2 was found.
    unsafe {
        match (Image::keeps_rows(matrix), Image::keeps_columns(matrix)) {
            (true, _) => resample::<LEVEL>(image, out, matrix, fill),
            (_, true) => resample::<UPRIGHT>(image, out, matrix, fill),
            _ => resample::<FREE>(image, out, matrix, fill),
        }
    }
    true
}

/// Each row comes from itself.
const LEVEL: u8 = 0;
/// Each column comes from itself.
const UPRIGHT: u8 = 1;
const FREE: u8 = 2;

/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn resample<const KIND: u8>(image: Image<'_>, out: &mut [Pixel], matrix: Matrix, fill: Pixel) {
    let (width, height) = (image.width, image.height);
    assert_eq!(image.pixels.len(), width * height);
    let (right, bottom) = (width as isize - 3, height as isize - 3);
    // Where all pixels that the filter needs are inside. Places move along a line, one way, so that such x are neighbours.
    let inside = |x: usize, y: usize| {
        image.place(matrix, x, y).is_some_and(|place| {
            let level = place.x >= 1 && place.x <= right;
            let upright = place.y >= 1 && place.y <= bottom;
            (KIND == UPRIGHT || level) && (KIND == LEVEL || upright)
        })
    };
    let careful =
        |x: usize, y: usize| image.place(matrix, x, y).map_or(fill, |place| super::affine::bicubic_pixel(image, &place));
    let [a, b, c, d, e, f] = matrix;
    for (y, line) in out.chunks_exact_mut(width.max(1)).enumerate() {
        let (mut from, mut to) = (0, width);
        while from < to && !inside(from, y) {
            line[from] = careful(from, y);
            from += 1;
        }
        while to > from && !inside(to - 1, y) {
            to -= 1;
            line[to] = careful(to, y);
        }
        let v = y as f64 + 0.5;
        for (x, out) in (from..to).zip(&mut line[from..to]) {
            let u = x as i32 as f64 + 0.5;
            let (px, py) = (a * u + b * v + c - 0.5, d * u + e * v + f - 0.5);
            // SAFETY: both ends of the run are inside, and with them all between: places are at least 1 and less than the side
            // where the filter reaches, so that truncation is the floor, and the pixels from one before the place to two after
            // it are inside. Where it does not reach, the place is the pixel's own.
            *out = unsafe {
                let (ix, iy): (i32, i32) = (px.to_int_unchecked(), py.to_int_unchecked());
                let (dx, dy) = (px - f64::from(ix), py - f64::from(iy));
                let at = image.pixels.as_ptr();
                match KIND {
                    LEVEL => cut(along(at.add(y * width + ix as usize - 1), dx)),
                    UPRIGHT => {
                        let at = at.add((iy as usize - 1) * width + x);
                        let rows = [widen(at), widen(at.add(width)), widen(at.add(2 * width)), widen(at.add(3 * width))];
                        cut(whole_cubic(rows, dy))
                    }
                    _ => {
                        let at = at.add((iy as usize - 1) * width + ix as usize - 1);
                        let a = along(at, dx);
                        let b = along(at.add(width), dx);
                        let c = along(at.add(2 * width), dx);
                        let d = along(at.add(3 * width), dx);
                        cut(cubic([a, b, c, d], dy))
                    }
                }
            };
        }
    }
}

/// # Safety
/// The pointer is to a pixel.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn widen(pixel: *const Pixel) -> __m128i {
    // SAFETY: by this function's contract.
    _mm_cvtepu8_epi32(_mm_cvtsi32_si128(i32::from_le_bytes(unsafe { *pixel })))
}

/// # Safety
/// The pointer is to four pixels.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn along(pixels: *const Pixel, d: f64) -> __m256d {
    // SAFETY: four pixels are sixteen bytes.
    let bytes = unsafe { _mm_loadu_si128(pixels.cast()) };
    let values = [
        _mm_cvtepu8_epi32(bytes),
        _mm_cvtepu8_epi32(_mm_srli_si128::<4>(bytes)),
        _mm_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)),
        _mm_cvtepu8_epi32(_mm_srli_si128::<12>(bytes)),
    ];
    whole_cubic(values, d)
}

/// The cubic through whole numbers, whose differences are exact as integers too.
#[inline]
#[target_feature(enable = "avx2")]
fn whole_cubic([v1, v2, v3, v4]: [__m128i; 4], d: f64) -> __m256d {
    let first = _mm_sub_epi32(v1, v2);
    let second = _mm_sub_epi32(v3, v4);
    let p2 = _mm_sub_epi32(v3, v1);
    let p3 = _mm_add_epi32(_mm_add_epi32(first, first), second);
    let p4 = _mm_sub_epi32(_mm_setzero_si128(), _mm_add_epi32(first, second));
    polynomial([_mm256_cvtepi32_pd(v2), _mm256_cvtepi32_pd(p2), _mm256_cvtepi32_pd(p3), _mm256_cvtepi32_pd(p4)], d)
}

/// As [`super::affine::cubic`], in the same order of operations.
#[inline]
#[target_feature(enable = "avx2")]
fn cubic([v1, v2, v3, v4]: [__m256d; 4], d: f64) -> __m256d {
    let p2 = _mm256_sub_pd(v3, v1);
    let twice = _mm256_mul_pd(_mm256_set1_pd(2.0), _mm256_sub_pd(v1, v2));
    let p3 = _mm256_sub_pd(_mm256_add_pd(twice, v3), v4);
    let p4 = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(v2, v1), v3), v4);
    polynomial([v2, p2, p3, p4], d)
}

#[inline]
#[target_feature(enable = "avx2")]
fn polynomial([p1, p2, p3, p4]: [__m256d; 4], d: f64) -> __m256d {
    let d = _mm256_set1_pd(d);
    let inner = _mm256_add_pd(p3, _mm256_mul_pd(d, p4));
    let inner = _mm256_add_pd(p2, _mm256_mul_pd(d, inner));
    _mm256_add_pd(p1, _mm256_mul_pd(d, inner))
}

#[inline]
#[target_feature(enable = "avx2")]
fn cut(values: __m256d) -> Pixel {
    let values = _mm256_min_pd(_mm256_max_pd(values, _mm256_setzero_pd()), _mm256_set1_pd(255.0));
    let whole = _mm256_cvttpd_epi32(values);
    let words = _mm_packs_epi32(whole, whole);
    _mm_cvtsi128_si32(_mm_packus_epi16(words, words)).to_le_bytes()
}
