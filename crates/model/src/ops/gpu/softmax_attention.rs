//! Softmax attention on GPUs, in tiles.
//!
//! A workgroup has a tile of tokens of one head and goes over the other tokens tile by tile: queries over keys forward and for their own
//! gradients, keys over queries for those of keys and values. The backward passes compute the scores again.

use super::softmax_tile::{SIDE, Tile, UNITS, add_products, load, products, tile_of, zeros};
use super::tensor::{address, element, empty, empty_like, grid, in_order};
use crate::ops::SoftmaxAttentionOps;
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

type Four = Const<4>;

/// Less than any score: a key that is not there.
const NONE: f32 = -1e30;

/// Whether heads of `width` features are computed in tiles.
pub fn fits(width: usize) -> bool {
    width.is_multiple_of(4) && width <= 128
}

impl SoftmaxAttentionOps for CubeBackend {
    fn softmax_attention(qkv: CubeTensor, heads: usize) -> (CubeTensor, CubeTensor) {
        let qkv = in_order(qkv);
        let cut = Cut::of(&qkv, heads);
        let out = empty(&qkv, [cut.batch, cut.tokens, cut.width], qkv.dtype);
        let statistics = empty(&qkv, [cut.batch, heads, cut.tokens, 2], DType::F32);
        if cut.workgroups() > 0 {
            forward::launch(
                &qkv.client.clone(),
                grid(cut.workgroups()),
                workgroup(),
                address([&qkv]),
                qkv.clone().into_buffer_arg(),
                out.clone().into_buffer_arg(),
                statistics.clone().into_buffer_arg(),
                cut.tokens,
                heads,
                cut.workgroups(),
                cut.scale,
                cut.tile,
                element(&qkv),
            );
        }
        (out, statistics)
    }

    fn softmax_attention_backward(
        qkv: CubeTensor,
        mixed: CubeTensor,
        statistics: CubeTensor,
        gradient: CubeTensor,
        heads: usize,
    ) -> CubeTensor {
        let [qkv, mixed, statistics, gradient] = [qkv, mixed, statistics, gradient].map(in_order);
        let cut = Cut::of(&qkv, heads);
        let out = empty_like(&qkv);
        let rows = cut.batch * cut.tokens * heads;
        if rows == 0 {
            return out;
        }
        let client = qkv.client.clone();
        let means = empty(&qkv, [cut.batch, heads, cut.tokens], DType::F32);
        row_means::launch(
            &client,
            grid(rows.div_ceil(UNITS)),
            workgroup(),
            address([&qkv]),
            mixed.into_buffer_arg(),
            gradient.clone().into_buffer_arg(),
            means.clone().into_buffer_arg(),
            cut.tokens,
            heads,
            rows,
            cut.tile,
            element(&qkv),
        );
        // The two write different thirds of `out`.
        query_gradients::launch(
            &client,
            grid(cut.workgroups()),
            workgroup(),
            address([&qkv]),
            qkv.clone().into_buffer_arg(),
            gradient.clone().into_buffer_arg(),
            statistics.clone().into_buffer_arg(),
            means.clone().into_buffer_arg(),
            out.clone().into_buffer_arg(),
            cut.tokens,
            heads,
            cut.workgroups(),
            cut.scale,
            cut.tile,
            element(&qkv),
        );
        key_gradients::launch(
            &client,
            grid(cut.workgroups()),
            workgroup(),
            address([&qkv]),
            qkv.clone().into_buffer_arg(),
            gradient.into_buffer_arg(),
            statistics.into_buffer_arg(),
            means.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            cut.tokens,
            heads,
            cut.workgroups(),
            cut.scale,
            cut.tile,
            element(&qkv),
        );
        out
    }
}

fn workgroup() -> CubeDim {
    CubeDim::new_2d(SIDE as u32, SIDE as u32)
}

/// How packed queries, keys and values are cut into tiles.
struct Cut {
    batch: usize,
    tokens: usize,
    width: usize,
    heads: usize,
    scale: f32,
    tile: Tile,
}

impl Cut {
    fn of(qkv: &CubeTensor, heads: usize) -> Self {
        let [batch, tokens, tripled] = qkv.shape().dims();
        let width = tripled / 3;
        let head_width = width / heads;
        let memory = qkv.client.properties().hardware.max_shared_memory_size;
        let scale = (head_width as f64).sqrt().recip() as f32;
        Self { batch, tokens, width, heads, scale, tile: tile_of(head_width, memory) }
    }

