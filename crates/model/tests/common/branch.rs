//! A residual branch in its fused and in its plain form: a norm, a product, and the sum with what it branched off from.

use super::fused::{input, shaped};
use burn::tensor::Tensor;
use manyheads_model::ops::{self, Scales};

/// The branch of input `[batch, tokens, width]`, factors for features and samples where asked for. Inputs are the tokens, gamma and beta of
/// the norm, the bias, and the factors of features where there are some.
pub struct Branch {
    shape: [usize; 3],
    with_features: bool,
    samples: Option<Vec<f32>>,
}

impl Branch {
    pub fn new(shape: [usize; 3], with_features: bool, with_samples: bool) -> Self {
        let samples = with_samples.then(|| (0..shape[0]).map(|sample| [1.25, 0.0][sample % 2]).collect());
        Self { shape, with_features, samples }
    }

    pub fn inputs(&self) -> Vec<Vec<f32>> {
        let [batch, tokens, width] = self.shape;
        let vectors = if self.with_features { 2..6 } else { 2..5 };
        let mut inputs = vec![input(1, batch * tokens, width, 1.0)];
        inputs.extend(vectors.map(|seed| input(seed, 1, width, 1.0)));
        inputs
    }

    pub fn fused(&self, x: &[Tensor<1>]) -> Tensor<1> {
        // A product, so that gradients run through the branch and past it.
        let input = shaped(&x[0], self.shape) * 1.0;
        let (normed, skip) = ops::layer_norm_of_branch(input.clone(), x[1].clone(), x[2].clone(), 1e-6);
        let branch = normed * 0.5;
        ops::residual(input, branch, x[3].clone(), self.scales(x), skip).reshape([-1])
    }

    pub fn plain(&self, x: &[Tensor<1>]) -> Tensor<1> {
        let input = shaped(&x[0], self.shape) * 1.0;
        let branch = ops::layer_norm_plain(input.clone(), x[1].clone(), x[2].clone(), 1e-6) * 0.5;
        ops::residual_plain(input, branch, x[3].clone(), self.scales(x)).reshape([-1])
    }

    fn scales(&self, x: &[Tensor<1>]) -> Scales {
        Scales {
            features: self.with_features.then(|| x[4].clone()),
            samples: self.samples.as_ref().map(|samples| Tensor::from_data(&samples[..], &x[0].device())),
        }
    }
}
