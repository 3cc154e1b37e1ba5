//! Softmax attention (MSA): Vaswani et al., Attention Is All You Need, 2017, section 3.2.

use super::{merge_heads, split_heads};
use crate::dropout::{Mask, drop};
use crate::precision::Operation;
use burn::tensor::{FloatDType, Tensor, activation};

/// Per head `softmax(q k^T / sqrt(D/H)) v`, with the softmax in f32.
///
/// Shapes: `q`, `k`, `v` and the result `[batch, tokens, width]`, all of one float type; `heads` divides the width.
/// Memory is `batch * heads * tokens^2`.
pub fn attention(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, heads: usize) -> Tensor<3> {
    dropping(q, k, v, heads, None)
}

/// The same with dropout of the softmax's result, `[batch, heads, tokens, tokens]`.
pub(crate) fn dropping(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, heads: usize, map: Option<&Mask<4>>) -> Tensor<3> {
    let [_, _, width] = q.dims();
    let head_width = width / heads;
    let dtype: FloatDType = q.dtype().into();

    // Scaling the queries touches T*D values, scaling the scores H*T^2.
    let q = split_heads(q.mul_scalar((head_width as f64).sqrt().recip()), heads);
    let k = split_heads(k, heads).swap_dims(2, 3);
    let v = split_heads(v, heads);

    if head_width == 1 {
        // A product with one column takes a matrix-vector kernel, which fused backends compute wrongly (burn#5122). Broadcasting gives
        // the same numbers without any product of matrices.
        let [q, k, v] = [q, k, v].map(|x| Operation::Softmax.operand(x, dtype));
        let weights = drop(activation::softmax(q * k, 3), map);
        let mixed = (weights * v.swap_dims(2, 3)).sum_dim(3);
        return merge_heads(mixed.cast(dtype));
    }

    let scores = Operation::Softmax.operand(q.matmul(k), dtype);
    let weights = drop(activation::softmax(scores, 3), map);
    merge_heads(Operation::SoftmaxProducts.operand(weights, dtype).matmul(v))
}