    fn workgroups(&self) -> usize {
        self.batch * self.heads * self.tokens.div_ceil(self.tile.tokens)
    }
}

/// Where the numbers of a workgroup's head are, in vectors.
#[derive(CubeType, Clone, Copy)]
struct Place {
    /// The first token of the workgroup's tile.
    token: usize,
    /// The first query of the head in the image, and from a query to that of the next token.
    query: usize,
    pitch: usize,
    /// From a query to its key, and from its key to its value.
    third: usize,
    /// The first token of the head in the image in what is mixed.
    mixed: usize,
    /// The first token of the head in what is kept for each.
    row: usize,
}

/// The place of the workgroup of number `position`.
#[cube]
fn place(position: usize, tokens: usize, heads: usize, #[comptime] tile: Tile) -> Place {
    let tiles = tokens.div_ceil(tile.tokens);
    let head = position / tiles % heads;
    let image = position / tiles / heads;
    let third = heads * tile.head;
    Place {
        token: position % tiles * tile.tokens,
        query: image * tokens * 3 * third + head * tile.head,
        pitch: 3 * third,
        third,
        mixed: image * tokens * third + head * tile.head,
        row: (image * heads + head) * tokens,
    }
}

#[cube(launch, address_type = "dynamic")]
fn forward<F: Float>(
    qkv: &[Vector<F, Four>],
    out: &mut [Vector<F, Four>],
    statistics: &mut [f32],
    tokens: usize,
    heads: usize,
    all: usize,
    scale: f32,
    #[comptime] tile: Tile,
    #[define(F)] _element: ElemType,
) {
    let mut queries = Shared::<[Vector<f32, Four>]>::new_slice(tile.len());
    let mut others = Shared::<[Vector<f32, Four>]>::new_slice(tile.len());
    let mut weights = Shared::<[f32]>::new_slice(tile.tokens * (tile.tokens + 1));
    let mut partial = Shared::<[f32]>::new_slice(tile.tokens * (SIDE + 1));
    let at = place(min(CUBE_POS, all - 1), tokens, heads, tile);
    let x = UNIT_POS_X as usize;
    let y = UNIT_POS_Y as usize;
    let own = comptime!(tile.own());
    let blocks = comptime!(tile.blocks());

    load::<F>(qkv, at.query, at.pitch, at.token, tokens, &mut queries, tile);
    let mut mixed = zeros(comptime!(own * blocks));
    let mut greatest = Array::<f32>::new(own);
    let mut sums = Array::<f32>::new(own);
    #[unroll]
    for i in 0..own {
        greatest[i] = NONE;
        sums[i] = 0.0;
    }
    let mut token = 0usize;
    while token < tokens {
        sync_cube();
        load::<F>(qkv, at.query + at.third, at.pitch, token, tokens, &mut others, tile);
        sync_cube();
        let mut scores = products(&queries, &others, tile);
        #[unroll]
        for i in 0..own {
            let mut most = greatest[i];
            #[unroll]
            for j in 0..own {
                let mut score = scores[i * own + j] * scale;
                if token + x + j * SIDE >= tokens {
                    score = NONE;
                }
                scores[i * own + j] = score;
                most = max(most, score);
            }
            partial[(y * own + i) * (SIDE + 1) + x] = most;
        }
        sync_cube();
        load::<F>(qkv, at.query + 2 * at.third, at.pitch, token, tokens, &mut others, tile);
        #[unroll]
        for i in 0..own {
            let mut most = greatest[i];
            #[unroll]
            for other in 0..SIDE {
                most = max(most, partial[(y * own + i) * (SIDE + 1) + other]);
            }
            let shrink = (greatest[i] - most).exp();
            greatest[i] = most;
            let mut sum = sums[i] * shrink;
            #[unroll]
            for j in 0..own {
                let weight = (scores[i * own + j] - most).exp();
                weights[(y * own + i) * (tile.tokens + 1) + x + j * SIDE] = weight;
                sum += weight;
            }
            sums[i] = sum;
            #[unroll]
            for block in 0..blocks {
                mixed[i * blocks + block] *= Vector::new(shrink);
            }
        }
        sync_cube();
        add_products(&weights, &others, &mut mixed, tile);
        token += tile.tokens;
    }

    // Each unit has the sum of its own columns.
    #[unroll]
    for i in 0..own {
        partial[(y * own + i) * (SIDE + 1) + x] = sums[i];
    }
    sync_cube();
    #[unroll]
    for i in 0..own {
        let mut sum = 0.0f32;
        #[unroll]
        for other in 0..SIDE {
            sum += partial[(y * own + i) * (SIDE + 1) + other];
        }
        let inverse = 1.0 / sum;
        let row = at.token + y * own + i;
        if row < tokens && CUBE_POS < all {
            #[unroll]
            for block in 0..blocks {
                let column = block * SIDE + x;
                if column < tile.head {
                    let value = mixed[i * blocks + block] * Vector::new(inverse);
                    out[at.mixed + row * at.third + column] = Vector::cast_from(value);
                }
            }
            if x == 0 {
                statistics[(at.row + row) * 2] = greatest[i];
                statistics[(at.row + row) * 2 + 1] = inverse;
            }
        }
    }
}

