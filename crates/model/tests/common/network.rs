//! A small network with every kind of layer, LayerScale and dropped branches, for the forms of its operations to be compared in.

use super::fused::{dense, values, weights};
use super::rng;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, FloatDType, Tensor};
use manyheads_model::{ModelConfig, Ops};

/// Its logits, and the gradient of every parameter.
pub fn run(device: &Device, ops: Ops, float: FloatDType) -> Vec<Vec<f32>> {
    let text = "
        image_size = 24
        patch_size = 8
        width = 36
        heads = 3
        depth = 3
        classes = 7
        layer_scale = 0.5
        [attention]
        kind = \"hydra\"
        overrides = [{ kind = \"softmax\", layers = [1] }, { kind = \"linear\", layers = [2] }]
    ";
    let config: ModelConfig = toml::from_str(text).expect("a model");
    let mut architecture = config.resolve().expect("a network");
    architecture.ops = ops;
    let device = device.clone().autodiff();
    let images = Tensor::<1>::from_data(&dense(3, 2, 3 * 24 * 24, 1.0)[..], &device).reshape([2, 3, 24, 24]);
    let factors =
        Tensor::<1>::from_data([1.0, 1.25, 0.0, 1.0, 1.0, 0.0, 1.25, 1.0, 1.0, 1.0, 1.25, 1.25], &device).reshape([3, 2, 2]);
    let model = architecture.init(&mut rng(9), &device);
    let logits = model.forward(images.cast(float), Some(factors));
    // The gradient of a tensor is that of its sum.
    let gradients = (logits.clone() * Tensor::<1>::from_data(&weights(14)[..], &device).reshape([2, 7])).backward();
    let mut all = Gradients { gradients: &gradients, found: vec![values(logits.inner())] };
    model.visit(&mut all);
    all.found
}

struct Gradients<'a> {
    gradients: &'a burn::tensor::Gradients,
    found: Vec<Vec<f32>>,
}

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        self.found.push(values(parameter.val().grad(self.gradients).expect("every parameter has a gradient")));
    }
}
