//! Multi-head linear attention on GPUs: phi in one pass over the packed tokens, and per head products of matrices, which Burn tunes.

use super::phi::{along, phi, phi_backward, statistics};
use super::rows::{LANES, ROWS, sum_of_lanes, sum_of_vector, workgroup};
use super::tensor::{address, element, empty, grid, in_order, vector};
use crate::attention::kernel::Kernel;
use crate::ops::LinearAttentionOps;
use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::kernel::slice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::zspace::{Strides, metadata::Metadata};

impl LinearAttentionOps for CubeBackend {
    fn linear_attention(qkv: CubeTensor, heads: usize, kernel: Kernel) -> CubeTensor {
        let qkv = in_order(qkv);
        let shape = Packed::of(&qkv, heads);
        let mixed = empty(&qkv, [shape.batch, shape.tokens, shape.width], qkv.dtype);
        if shape.batch * shape.tokens > 0 {
            let [queries, keys] = shape.features(&qkv, kernel);
            let summary = product(transposed(shape.heads(keys)), shape.heads(shape.values(&qkv)), None);
            product(shape.heads(queries), summary, Some(shape.heads(mixed.clone())));
        }
        mixed
    }

    fn linear_attention_backward(qkv: CubeTensor, gradient: CubeTensor, heads: usize, kernel: Kernel) -> CubeTensor {
        let (qkv, gradient) = (in_order(qkv), in_order(gradient));
        let shape = Packed::of(&qkv, heads);
        let out = empty(&qkv, [shape.batch, shape.tokens, 3 * shape.width], qkv.dtype);
        if shape.batch * shape.tokens == 0 {
            return out;
        }
        let [queries, keys] = shape.features(&qkv, kernel).map(|features| shape.heads(features));
        let values = shape.heads(shape.values(&qkv));
        let gradient = shape.heads(gradient);
        let summary = product(transposed(keys.clone()), values.clone(), None);
        let summary_gradient = product(transposed(queries), gradient.clone(), None);
        let into_tokens = |left: CubeTensor, right: CubeTensor| {
            let out = empty(&qkv, [shape.batch, shape.tokens, shape.width], qkv.dtype);
            product(left, right, Some(shape.heads(out.clone())));
            out
        };
        let of_queries = into_tokens(gradient, transposed(summary));
        let of_keys = into_tokens(values, transposed(summary_gradient.clone()));
        let of_values = into_tokens(keys, summary_gradient);
        spread::launch(
            &qkv.client.clone(),
            grid((shape.batch * shape.tokens).div_ceil(ROWS)),
            workgroup(ROWS),
            address([&qkv]),
            shape.n,
            qkv.clone().into_buffer_arg(),
            of_queries.into_buffer_arg(),
            of_keys.into_buffer_arg(),
            of_values.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            shape.batch * shape.tokens,
            shape.width / shape.n,
            kernel,
            element(&qkv),
        );
        out
    }
}

/// The sides of packed queries, keys and values.
#[derive(Clone, Copy)]
struct Packed {
    batch: usize,
    tokens: usize,
    width: usize,
    heads: usize,
    /// Values of a vector.
    n: usize,
}

impl Packed {
    /// # Panics
    /// Where the width is not three times `heads` heads.
    fn of(qkv: &CubeTensor, heads: usize) -> Self {
        let [batch, tokens, tripled] = qkv.shape().dims();
        assert!(heads > 0 && tripled.is_multiple_of(3 * heads), "queries, keys and values of {heads} heads in rows of {tripled}");
        let width = tripled / 3;
        Self { batch, tokens, width, heads, n: vector(width) }
    }

    /// phi of queries and keys, `[batch, tokens, width]` each.
    fn features(self, qkv: &CubeTensor, kernel: Kernel) -> [CubeTensor; 2] {
        let features = [0, 1].map(|_| empty(qkv, [self.batch, self.tokens, self.width], qkv.dtype));
        let [queries, keys] = features.clone();
        features_kernel::launch(
            &qkv.client.clone(),
            grid((self.batch * self.tokens).div_ceil(ROWS)),
            workgroup(ROWS),
            address([qkv]),
            self.n,
            qkv.clone().into_buffer_arg(),
            queries.into_buffer_arg(),
            keys.into_buffer_arg(),
            self.batch * self.tokens,
            self.width / self.n,
            kernel,
            element(qkv),
        );
        features
    }

    /// The values, `[batch, tokens, width]`: no copy where the device can begin to read there.
    fn values(self, qkv: &CubeTensor) -> CubeTensor {
        slice(qkv.clone(), &[0..self.batch, 0..self.tokens, 2 * self.width..3 * self.width])
    }