/// The products of the rows of the result and of its gradient: the weighted mean of the gradients of a row's weights. They are summed as
/// [`products`] sums the gradients of the weights, so that where one weight is all, it and the mean are the same number. A unit for each token
/// and head.
#[cube(launch, address_type = "dynamic")]
fn row_means<F: Float>(
    mixed: &[Vector<F, Four>],
    gradient: &[Vector<F, Four>],
    means: &mut [f32],
    tokens: usize,
    heads: usize,
    rows: usize,
    #[comptime] tile: Tile,
    #[define(F)] _element: ElemType,
) {
    let row = CUBE_POS * UNITS + UNIT_POS as usize;
    if row < rows {
        let head = row % heads;
        let token = row / heads;
        let mut sum = 0.0f32;
        for i in 0..tile.head {
            let left = Vector::<f32, Four>::cast_from(gradient[row * tile.head + i]);
            let right = Vector::<f32, Four>::cast_from(mixed[row * tile.head + i]);
            #[unroll]
            for part in 0..4usize {
                sum = fma(left.extract(part), right.extract(part), sum);
            }
        }
        means[(token / tokens * heads + head) * tokens + token % tokens] = sum;
    }
}

#[cube(launch, address_type = "dynamic")]
fn query_gradients<F: Float>(
    qkv: &[Vector<F, Four>],
    gradient: &[Vector<F, Four>],
    statistics: &[f32],
    means: &[f32],
    out: &mut [Vector<F, Four>],
    tokens: usize,
    heads: usize,
    all: usize,
    scale: f32,
    #[comptime] tile: Tile,
    #[define(F)] _element: ElemType,
) {
    let mut queries = Shared::<[Vector<f32, Four>]>::new_slice(tile.len());
    let mut gradients = Shared::<[Vector<f32, Four>]>::new_slice(tile.len());
    let mut others = Shared::<[Vector<f32, Four>]>::new_slice(tile.len());
    let mut slopes = Shared::<[f32]>::new_slice(tile.tokens * (tile.tokens + 1));
    let at = place(min(CUBE_POS, all - 1), tokens, heads, tile);
    let x = UNIT_POS_X as usize;
    let y = UNIT_POS_Y as usize;
    let own = comptime!(tile.own());
    let blocks = comptime!(tile.blocks());

    load::<F>(qkv, at.query, at.pitch, at.token, tokens, &mut queries, tile);
    load::<F>(gradient, at.mixed, at.third, at.token, tokens, &mut gradients, tile);
    let mut greatest = Array::<f32>::new(own);
    let mut inverse = Array::<f32>::new(own);
    let mut mean = Array::<f32>::new(own);
    #[unroll]
    for i in 0..own {
        let row = at.row + min(at.token + y * own + i, tokens - 1);
        greatest[i] = statistics[row * 2];
        inverse[i] = statistics[row * 2 + 1];
        mean[i] = means[row];
    }
    let mut sums = zeros(comptime!(own * blocks));
    let mut token = 0usize;
    while token < tokens {
        sync_cube();
        load::<F>(qkv, at.query + 2 * at.third, at.pitch, token, tokens, &mut others, tile);
        sync_cube();
        let of_weights = products(&gradients, &others, tile);
        sync_cube();
        load::<F>(qkv, at.query + at.third, at.pitch, token, tokens, &mut others, tile);
        sync_cube();
        let scores = products(&queries, &others, tile);
        #[unroll]
        for i in 0..own {
            #[unroll]
            for j in 0..own {
                let mut slope = 0.0f32;
                if token + x + j * SIDE < tokens {
                    let weight = (scores[i * own + j] * scale - greatest[i]).exp() * inverse[i];
                    slope = weight * (of_weights[i * own + j] - mean[i]) * scale;
                }
                slopes[(y * own + i) * (tile.tokens + 1) + x + j * SIDE] = slope;
            }
        }
        sync_cube();
        add_products(&slopes, &others, &mut sums, tile);
        token += tile.tokens;
    }
    #[unroll]
    for i in 0..own {
        let row = at.token + y * own + i;
        if row < tokens && CUBE_POS < all {
            #[unroll]
            for block in 0..blocks {
                let column = block * SIDE + x;
                if column < tile.head {
                    out[at.query + row * at.pitch + column] = Vector::cast_from(sums[i * blocks + block]);
                }
            }
        }
    }
}

