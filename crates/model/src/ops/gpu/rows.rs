//! Rows of a tensor that lanes of a workgroup share.
//!
//! A workgroup is [`LANES`] units wide; units of one height share a row.

use cubecl::prelude::*;

/// Units that share a row.
pub const LANES: usize = 32;

/// Rows that a workgroup of a kernel over rows has.
pub const ROWS: usize = 8;

/// The shape of a workgroup of `rows` rows.
pub fn workgroup(rows: usize) -> CubeDim {
    CubeDim::new_2d(LANES as u32, rows as u32)
}

/// The sum of `value` over the lanes of a row, for each of them. `scratch` has a number for each unit.
///
/// Every lane adds all numbers: they are at one address for all, which costs less than steps that all have to wait for.
#[cube]
pub fn sum_of_lanes(value: f32, scratch: &mut Shared<[f32]>) -> f32 {
    let first = UNIT_POS_Y as usize * LANES;
    sync_cube();
    scratch[first + UNIT_POS_X as usize] = value;
    sync_cube();
    let mut sum = 0.0f32;
    #[unroll]
    for lane in 0..LANES {
        sum += scratch[first + lane];
    }
    sum
}

/// The greatest `value` of the lanes of a row, for each of them. `scratch` has a number for each unit.
#[cube]
pub fn max_of_lanes(value: f32, scratch: &mut Shared<[f32]>) -> f32 {
    let first = UNIT_POS_Y as usize * LANES;
    sync_cube();
    scratch[first + UNIT_POS_X as usize] = value;
    sync_cube();
    let mut greatest = scratch[first];
    #[unroll]
    for lane in 1..LANES {
        greatest = max(greatest, scratch[first + lane]);
    }
    greatest
}

/// The sum of the values of a vector.
#[cube]
pub fn sum_of_vector<N: Size>(x: Vector<f32, N>) -> f32 {
    let mut sum = x.extract(0usize);
    #[unroll]
    for i in 1..N::value() {
        sum += x.extract(i);
    }
    sum
}

/// The greatest value of a vector.
#[cube]
pub fn max_of_vector<N: Size>(x: Vector<f32, N>) -> f32 {
    let mut greatest = x.extract(0usize);
    #[unroll]
    for i in 1..N::value() {
        greatest = max(greatest, x.extract(i));
    }
    greatest
}