    /// `[batch, tokens, width]` as `[batch, heads, tokens, width / heads]`, the same memory.
    fn heads(self, mut x: CubeTensor) -> CubeTensor {
        let head_width = self.width / self.heads;
        let [image, token, feature] = [0, 1, 2].map(|axis| x.meta.strides()[axis]);
        let shape = Shape::new([self.batch, self.heads, self.tokens, head_width]);
        x.meta = Box::new(Metadata::new(shape, Strides::new(&[image, head_width * feature, token, feature])));
        x
    }
}

/// Matrices with their sides swapped, the same memory.
fn transposed(mut x: CubeTensor) -> CubeTensor {
    x.meta.swap(2, 3);
    x
}

/// The products of matrices, into `out` where there is one.
fn product(left: CubeTensor, right: CubeTensor, out: Option<CubeTensor>) -> CubeTensor {
    let dtype: DType = left.dtype;
    matmul(left, right, out, MatmulStrategy::default(), dtype).expect("a kernel for any product of matrices")
}

/// phi of queries and keys, a token for each height of units.
#[cube(launch, address_type = "dynamic")]
fn features_kernel<F: Float, N: Size>(
    qkv: &[Vector<F, N>],
    queries: &mut [Vector<F, N>],
    keys: &mut [Vector<F, N>],
    all: usize,
    #[comptime] vectors: usize,
    #[comptime] kernel: Kernel,
    #[define(F)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(ROWS * LANES);
    let row = CUBE_POS * ROWS + UNIT_POS_Y as usize;
    let query = min(row, all - 1) * 3 * vectors;
    let key = query + vectors;
    // One after the other, so that few numbers are alive at a time.
    let of_query = statistics::<F, N>(qkv, query, vectors, kernel, &mut scratch);
    if row < all {
        let mut i = UNIT_POS_X as usize;
        while i < vectors {
            queries[row * vectors + i] = Vector::cast_from(phi::<N>(Vector::cast_from(qkv[query + i]), &of_query, kernel));
            i += LANES;
        }
    }
    let of_key = statistics::<F, N>(qkv, key, vectors, kernel, &mut scratch);
    if row < all {
        let mut i = UNIT_POS_X as usize;
        while i < vectors {
            keys[row * vectors + i] = Vector::cast_from(phi::<N>(Vector::cast_from(qkv[key + i]), &of_key, kernel));
            i += LANES;
        }
    }
}

/// The gradient of a token's query, key and value from those of phi of the query, phi of the key, and the value: a token for each height of
/// units.
#[cube(launch, address_type = "dynamic")]
fn spread<F: Float, N: Size>(
    qkv: &[Vector<F, N>],
    of_queries: &[Vector<F, N>],
    of_keys: &[Vector<F, N>],
    of_values: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    all: usize,
    #[comptime] vectors: usize,
    #[comptime] kernel: Kernel,
    #[define(F)] _element: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(ROWS * LANES);
    let row = CUBE_POS * ROWS + UNIT_POS_Y as usize;
    let own = min(row, all - 1);
    let query = own * 3 * vectors;
    let key = query + vectors;
    let upstream = own * vectors;

    let of_query = statistics::<F, N>(qkv, query, vectors, kernel, &mut scratch);
    let of_key = statistics::<F, N>(qkv, key, vectors, kernel, &mut scratch);
    let mut query_along = 0.0f32;
    let mut key_along = 0.0f32;
    if comptime!(along(kernel)) {
        let mut i = UNIT_POS_X as usize;
        while i < vectors {
            let q = phi::<N>(Vector::cast_from(qkv[query + i]), &of_query, kernel);
            let k = phi::<N>(Vector::cast_from(qkv[key + i]), &of_key, kernel);
            query_along += sum_of_vector::<N>(q * Vector::cast_from(of_queries[upstream + i]));
            key_along += sum_of_vector::<N>(k * Vector::cast_from(of_keys[upstream + i]));
            i += LANES;
        }
        query_along = sum_of_lanes(query_along, &mut scratch);
        key_along = sum_of_lanes(key_along, &mut scratch);
    }
    if row < all {
        let mut i = UNIT_POS_X as usize;
        while i < vectors {
            let q = Vector::<f32, N>::cast_from(qkv[query + i]);
            let k = Vector::<f32, N>::cast_from(qkv[key + i]);
            let dq = Vector::<f32, N>::cast_from(of_queries[upstream + i]);
            let dk = Vector::<f32, N>::cast_from(of_keys[upstream + i]);
            out[query + i] = Vector::cast_from(phi_backward::<N>(q, dq, &of_query, query_along, kernel));
            out[key + i] = Vector::cast_from(phi_backward::<N>(k, dk, &of_key, key_along, kernel));
            out[key + vectors + i] = of_values[upstream + i];
            i += LANES;
        }
    }
}