#[cube(launch, address_type = "dynamic")]
fn key_gradients<F: Float>(
    qkv: &[Vector<F, Four>],
    gradient: &[Vector<F, Four>],
    statistics: &[f32],
    means: &[f32],
    out: &mut [Vector<F, Four>],
    tokens: usize,
    heads: usize,
    all: usize,
    scale: f32,
    #[comptime] tile: Tile,
    #[define(F)] _element: ElemType,
) {
    let mut keys = Shared::<[Vector<f32, Four>]>::new_slice(tile.len());
    let mut values = Shared::<[Vector<f32, Four>]>::new_slice(tile.len());
    let mut others = Shared::<[Vector<f32, Four>]>::new_slice(tile.len());
    let mut factors = Shared::<[f32]>::new_slice(tile.tokens * (tile.tokens + 1));
    let at = place(min(CUBE_POS, all - 1), tokens, heads, tile);
    let x = UNIT_POS_X as usize;
    let y = UNIT_POS_Y as usize;
    let own = comptime!(tile.own());
    let blocks = comptime!(tile.blocks());

    load::<F>(qkv, at.query + at.third, at.pitch, at.token, tokens, &mut keys, tile);
    load::<F>(qkv, at.query + 2 * at.third, at.pitch, at.token, tokens, &mut values, tile);
    let mut of_keys = zeros(comptime!(own * blocks));
    let mut of_values = zeros(comptime!(own * blocks));
    let mut token = 0usize;
    while token < tokens {
        sync_cube();
        load::<F>(qkv, at.query, at.pitch, token, tokens, &mut others, tile);
        sync_cube();
        // Rows are keys here, and columns queries.
        let scores = products(&keys, &others, tile);
        let mut weights = Array::<f32>::new(comptime!(own * own));
        #[unroll]
        for j in 0..own {
            let query = token + x + j * SIDE;
            let row = at.row + min(query, tokens - 1);
            let greatest = statistics[row * 2];
            let inverse = statistics[row * 2 + 1];
            #[unroll]
            for i in 0..own {
                let mut weight = 0.0f32;
                if query < tokens && at.token + y * own + i < tokens {
                    weight = (scores[i * own + j] * scale - greatest).exp() * inverse;
                }
                weights[i * own + j] = weight;
                factors[(y * own + i) * (tile.tokens + 1) + x + j * SIDE] = weight;
            }
        }
        sync_cube();
        load::<F>(gradient, at.mixed, at.third, token, tokens, &mut others, tile);
        sync_cube();
        let of_weights = products(&values, &others, tile);
        add_products(&factors, &others, &mut of_values, tile);
        sync_cube();
        load::<F>(qkv, at.query, at.pitch, token, tokens, &mut others, tile);
        #[unroll]
        for j in 0..own {
            let mean = means[at.row + min(token + x + j * SIDE, tokens - 1)];
            #[unroll]
            for i in 0..own {
                let slope = weights[i * own + j] * (of_weights[i * own + j] - mean) * scale;
                factors[(y * own + i) * (tile.tokens + 1) + x + j * SIDE] = slope;
            }
        }
        sync_cube();
        add_products(&factors, &others, &mut of_keys, tile);
        token += tile.tokens;
    }
    #[unroll]
    for i in 0..own {
        let row = at.token + y * own + i;
        if row < tokens && CUBE_POS < all {
            #[unroll]
            for block in 0..blocks {
                let column = block * SIDE + x;
                if column < tile.head {
                    let key = at.query + at.third + row * at.pitch + column;
                    out[key] = Vector::cast_from(of_keys[i * blocks + block]);
                    out[key + at.third] = Vector::cast_from(of_values[i * blocks + block]);
                }
            }
        }
    }
}
