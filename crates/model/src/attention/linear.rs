//! Multi-head linear attention (MLA): Katharopoulos et al., 2020 (arXiv 2006.16236) without the normaliser, as Bolya et al., 2022
//! (arXiv 2209.07484), section 3.2 writes it.

use super::{Kernel, hydra, merge_heads, split_heads};
use crate::precision::Operation::TokenSums;
use burn::tensor::{FloatDType, Tensor};

/// Per head `phi(q_h) (phi(k_h)^T v_h)`, computed in f32, with phi over the whole width before heads are split.
///
/// Shapes: `q`, `k`, `v` and the result `[batch, tokens, width]`, all of one float type; `heads` divides the width.
/// Costs `2 * tokens * width^2 / heads` multiply-accumulates per image; memory is `batch * width^2 / heads` besides the tokens.
/// At `heads = width` it is Hydra attention.
pub fn attention(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, heads: usize, kernel: Kernel) -> Tensor<3> {
    let [_, _, width] = q.dims();
    if heads == width {
        // Heads of one feature would be matrix-vector products, which fused backends compute wrongly (burn#5122); the element-wise form
        // is exact and cheaper.
        return hydra::attention(q, k, v, kernel);
    }

    let dtype: FloatDType = q.dtype().into();
    let [q, k, v] = [q, k, v].map(|x| TokenSums.operand(x, dtype));
    let q = split_heads(kernel.apply(q), heads);
    let k = split_heads(kernel.apply(k), heads);
    let v = split_heads(v, heads);

    let summary = k.swap_dims(2, 3).matmul(v);
    merge_heads(q.matmul(summary)).cast(dtype)
}
