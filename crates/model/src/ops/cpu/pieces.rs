//! Work cut into pieces for threads. The cut follows from the shape alone, so results do not depend on how many threads there are.

use super::vector::{add, inlined, run};
use rayon::prelude::*;

/// Values of a piece of a pass without sums: large enough that handing it to a thread costs nothing beside it, and within the second cache.
const PIECE: usize = 1 << 14;

/// Most pieces of a pass that sums over rows: each has partial sums of its own.
const MOST_PARTS: usize = 64;

/// Rows of a piece in a pass that leaves no sums.
pub fn rows_of_piece(width: usize) -> usize {
    (PIECE / width.max(1)).max(1)
}

/// Rows of a piece in a pass that sums over `rows` rows.
pub fn rows_of_part(rows: usize, width: usize) -> usize {
    rows.div_ceil(MOST_PARTS).max(PIECE / 4 / width.max(1)).max(1)
}

/// Hands out `values` in pieces of `size`, the last one shorter, with the number of each; loops in `work` that inline are compiled for the
/// processor's vectors.
pub fn pieces<T: Send>(values: &mut [T], size: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let work = inlined(
        #[inline(always)]
        |(number, piece): (usize, &mut [T])| work(number, piece),
    );
    if values.len() <= size {
        // Not worth waking a thread.
        return run(&work, (0, values));
    }
    values.par_chunks_mut(size).enumerate().for_each(|piece| run(&work, piece));
}

/// [`pieces`] of two slices side by side, which have equally many.
pub fn pieces2<T: Send, U: Send>(
    (a, a_size): (&mut [T], usize),
    (b, b_size): (&mut [U], usize),
    work: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    let work = inlined(
        #[inline(always)]
        |(number, (a, b)): (usize, (&mut [T], &mut [U]))| work(number, a, b),
    );
    if a.len() <= a_size && b.len() <= b_size {
        return run(&work, (0, (a, b)));
    }
    let both = a.par_chunks_mut(a_size).zip_eq(b.par_chunks_mut(b_size));
    both.enumerate().for_each(|pair| run(&work, pair));
}

/// [`pieces`] of three slices of one length, in step.
pub fn pieces3<T: Send>(values: [&mut [T]; 3], size: usize, work: impl Fn(usize, [&mut [T]; 3]) + Sync) {
    let work = inlined(
        #[inline(always)]
        |(number, values): (usize, [&mut [T]; 3])| work(number, values),
    );
    let [a, b, c] = values;
    assert!(a.len() == b.len() && b.len() == c.len(), "three slices of one length");
    if a.len() <= size {
        return run(&work, (0, [a, b, c]));
    }
    let all = a.par_chunks_mut(size).zip_eq(b.par_chunks_mut(size)).zip_eq(c.par_chunks_mut(size));
    all.enumerate().for_each(|(number, ((a, b), c))| run(&work, (number, [a, b, c])));
}

/// Adds up partial sums that lie one after the other, in their order.
pub fn sum_parts(parts: &[f32], width: usize) -> Vec<f32> {
    let mut sum = vec![0.0; width];
    let all = inlined(
        #[inline(always)]
        |sum: &mut [f32]| {
            for part in parts.chunks_exact(width) {
                add(sum, part);
            }
        },
    );
    run(&all, &mut sum);
    sum
}
