//! Activation recomputation: of each block the forward pass keeps the input alone, and the backward pass computes the block again from it.
//!
//! Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016 (arXiv 1604.06174), with a block as a segment. What a block drops is
//! an argument of it and not drawn anew, so both computations, and with them the gradients, are the same to the last bit wherever a device
//! computes the same twice. Autodiff sees one block at a time, so nothing here depends on the backend.

use crate::dropout::DropoutMasks;
use crate::ops::Compute;
use crate::pixels::Pixels;
use crate::vit::{Drops, Heads, VisionTransformer};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

/// The backward pass of a [`VisionTransformer::recomputing`].
#[derive(Debug)]
pub struct Recomputation<'a> {
    model: &'a VisionTransformer,
    drops: Drops<'a>,
    compute: Compute,
    /// The tokens that the embedding makes.
    embedded: Tensor<3>,
    /// The tokens that enter each block, as leaves.
    inputs: Vec<Tensor<3>>,
    /// The tokens after the last block, as a leaf.
    output: Tensor<3>,
}

impl VisionTransformer {
    /// [`VisionTransformer::dropping`], which keeps the input of each block and nothing else of the blocks. Of a loss of the logits
    /// [`Recomputation::backward`] makes the gradients.
    ///
    /// # Panics
    /// Where shapes do not fit the model.
    pub fn recomputing<'a>(
        &'a self,
        pixels: impl Into<Pixels>,
        stochastic_depth: Option<Tensor<3>>,
        masks: Option<&'a DropoutMasks>,
    ) -> (Heads, Recomputation<'a>) {
        let pixels = pixels.into();
        let compute = self.compute(&pixels);
        let drops = Drops { stochastic_depth, masks };
        let embedded = self.embed(pixels, &drops, compute);
        // Below the lowest trained parameter no gradient is needed, and none is asked for.
        let mut trained = embedded.is_tracked();
        let mut x = leaf(&embedded, trained);
        let mut inputs = Vec::with_capacity(self.blocks.len());
        for (index, block) in self.blocks.iter().enumerate() {
            trained |= is_trained(block);
            let next = drops.block(&block.clone().no_grad(), index, x.clone().set_require_grad(false), compute);
            inputs.push(std::mem::replace(&mut x, leaf(&next, trained)));
        }
        let heads = self.classify(x.clone(), masks, compute);
        (heads, Recomputation { model: self, drops, compute, embedded, inputs, output: x })
    }
}

impl Recomputation<'_> {
    /// The gradients of a loss of the logits: each trained parameter's is in one of them, and in one alone.
    pub fn backward(self, loss: Tensor<1>) -> Vec<Gradients> {
        let Self { model, drops, compute, embedded, inputs, output } = self;
        let mut all = Vec::with_capacity(inputs.len() + 2);
        let mut gradients = loss.backward();
        let mut gradient = output.grad_remove(&mut gradients);
        all.push(gradients);
        drop(output);
        for (index, (block, input)) in model.blocks.iter().zip(inputs).enumerate().rev() {
            let Some(above) = gradient else { return all };
            let mut gradients = through(drops.block(block, index, input.clone(), compute), above);
            gradient = input.grad_remove(&mut gradients);
            all.push(gradients);
        }
        if let Some(above) = gradient {
            all.push(through(embedded, above));
        }
        all
    }
}

/// A tensor's values without what they were computed from.
fn leaf(x: &Tensor<3>, tracked: bool) -> Tensor<3> {
    x.clone().detach().set_require_grad(tracked)
}

/// The gradients of what `y` was computed from, given that of `y`: those of the sum of their products.
fn through(y: Tensor<3>, gradient: Tensor<3>) -> Gradients {
    (y * Tensor::from_inner(gradient)).sum().backward()
}

/// Whether a module has a parameter that wants a gradient.
fn is_trained(module: &impl Module) -> bool {
    #[derive(Default)]
    struct Trained(bool);
    impl ModuleVisitor for Trained {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 |= param.val().is_require_grad();
        }
    }
    let mut trained = Trained::default();
    module.visit(&mut trained);
    trained.0
}
