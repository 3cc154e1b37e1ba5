//! Small matrix products over packed operands that stay in a core's cache, the inner loops of attention.
//!
//! A product's right operand is packed in *panels*: of `n` rows each, two vectors wide, the last one vector wide where the number of
//! vectors is odd. Everything is f32. The order of every sum depends on the shapes alone.

use super::element::Element;
use super::strided::Rows;
use pulp::{Simd, WithSimd};
use std::array::from_fn;

/// Rows of an inner loop: with two vectors each it keeps twelve sums, four short of AVX2's registers.
pub(crate) const TILE_ROWS: usize = 6;

/// Vectors of f32 that hold `width` values.
#[inline(always)]
pub(crate) fn vectors<S: Simd>(width: usize) -> usize {
    width.div_ceil(S::F32_LANES)
}

/// Columns of a panel.
#[inline(always)]
pub(crate) fn panel_width<S: Simd>() -> usize {
    2 * S::F32_LANES
}

/// How a product meets what its output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Onto {
    /// Replaces it.
    Empty,
    /// Adds to it.
    Sum,
}

/// `out (+)= a b`: `a` `[rows, n]` with `a_stride`, `b` panels of `n` rows and `columns` vectors in all, `out` `[rows, columns]`
/// with `out_stride`.
#[inline(always)]
pub(crate) fn product<S: Simd>(simd: S, a: (&[f32], usize), sizes: [usize; 3], b: &[f32], out: (&mut [f32], usize), onto: Onto) {
    simd.vectorize(Product { a, transposed: false, sizes, b, out, onto });
}

/// `out += a^T b`: `a` `[n, rows]` with `a_stride`, the rest as in [`product`].
#[inline(always)]
pub(crate) fn transposed_product<S: Simd>(simd: S, a: (&[f32], usize), sizes: [usize; 3], b: &[f32], out: (&mut [f32], usize)) {
    simd.vectorize(Product { a, transposed: true, sizes, b, out, onto: Onto::Sum });
}

/// A product as a function of its own: within another one the sums of an inner loop would share the registers with what that one keeps.
struct Product<'a> {
    a: (&'a [f32], usize),
    transposed: bool,
    sizes: [usize; 3],
    b: &'a [f32],
    out: (&'a mut [f32], usize),
    onto: Onto,
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { a: (a, a_stride), transposed, sizes: [rows, n, columns], b, out: (out, out_stride), onto } = self;
        let mut column = 0;
        while column < columns {
            let wide = if columns - column >= 2 { 2 } else { 1 };
            let panel = &b[column * S::F32_LANES * n..][..wide * S::F32_LANES * n];
            let mut row = 0;
            while row < rows {
                let height = TILE_ROWS.min(rows - row);
                let out = (&mut out[row * out_stride + column * S::F32_LANES..], out_stride);
                let a = if transposed { (&a[row..], a_stride) } else { (&a[row * a_stride..], a_stride) };
                macro_rules! tile {
                    ($($height:literal)*) => {
                        match (height, wide, transposed) {
                            $(($height, 2, false) => row_tile::<S, $height, 2>(simd, a, n, panel, out, onto),
                              ($height, _, false) => row_tile::<S, $height, 1>(simd, a, n, panel, out, onto),
                              ($height, 2, true) => column_tile::<S, $height, 2>(simd, a, n, panel, out, onto),
                              ($height, _, true) => column_tile::<S, $height, 1>(simd, a, n, panel, out, onto),)*
                            _ => unreachable!("a tile has 1 to {TILE_ROWS} rows"),
                        }
                    };
                }
                tile!(1 2 3 4 5 6);
                row += height;
            }
            column += wide;
        }
    }
}

#[inline(always)]
fn row_tile<S: Simd, const R: usize, const V: usize>(
    simd: S,
    (a, a_stride): (&[f32], usize),
    n: usize,
    panel: &[f32],
    out: (&mut [f32], usize),
    onto: Onto,
) {
    let rows: [&[f32]; R] = from_fn(|i| &a[i * a_stride..i * a_stride + n]);
    let panel = &panel_vectors::<S, V>(panel)[..n];
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    for p in 0..n {
        let b = panel[p];
        for i in 0..R {
            let a = simd.splat_f32s(rows[i][p]);
            for v in 0..V {
                sums[i][v] = simd.mul_add_f32s(a, b[v], sums[i][v]);
            }
        }
    }
    store(simd, sums, out, onto);
}

