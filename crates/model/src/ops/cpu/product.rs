//! Products of matrices.
#![expect(unsafe_code, reason = "the gemm crate takes pointers and strides")]

use super::buffer::overwritten;
use gemm::Parallelism;

/// A matrix in memory: element (i, j) lies at `i * stride[0] + j * stride[1]`.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    shape: [usize; 2],
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// A matrix whose rows lie one after the other.
    ///
    /// # Panics
    /// Where there are not that many values.
    pub fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} x {columns}");
        Self { values, shape: [rows, columns], strides: [columns, 1] }
    }

    /// A matrix whose elements lie `strides` apart in `values`, from the first on.
    ///
    /// # Panics
    /// Where one would lie beyond the end.
    pub fn strided(values: &'a [f32], shape: [usize; 2], strides: [usize; 2]) -> Self {
        let last: usize = shape.iter().zip(&strides).map(|(side, stride)| side.saturating_sub(1) * stride).sum();
        assert!(shape.contains(&0) || last < values.len(), "a matrix of {shape:?} with strides {strides:?}");
        Self { values, shape, strides }
    }

    /// The same values, rows as columns.
    pub fn transposed(self) -> Self {
        let Self { values, shape: [rows, columns], strides: [down, across] } = self;
        Self { values, shape: [columns, rows], strides: [across, down] }
    }
}

/// Multiply-accumulates below which a second thread does not pay.
const ALONE: usize = 1 << 20;

/// The product of two matrices, row by row, on all threads. Every element is a sum in one order, whatever the number of threads.
///
/// # Panics
/// Where the inner sides differ.
pub fn product(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
    let ([m, k], [inner, n]) = (a.shape, b.shape);
    assert_eq!(k, inner, "a product of {m} x {k} with {inner} x {n}");
    let mut out = overwritten(m * n);
    let threads = if m * n * k < ALONE { Parallelism::None } else { Parallelism::Rayon(0) };
    let stride = |stride: usize| stride as isize;
    // SAFETY: `Matrix` holds exactly the elements that its shape and strides reach, the output has m * n elements of stride (n, 1), and
    // it is written, not read.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride(n),
            false,
            a.values.as_ptr(),
            stride(a.strides[1]),
            stride(a.strides[0]),
            b.values.as_ptr(),
            stride(b.strides[1]),
            stride(b.strides[0]),
            0.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
    out
}
