//! The passes of a resize with AVX2, to the same bits as the plain form.
//!
//! A weight of 24 bits is cut into its upper part and its lower 15 bits, both signed 16-bit numbers, so that one instruction
//! multiplies and adds pairs of taps. The sum of the upper parts, shifted back, plus that of the lower ones is the sum itself:
//! all of it modulo 2^32, as in the plain form.
#![expect(unsafe_code, reason = "vector loads and stores")]

use std::arch::x86_64::*;

use super::kernel::{HALF, plain_vertical};
use super::weights::{LOW_BITS, PRECISION, Weights};
use crate::decode::part::Rgbx;

const SHIFT: i32 = PRECISION as i32;
const LOW: i32 = LOW_BITS as i32;

/// False: nothing was done, for want of AVX2 or because rows are shorter than the filter.
pub(super) fn horizontal(view: Rgbx<'_>, weights: &mut Weights, offset: usize, out: &mut [[u8; 4]]) -> bool {
    if !is_x86_feature_detected!("avx2") || !weights.pack(offset, view.width()) {
        return false;
    }
    assert_eq!(out.len(), weights.len() * view.height());
    let width = weights.len();
    let mut rows = out;
    let mut y = 0;
    while y < view.height() {
        let count = (view.height() - y).min(4);
        let (these, rest) = rows.split_at_mut(count * width);
        // At the lower edge a row is resized more than once, to the same values.
        let source = std::array::from_fn(|i| view.row(y + i.min(count - 1)));
        // SAFETY: AVX2 was found above; `pack` made all groups of four pixels lie inside rows as wide as the view.
        unsafe { four_rows(source, weights, these, count) };
        rows = rest;
        y += count;
    }
    true
}

/// # Safety
/// The machine has AVX2, and `weights` are packed for rows of this length.
#[target_feature(enable = "avx2")]
unsafe fn four_rows(source: [&[[u8; 4]]; 4], weights: &Weights, out: &mut [[u8; 4]], count: usize) {
    // Two pixels a lane, their values paired channel by channel and widened to 16 bits.
    #[rustfmt::skip]
    let pairs = _mm256_setr_epi8(
        0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,
        8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1,
    );
    // Weights 0 and 1 for the first lane, 2 and 3 for the second; lower parts lie in front of the upper ones.
    let low =
        _mm256_setr_epi32(0x0302_0100, 0x0302_0100, 0x0302_0100, 0x0302_0100, 0x0706_0504, 0x0706_0504, 0x0706_0504, 0x0706_0504);
    let high = _mm256_add_epi8(low, _mm256_set1_epi8(8));
    let width = weights.len();
    for (x, (start, groups)) in weights.packed().enumerate() {
        let mut lows = [_mm256_setzero_si256(); 4];
        let mut highs = [_mm256_setzero_si256(); 4];
        for (g, group) in groups.iter().enumerate() {
            // SAFETY: a group is eight 16-bit numbers; the four pixels from `start + 4 * g` on lie inside the row.
            unsafe {
                let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(group.as_ptr().cast()));
                let (weight_low, weight_high) = (_mm256_shuffle_epi8(both, low), _mm256_shuffle_epi8(both, high));
                for i in 0..4 {
                    let pixels = source[i].as_ptr().add(start + 4 * g);
                    let values = _mm256_broadcastsi128_si256(_mm_loadu_si128(pixels.cast()));
                    let values = _mm256_shuffle_epi8(values, pairs);
                    lows[i] = _mm256_add_epi32(lows[i], _mm256_madd_epi16(values, weight_low));
                    highs[i] = _mm256_add_epi32(highs[i], _mm256_madd_epi16(values, weight_high));
                }
            }
        }
        let sums: [__m128i; 4] = std::array::from_fn(|i| {
            let sum = _mm256_add_epi32(lows[i], _mm256_slli_epi32::<LOW>(highs[i]));
            let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
            _mm_srai_epi32::<SHIFT>(_mm_add_epi32(sum, _mm_set1_epi32(HALF)))
        });
        let bytes = _mm_packus_epi16(_mm_packs_epi32(sums[0], sums[1]), _mm_packs_epi32(sums[2], sums[3]));
        let mut pixels = [[0u8; 4]; 4];
        // SAFETY: sixteen bytes.
        unsafe { _mm_storeu_si128(pixels.as_mut_ptr().cast(), bytes) };
        for (i, pixel) in pixels.into_iter().take(count).enumerate() {
            out[i * width + x] = pixel;
        }
    }
}

/// False: nothing was done, for want of AVX2.
pub(super) fn vertical(view: Rgbx<'_>, weights: &Weights, offset: usize, out: &mut [[u8; 4]]) -> bool {
    if !is_x86_feature_detected!("avx2") {
        return false;
    }
    assert_eq!(out.len(), weights.len() * view.width());
    // SAFETY: AVX2 was found above.
    unsafe { columns(view, weights, offset, out) };
    plain_vertical(view, weights, offset, out, view.width() / 8 * 8);
    true
}

/// Columns up to the last multiple of eight.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn columns(view: Rgbx<'_>, weights: &Weights, offset: usize, out: &mut [[u8; 4]]) {
    let zero = _mm256_setzero_si256();
    for (line, (first, values)) in out.chunks_exact_mut(view.width().max(1)).zip(weights.targets()) {
        for (piece, pixels) in line.chunks_exact_mut(8).enumerate() {
            let mut lows = [zero; 4];
            let mut highs = [zero; 4];
            for (i, pair) in values.chunks(2).enumerate() {
                let y = first - offset + 2 * i;
                let (weight, next) = (pair[0], pair.get(1).copied().unwrap_or(0));
                let upper = &view.row(y)[piece * 8..][..8];
                let lower = &view.row(y + pair.len() - 1)[piece * 8..][..8];
                let part = |low: i32, high: i32| _mm256_set1_epi32((low & 0xffff) | (high << 16));
                let mask = (1 << LOW) - 1;
                let weight_low = part(weight & mask, next & mask);
                let weight_high = part(weight >> LOW, next >> LOW);
                // SAFETY: both slices are eight pixels long.
                let (a, b) = unsafe { (_mm256_loadu_si256(upper.as_ptr().cast()), _mm256_loadu_si256(lower.as_ptr().cast())) };
                let (front, back) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
                let quarters = [
                    _mm256_unpacklo_epi8(front, zero),
                    _mm256_unpackhi_epi8(front, zero),
                    _mm256_unpacklo_epi8(back, zero),
                    _mm256_unpackhi_epi8(back, zero),
                ];
                for (q, values) in quarters.into_iter().enumerate() {
                    lows[q] = _mm256_add_epi32(lows[q], _mm256_madd_epi16(values, weight_low));
                    highs[q] = _mm256_add_epi32(highs[q], _mm256_madd_epi16(values, weight_high));
                }
            }
            let sums: [__m256i; 4] = std::array::from_fn(|q| {
                let sum = _mm256_add_epi32(lows[q], _mm256_slli_epi32::<LOW>(highs[q]));
                _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(sum, _mm256_set1_epi32(HALF)))
            });
            let bytes = _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
            // SAFETY: a piece is eight pixels, 32 bytes.
            unsafe { _mm256_storeu_si256(pixels.as_mut_ptr().cast(), bytes) };
        }
    }
}
