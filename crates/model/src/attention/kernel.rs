//! The feature map phi of linear and Hydra attention.

use burn::tensor::{Tensor, activation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Added to the squared norm of a token. A token of norm 1 changes by 5e-13 of its value, far below f32's resolution, while a token of
/// zeros gets the value 0 and a finite gradient (the paper's snippet divides by the bare norm and gives NaN there).
pub(crate) const NORM_EPSILON: f64 = 1e-12;

/// The feature map phi that linear and Hydra attention apply to queries and keys, over a token's whole width before heads are split.
///
/// Bolya et al., Hydra Attention, 2022 (arXiv 2209.07484), section 3 and table 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// x / ||x||: similarity is the cosine between query and key. The paper's choice.
    #[default]
    Cosine,
    /// x / sqrt(D): similarity is the mean of the products of features.
    Mean,
    /// tanh(x), per feature.
    Tanh,
    /// 1 / (1 + exp(-x)), per feature.
    Sigmoid,
    /// max(x, 0), per feature.
    Relu,
    /// Softmax over the features of a token. Which axis the paper took is not stated; over tokens is the other reading.
    Softmax,
    /// elu(x) + 1, per feature: x + 1 above zero, exp(x) below (Katharopoulos et al., 2020, arXiv 2006.16236).
    Elu1,
    /// x itself.
    Identity,
}

impl Kernel {
    /// Every kernel, in the order of the documentation.
    pub const ALL: [Self; 8] =
        [Self::Cosine, Self::Mean, Self::Tanh, Self::Sigmoid, Self::Relu, Self::Softmax, Self::Elu1, Self::Identity];

    /// The word that names the kernel in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Mean => "mean",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Relu => "relu",
            Self::Softmax => "softmax",
            Self::Elu1 => "elu1",
            Self::Identity => "identity",
        }
    }

    /// phi(x), in the float type of `x`.
    ///
    /// Shapes: `x` and the result `[batch, tokens, width]`. Values and gradients are finite for all-zero tokens and for features of
    /// size 1e4 in f32.
    pub fn apply(self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Cosine => {
                // One reciprocal per token and one product per feature: cheaper than a division per feature, forward and backward.
                let inverse_norm = x.clone().square().sum_dim(2).add_scalar(NORM_EPSILON).sqrt().recip();
                x * inverse_norm
            }
            Self::Mean => {
                let [_, _, width] = x.dims();
                x.mul_scalar((width as f64).sqrt().recip())
            }
            Self::Tanh => x.tanh(),
            Self::Sigmoid => activation::sigmoid(x),
            Self::Relu => activation::relu(x),
            Self::Softmax => activation::softmax(x, 2),
            // exp sees only what is below zero, so that a large feature overflows neither the value nor the gradient.
            Self::Elu1 => activation::relu(x.clone()) + x.clamp_max(0.0).exp(),
            Self::Identity => x,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn names_are_the_configurations_words() {
        for kernel in Kernel::ALL {
            let word = serde_json::to_value(kernel).expect("a word");
            assert_eq!(word, kernel.name());
        }
    }

    #[test]
    fn elu1_has_slope_one_at_zero() {
        let x = Tensor::<3>::zeros([1, 1, 1], &Device::flex().autodiff()).require_grad();
        let gradients = Kernel::Elu1.apply(x.clone()).sum().backward();
        let slope: f32 = x.grad(&gradients).expect("a gradient").into_scalar();
        assert_eq!(slope, 1.0);
    }

    #[test]
    fn cosine_tokens_have_length_one_at_every_scale() {
        let device = Device::flex();
        for scale in [1e-2, 1.0, 1e4] {
            let x = Tensor::<3>::from_data([[[3.0, -4.0], [1.0, 0.0]]], &device) * scale;
            let lengths = Kernel::Cosine.apply(x).square().sum_dim(2).sqrt();
            let lengths: Vec<f32> = lengths.into_data().try_into_vec().expect("f32");
            for length in lengths {
                assert!((length - 1.0).abs() < 1e-6, "{scale}: {length}");
            }
        }
    }
}
