//! Hydra attention: Bolya et al., 2022 (arXiv 2209.07484), section 3.3 and appendix C.

use super::Kernel;
use crate::precision::Operation::TokenSums;
use burn::tensor::{FloatDType, Tensor};

/// `phi(q) * sum_t(phi(k_t) * v_t)`, all products per feature, computed in f32.
///
/// The sum runs over every token, the class token included; there is no scale, no mask and no division by the number of tokens.
///
/// Shapes: `q`, `k`, `v` and the result `[batch, tokens, width]`, all of one float type. Costs `2 * tokens * width` multiply-accumulates
/// per image and memory in proportion to the tokens.
pub fn attention(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, kernel: Kernel) -> Tensor<3> {
    let dtype: FloatDType = q.dtype().into();
    let [q, k, v] = [q, k, v].map(|x| TokenSums.operand(x, dtype));
    let summary = (kernel.apply(k) * v).sum_dim(1);
    (kernel.apply(q) * summary).cast(dtype)
}
