//! Sums over all rows of a tensor, column by column: the gradients of biases and factors.
//!
//! A workgroup takes [`LANES`] vectors of a piece of the rows. Its heights take the rows in turn, and their sums are added at the end.

use super::rows::{LANES, ROWS};
use super::sums::{pieces, sum_pieces};
use super::tensor::{empty, grid};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Rows that share a piece, and pieces.
const SPAN: usize = 32;
const PIECES: usize = 256;

/// How the rows are cut.
#[derive(Clone, Copy)]
pub struct Columns {
    pub rows: usize,
    pub pieces: usize,
    pub span: usize,
    /// Workgroups side by side.
    pub blocks: usize,
    width: usize,
}

impl Columns {
    /// `rows` rows of `width` values in vectors of `n`.
    pub fn of(rows: usize, width: usize, n: usize) -> Self {
        let (pieces, span) = pieces(rows, SPAN, PIECES);
        Self { rows, pieces, span, blocks: (width / n).div_ceil(LANES), width }
    }

    pub fn grid(&self) -> CubeCount {
        grid(self.pieces * self.blocks)
    }

    /// Where the sums of the pieces go.
    pub fn partial(&self, like: &CubeTensor) -> CubeTensor {
        empty(like, [self.pieces, self.width], DType::F32)
    }

    /// The sums over the pieces, `[width]`.
    pub fn total(&self, partial: CubeTensor) -> CubeTensor {
        let sums = sum_pieces(partial, 1, self.pieces, self.width);
        burn_cubecl::ops::reshape(sums, [self.width].into())
    }
}

/// The sum of `value` over the heights of a workgroup; only height 0 gets it. `shares` has a vector for each unit.
#[cube]
pub fn sum_of_heights<N: Size>(value: Vector<f32, N>, shares: &mut Shared<[Vector<f32, N>]>) -> Vector<f32, N> {
    let lane = UNIT_POS_X as usize;
    sync_cube();
    shares[UNIT_POS_Y as usize * LANES + lane] = value;
    sync_cube();
    let mut total = value;
    if UNIT_POS_Y == 0 {
        #[unroll]
        for height in 1..ROWS {
            total += shares[height * LANES + lane];
        }
    }
    total
}
