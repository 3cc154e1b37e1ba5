//! The second pass of a sum that was cut into pieces.

use super::columns::sum_of_heights;
use super::rows::{LANES, ROWS, workgroup};
use super::tensor::{address, empty, grid, vector};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Pieces into which a sum over `count` things is cut, and things of a piece: `at_least` of them, and more where there would be more than
/// `most` pieces.
pub fn pieces(count: usize, at_least: usize, most: usize) -> (usize, usize) {
    let span = at_least.max(count.div_ceil(most)).max(1);
    (count.div_ceil(span).max(1), span)
}

/// The sums of `pieces` rows each, in f32.
///
/// Shapes: `partial` `[batch * pieces, width]` in f32 in memory order, result `[batch, width]`.
pub fn sum_pieces(partial: CubeTensor, batch: usize, pieces: usize, width: usize) -> CubeTensor {
    if pieces == 1 {
        return partial;
    }
    let sums = empty(&partial, [batch, width], DType::F32);
    let n = vector(width);
    let vectors = width / n;
    let columns = vectors.div_ceil(LANES);
    sum_pieces_kernel::launch(
        &partial.client.clone(),
        grid(batch * columns),
        workgroup(ROWS),
        address([&partial]),
        n,
        partial.into_buffer_arg(),
        sums.clone().into_buffer_arg(),
        batch,
        pieces,
        columns,
        vectors,
    );
    sums
}

/// A workgroup adds [`LANES`] vectors of a row of the result: each height of units a share of the pieces, then the first the shares.
#[cube(launch, address_type = "dynamic")]
fn sum_pieces_kernel<N: Size>(
    partial: &[Vector<f32, N>],
    sums: &mut [Vector<f32, N>],
    batch: usize,
    pieces: usize,
    columns: usize,
    #[comptime] vectors: usize,
) {
    let mut shares = Shared::<[Vector<f32, N>]>::new_slice(LANES * ROWS);
    let row = CUBE_POS / columns;
    let column = CUBE_POS % columns * LANES + UNIT_POS_X as usize;
    let height = UNIT_POS_Y as usize;
    let mut sum = Vector::<f32, N>::new(0.0);
    if row < batch && column < vectors {
        let share = pieces.div_ceil(ROWS);
        let mut piece = height * share;
        let to = min(piece + share, pieces);
        while piece < to {
            sum += partial[(row * pieces + piece) * vectors + column];
            piece += 1;
        }
    }
    let total = sum_of_heights::<N>(sum, &mut shares);
    if height == 0 && row < batch && column < vectors {
        sums[row * vectors + column] = total;
    }
}
