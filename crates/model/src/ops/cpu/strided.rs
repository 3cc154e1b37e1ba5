//! Views of matrices whose rows lie apart, so that the heads of packed queries, keys and values are read and written where they are.

#![expect(unsafe_code, reason = "disjoint columns of one matrix, written by several threads, are not slices")]

use std::marker::PhantomData;

/// Rows of equal width at equal distance in a slice.
#[derive(Debug)]
pub(crate) struct Rows<'a, T> {
    data: &'a [T],
    stride: usize,
    width: usize,
}

// Not derived: a copy of the view asks nothing of `T`.
impl<T> Clone for Rows<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    /// The columns `start .. start + width` of a row-major matrix with `stride` columns.
    pub(crate) fn of_columns(matrix: &'a [T], stride: usize, start: usize, width: usize) -> Self {
        assert!(start + width <= stride, "columns {start}..{} of a matrix with {stride}", start + width);
        Self { data: matrix.get(start..).unwrap_or_default(), stride, width }
    }

    /// Row `index`, `width` long.
    #[inline(always)]
    pub(crate) fn row(&self, index: usize) -> &'a [T] {
        let start = index * self.stride;
        &self.data[start..start + self.width]
    }
}

/// A rectangle of a row-major matrix, to be written. Rectangles made by splitting do not overlap, so each may go to another thread.
#[derive(Debug)]
pub(crate) struct RectangleMut<'a, T> {
    start: *mut T,
    rows: usize,
    width: usize,
    stride: usize,
    matrix: PhantomData<&'a mut [T]>,
}

// SAFETY: a rectangle is an exclusive borrow of its elements, as `&mut [T]` is, and reaches no others.
unsafe impl<T: Send> Send for RectangleMut<'_, T> {}

impl<'a, T> RectangleMut<'a, T> {
    /// The whole of a row-major matrix with `width` columns.
    pub(crate) fn new(matrix: &'a mut [T], width: usize) -> Self {
        assert!(width > 0 && matrix.len().is_multiple_of(width), "{} elements in rows of {width}", matrix.len());
        Self { start: matrix.as_mut_ptr(), rows: matrix.len() / width, width, stride: width, matrix: PhantomData }
    }

    /// Rectangles of `width` columns, from left to right.
    pub(crate) fn split_columns(self, width: usize) -> impl Iterator<Item = Self> {
        assert!(width > 0 && self.width.is_multiple_of(width), "{} columns in parts of {width}", self.width);
        (0..self.width / width).map(move |index| {
            let start = self.start.wrapping_add(index * width);
            Self { start, width, ..self.same() }
        })
    }

    /// Rectangles of `rows` rows, from the top; the last may have fewer.
    pub(crate) fn split_rows(self, rows: usize) -> impl Iterator<Item = Self> {
        assert!(rows > 0, "parts of no rows");
        (0..self.rows.div_ceil(rows)).map(move |index| {
            let first = index * rows;
            let start = self.start.wrapping_add(first * self.stride);
            Self { start, rows: rows.min(self.rows - first), ..self.same() }
        })
    }

    /// Row `index`.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, index: usize) -> &mut [T] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        // SAFETY: the matrix holds `rows` rows at `stride`, the rectangle's `width` columns lie inside each (`new`, `split_columns`,
        // `split_rows` keep this), and no other rectangle holds any of them (splitting consumes the rectangle that is split).
        unsafe { std::slice::from_raw_parts_mut(self.start.add(index * self.stride), self.width) }
    }

    /// The same rectangle again. Only for splitting, which hands out disjoint parts of it.
    fn same(&self) -> Self {
        Self { start: self.start, rows: self.rows, width: self.width, stride: self.stride, matrix: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_matrix_once() {
        let mut matrix = vec![0; 5 * 6];
        for (block, rows) in RectangleMut::new(&mut matrix, 6).split_rows(2).enumerate() {
            for (column, mut part) in rows.split_columns(3).enumerate() {
                for row in 0..if block == 2 { 1 } else { 2 } {
                    part.row_mut(row).iter_mut().for_each(|x| *x += 1 + 10 * block + column);
                }
            }
        }
        let expected: Vec<usize> = (0..30).map(|at| 1 + 10 * (at / 12) + at % 6 / 3).collect();
        assert_eq!(matrix, expected);
    }

    #[test]
    #[should_panic(expected = "row 2 of 2")]
    fn rows_end_at_the_part() {
        let mut matrix = [0; 8];
        let mut parts: Vec<_> = RectangleMut::new(&mut matrix, 2).split_rows(2).collect();
        parts[0].row_mut(2);
    }

    #[test]
    fn rows_of_columns() {
        let matrix: Vec<usize> = (0..12).collect();
        let rows = Rows::of_columns(&matrix, 4, 1, 2);
        assert_eq!([rows.row(0), rows.row(2)], [&[1, 2], &[9, 10]]);
    }
}
