//! The two passes of a resize on pixels of four bytes: the plain form, and the choice of a faster one.
//!
//! Sums are of 32 bits and wrap, so that the order of additions does not matter and all forms agree to the last bit.

use super::weights::{PRECISION, Weights};
use crate::decode::part::Rgbx;

/// Half of the last bit kept, where every sum starts.
pub(super) const HALF: i32 = 1 << (PRECISION - 1);

pub(super) fn clip(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Resizes rows: `out` becomes `weights.len()` × `view.height()` pixels. `offset`: the source column where the view begins.
pub(super) fn horizontal(view: Rgbx<'_>, weights: &mut Weights, offset: usize, out: &mut [[u8; 4]]) {
    #[cfg(target_arch = "x86_64")]
    if super::avx2::horizontal(view, weights, offset, out) {
        return;
    }
    plain_horizontal(view, weights, offset, out);
}

/// Resizes columns: `out` becomes `view.width()` × `weights.len()` pixels. `offset`: the source row where the view begins.
pub(super) fn vertical(view: Rgbx<'_>, weights: &Weights, offset: usize, out: &mut [[u8; 4]]) {
    #[cfg(target_arch = "x86_64")]
    if super::avx2::vertical(view, weights, offset, out) {
        return;
    }
    plain_vertical(view, weights, offset, out, 0);
}

pub(super) fn plain_horizontal(view: Rgbx<'_>, weights: &Weights, offset: usize, out: &mut [[u8; 4]]) {
    for (y, line) in out.chunks_exact_mut(weights.len().max(1)).enumerate() {
        let row = view.row(y);
        for (pixel, (first, values)) in line.iter_mut().zip(weights.targets()) {
            let mut sums = [HALF; 4];
            for (source, &weight) in row[first - offset..].iter().zip(values) {
                for (sum, &value) in sums.iter_mut().zip(source) {
                    *sum = sum.wrapping_add(i32::from(value) * weight);
                }
            }
            *pixel = sums.map(clip);
        }
    }
}

/// Columns from `from` on.
pub(super) fn plain_vertical(view: Rgbx<'_>, weights: &Weights, offset: usize, out: &mut [[u8; 4]], from: usize) {
    // Sums of a piece of a row stay in registers and the nearest cache over all its source rows.
    const PIECE: usize = 16;
    for (line, (first, values)) in out.chunks_exact_mut(view.width().max(1)).zip(weights.targets()) {
        for (piece, out) in line[from..].chunks_mut(PIECE).enumerate() {
            let mut sums = [[HALF; 4]; PIECE];
            let start = from + piece * PIECE;
            for (y, &weight) in (first - offset..).zip(values) {
                for (sums, source) in sums.iter_mut().zip(&view.row(y)[start..start + out.len()]) {
                    for (sum, &value) in sums.iter_mut().zip(source) {
                        *sum = sum.wrapping_add(i32::from(value) * weight);
                    }
                }
            }
            for (out, sums) in out.iter_mut().zip(sums) {
                *out = sums.map(clip);
            }
        }
    }
}
