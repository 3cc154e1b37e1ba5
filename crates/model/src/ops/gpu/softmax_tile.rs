//! Tiles of tokens in shared memory, and products of tiles in registers.
//!
//! A workgroup has [`SIDE`] x [`SIDE`] units. Of a product of two tiles a unit has the rows that follow each other from its height, and
//! every [`SIDE`]-th column from its place in the row, so that units beside each other read from different banks.

use cubecl::prelude::*;

type Four = Const<4>;

/// Units of a workgroup along each side, and in all.
pub const SIDE: usize = 8;
pub const UNITS: usize = SIDE * SIDE;

/// The size of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Tokens of a tile.
    pub tokens: usize,
    /// Vectors of a token of one head.
    pub head: usize,
    /// The same, filled up with zeros for all units to have as many.
    pub vectors: usize,
}

impl Tile {
    /// From a token of a tile to the next: one vector more than there are, for units of different rows to read from different banks.
    pub fn pitch(self) -> usize {
        self.vectors + 1
    }

    /// Vectors of a tile in shared memory.
    pub fn len(self) -> usize {
        self.tokens * self.pitch()
    }

    /// Rows, and columns, of a product that a unit has.
    pub fn own(self) -> usize {
        self.tokens / SIDE
    }

    /// Vectors of a token that a unit has.
    pub fn blocks(self) -> usize {
        self.vectors / SIDE
    }

    /// Bytes of shared memory that three tiles, a product and a number for each row and unit take.
    fn bytes(self) -> usize {
        3 * self.len() * 16 + self.tokens * (self.tokens + 1) * 4 + self.tokens * (SIDE + 1) * 4
    }
}

/// The largest tile of heads of `width` features that shared memory of `bytes` holds; the smallest fits 16 KiB.
pub fn tile_of(width: usize, bytes: usize) -> Tile {
    let head = width / 4;
    let tile = |tokens| Tile { tokens, head, vectors: head.next_multiple_of(SIDE) };
    // Larger ones for wide heads leave a processor too few workgroups.
    let most = 32 * 1024;
    [32, 16].map(tile).into_iter().find(|tile| tile.bytes() <= bytes.min(most)).unwrap_or(tile(8))
}

/// `length` vectors of zeros.
#[cube]
pub fn zeros(#[comptime] length: usize) -> Array<Vector<f32, Four>> {
    let mut zeros = Array::<Vector<f32, Four>>::new(length);
    #[unroll]
    for i in 0..length {
        zeros[i] = Vector::new(0.0);
    }
    zeros
}

/// The tile of `x` from `token` on, with zeros for tokens from `tokens` on. `first` is where the first token of the image is, `pitch` from
/// a token to the next, both in vectors.
#[cube]
pub fn load<F: Float>(
    x: &[Vector<F, Four>],
    first: usize,
    pitch: usize,
    token: usize,
    tokens: usize,
    into: &mut Shared<[Vector<f32, Four>]>,
    #[comptime] tile: Tile,
) {
    let steps = comptime!(tile.tokens * tile.vectors / UNITS);
    #[unroll]
    for step in 0..steps {
        let place = step * UNITS + UNIT_POS as usize;
        let row = place / tile.vectors;
        let column = place % tile.vectors;
        let mut value = Vector::<f32, Four>::new(0.0);
        if token + row < tokens && column < tile.head {
            value = Vector::cast_from(x[first + (token + row) * pitch + column]);
        }
        into[row * comptime!(tile.pitch()) + column] = value;
    }
}

/// The products of the unit's rows of `a` with its columns, rows of `b`: row by row.
#[cube]
pub fn products(a: &Shared<[Vector<f32, Four>]>, b: &Shared<[Vector<f32, Four>]>, #[comptime] tile: Tile) -> Array<f32> {
    let own = comptime!(tile.own());
    let pitch = comptime!(tile.pitch());
    let mut sums = Array::<f32>::new(comptime!(own * own));
    #[unroll]
    for i in 0..own * own {
        sums[i] = 0.0;
    }
    for column in 0..tile.vectors {
        let mut left = Array::<Vector<f32, Four>>::new(own);
        #[unroll]
        for i in 0..own {
            left[i] = a[(UNIT_POS_Y as usize * own + i) * pitch + column];
        }
        #[unroll]
        for j in 0..own {
            let right = b[(UNIT_POS_X as usize + j * SIDE) * pitch + column];
            #[unroll]
            for i in 0..own {
                let mut sum = sums[i * own + j];
                #[unroll]
                for part in 0..4usize {
                    sum = fma(left[i].extract(part), right.extract(part), sum);
                }
                sums[i * own + j] = sum;
            }
        }
    }
    sums
}

/// Adds to `sums` the products of the unit's rows of `factors` with the vectors of `b` that it has.
#[cube]
pub fn add_products(
    factors: &Shared<[f32]>,
    b: &Shared<[Vector<f32, Four>]>,
    sums: &mut Array<Vector<f32, Four>>,
    #[comptime] tile: Tile,
) {
    let own = comptime!(tile.own());
    let blocks = comptime!(tile.blocks());
    let pitch = comptime!(tile.pitch());
    for row in 0..tile.tokens {
        let mut left = Array::<f32>::new(own);
        #[unroll]
        for i in 0..own {
            left[i] = factors[(UNIT_POS_Y as usize * own + i) * (tile.tokens + 1) + row];
        }
        #[unroll]
        for block in 0..blocks {
            let right = b[row * pitch + block * SIDE + UNIT_POS_X as usize];
            #[unroll]
            for i in 0..own {
                sums[i * blocks + block] = fma(Vector::new(left[i]), right, sums[i * blocks + block]);
            }
        }
    }
}