#[inline(always)]
fn column_tile<S: Simd, const R: usize, const V: usize>(
    simd: S,
    (a, a_stride): (&[f32], usize),
    n: usize,
    panel: &[f32],
    out: (&mut [f32], usize),
    onto: Onto,
) {
    let panel = &panel_vectors::<S, V>(panel)[..n];
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    // The last row of `a` may end where the tile does.
    for (a, b) in a.chunks(a_stride).zip(panel) {
        let a = &a[..R];
        for i in 0..R {
            let a = simd.splat_f32s(a[i]);
            for v in 0..V {
                sums[i][v] = simd.mul_add_f32s(a, b[v], sums[i][v]);
            }
        }
    }
    store(simd, sums, out, onto);
}

#[inline(always)]
fn panel_vectors<S: Simd, const V: usize>(panel: &[f32]) -> &[[S::f32s; V]] {
    S::as_simd_f32s(panel).0.as_chunks::<V>().0
}

#[inline(always)]
fn store<S: Simd, const R: usize, const V: usize>(
    simd: S,
    sums: [[S::f32s; V]; R],
    (out, out_stride): (&mut [f32], usize),
    onto: Onto,
) {
    for (i, sums) in sums.into_iter().enumerate() {
        let out = S::as_mut_simd_f32s(&mut out[i * out_stride..][..V * S::F32_LANES]).0;
        for v in 0..V {
            out[v] = match onto {
                Onto::Empty => sums[v],
                Onto::Sum => simd.add_f32s(out[v], sums[v]),
            };
        }
    }
}

/// Packs rows as they are, times `factor`: `out` `[rows, stride]`, of which the first `width` columns are written.
#[inline(always)]
pub(crate) fn pack_rows<E: Element>(
    rows: Rows<'_, E>,
    range: std::ops::Range<usize>,
    factor: f32,
    out: &mut [f32],
    stride: usize,
) {
    for (index, out) in range.zip(out.chunks_exact_mut(stride)) {
        for (out, x) in out.iter_mut().zip(rows.row(index)) {
            *out = x.widen() * factor;
        }
    }
}

/// Packs rows, times `factor`, as panels whose rows are these rows: the right operand of a sum over them. Columns beyond the width are 0.
#[inline(always)]
pub(crate) fn pack_panels<S: Simd, E: Element>(
    rows: Rows<'_, E>,
    range: std::ops::Range<usize>,
    factor: f32,
    width: usize,
    out: &mut [f32],
) {
    let n = range.len();
    let columns = vectors::<S>(width) * S::F32_LANES;
    let full = panel_width::<S>();
    for (at, index) in range.enumerate() {
        let row = rows.row(index);
        let mut column = 0;
        while column < columns {
            let wide = full.min(columns - column);
            let out = &mut out[column * n + at * wide..][..wide];
            let row = &row[column..width.min(column + wide)];
            for (out, x) in out.iter_mut().zip(row) {
                *out = x.widen() * factor;
            }
            out[row.len()..].fill(0.0);
            column += wide;
        }
    }
}

/// Packs rows as panels whose columns are these rows: the right operand of products with rows of the same width. Columns that fill up
/// the last panel are 0.
#[inline(always)]
pub(crate) fn pack_transposed<S: Simd, E: Element>(
    rows: Rows<'_, E>,
    range: std::ops::Range<usize>,
    width: usize,
    out: &mut [f32],
) {
    let full = panel_width::<S>();
    for (start, panel) in range.clone().step_by(full).zip(out.chunks_exact_mut(full * width)) {
        let here = full.min(range.end - start);
        if here < full {
            panel.fill(0.0);
        }
        // Eight rows at a time: eight streams of reads and short runs of writes.
        let mut lane = 0;
        while lane < here {
            if here - lane >= 8 {
                let rows: [&[E]; 8] = from_fn(|i| &rows.row(start + lane + i)[..width]);
                for (p, out) in panel.chunks_exact_mut(full).enumerate() {
                    let out = &mut out[lane..lane + 8];
                    for i in 0..8 {
                        out[i] = rows[i][p].widen();
                    }
                }
                lane += 8;
            } else {
                let row = &rows.row(start + lane)[..width];
                for (out, x) in panel.chunks_exact_mut(full).zip(row) {
                    out[lane] = x.widen();
                }
                lane += 1;
            }
        }
    }
}
