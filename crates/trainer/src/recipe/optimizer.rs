//! AdamW over the parameters of a model, as PyTorch computes it, with DeiT's parameter groups.
//!
//! Our own rather than Burn's: its state is keyed by the timm name of each parameter, so that a checkpoint that lacks a part is
//! an error and not a silent restart; decay follows DeiT's list; and moments are f32 whatever the model computes in (law 7).

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};
use manyheads_model::weights::timm::NamedTensor;
use manyheads_model::{VisionTransformer, parameter_name, weight_decay};

use crate::config::OptimizerConfig;
use crate::error::{Error, Result};

/// One parameter of the model as the optimizer sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    /// timm's name.
    pub name: String,
    /// Shape in the module (linear weights are `[in, out]`).
    pub shape: Vec<usize>,
    /// Whether weight decay applies.
    pub decay: bool,
}

/// The parameters of a model in the order in which Burn visits them.
pub fn slots(model: &VisionTransformer) -> Vec<Slot> {
    struct Visitor {
        path: Vec<String>,
        slots: Vec<Slot>,
    }
    impl ModuleVisitor for Visitor {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let name = parameter_name(&self.path);
            let decay = weight_decay(&name, D);
            self.slots.push(Slot { name, shape: param.val().dims().to_vec(), decay });
        }
    }
    let mut visitor = Visitor { path: Vec::new(), slots: Vec::new() };
    model.visit(&mut visitor);
    visitor.slots
}

/// AdamW: Loshchilov & Hutter, "Decoupled Weight Decay Regularization"; the arithmetic is that of `torch.optim.AdamW`.
#[derive(Debug)]
pub struct AdamW {
    config: OptimizerConfig,
    slots: Vec<Slot>,
    /// Running mean of the gradient, flat, one per slot.
    first: Vec<Tensor<1>>,
    /// Running mean of the squared gradient, flat, one per slot.
    second: Vec<Tensor<1>>,
}

impl AdamW {
    /// A fresh optimizer for `model`, with moments of zero on `device` (without autodiff).
    pub fn new(model: &VisionTransformer, config: &OptimizerConfig, device: &Device) -> Self {
        let slots = slots(model);
        let zeros = || slots.iter().map(|slot| Tensor::zeros([slot.shape.iter().product::<usize>()], device)).collect();
        Self { config: config.clone(), first: zeros(), second: zeros(), slots }
    }

    /// The parameters it updates.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// One update. `gradients` are flat, one per slot; `count` is the number of this update from 1, for the bias correction.
    pub fn update(
        &mut self,
        model: VisionTransformer,
        gradients: Vec<Tensor<1>>,
        learning_rate: f64,
        count: u64,
    ) -> VisionTransformer {
        assert_eq!(gradients.len(), self.slots.len(), "one gradient per parameter");
        let [beta1, beta2] = self.config.betas;
        let mut mapper = Update {
            optimizer: self,
            gradients: gradients.into_iter().enumerate(),
            learning_rate,
            correction1: 1.0 - beta1.powf(count as f64),
            correction2: (1.0 - beta2.powf(count as f64)).sqrt(),
        };
        model.map(&mut mapper)
    }

    /// The moments as `first.<name>` and `second.<name>`, flat data in the module's shapes.
    pub fn export(&self) -> Vec<NamedTensor> {
        let part = |prefix: &str, tensors: &[Tensor<1>]| -> Vec<NamedTensor> {
            let named = self.slots.iter().zip(tensors);
            named
                .map(|(slot, tensor)| NamedTensor {
                    name: format!("{prefix}.{}", slot.name),
                    shape: slot.shape.clone(),
                    values: tensor.clone().into_data().try_into_vec().expect("moments are f32"),
                })
                .collect()
        };
        [part("first", &self.first), part("second", &self.second)].concat()
    }

    /// Takes over moments written by [`AdamW::export`].
    ///
    /// # Errors
    /// Lists every tensor that is missing, has another shape, or belongs to no parameter; then nothing is taken over.
    pub fn import(&mut self, mut tensors: std::collections::HashMap<String, NamedTensor>) -> Result<()> {
        let mut problems = Vec::new();
        let mut moments = [Vec::new(), Vec::new()];
        for (prefix, moment) in ["first", "second"].into_iter().zip(&mut moments) {
            for (slot, old) in self.slots.iter().zip(&self.first) {
                let name = format!("{prefix}.{}", slot.name);
                match tensors.remove(&name) {
                    None => problems.push(format!("{name} is missing")),
                    Some(tensor) if tensor.shape != slot.shape => {
                        problems.push(format!("{name} has shape {:?} instead of {:?}", tensor.shape, slot.shape));
                    }
                    Some(tensor) => {
                        let length = tensor.values.len();
                        moment.push(Tensor::from_data(TensorData::new(tensor.values, [length]), &old.device()));
                    }
                }
            }
        }
        problems.extend(tensors.into_keys().map(|name| format!("{name} belongs to no parameter of the model")));
        if !problems.is_empty() {
            problems.sort();
            return Err(Error::Failed(format!("the optimizer state does not fit the model: {}", problems.join("; "))));
        }
        [self.first, self.second] = moments;
        Ok(())
    }
}

/// Walks the model and replaces each parameter by its updated value.
struct Update<'a> {
    optimizer: &'a mut AdamW,
    gradients: std::iter::Enumerate<std::vec::IntoIter<Tensor<1>>>,
    learning_rate: f64,
    correction1: f64,
    correction2: f64,
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (slot, gradient) = self.gradients.next().expect("one gradient per parameter");
        let OptimizerConfig { betas: [beta1, beta2], eps, weight_decay, .. } = self.optimizer.config;
        let take = |moments: &mut Vec<Tensor<1>>| {
            let empty = Tensor::zeros([0], &gradient.device());
            std::mem::replace(&mut moments[slot], empty)
        };
        // The old moments are moved out, so that backends can work in place.
        let first = take(&mut self.optimizer.first) * beta1 + gradient.clone() * (1.0 - beta1);
        let second = take(&mut self.optimizer.second) * beta2 + gradient.square() * (1.0 - beta2);
        let denominator = second.clone().sqrt() / self.correction2 + eps;
        let step = first.clone() / denominator * (self.learning_rate / self.correction1);
        self.optimizer.first[slot] = first;
        self.optimizer.second[slot] = second;
        let decay = if self.optimizer.slots[slot].decay { self.learning_rate * weight_decay } else { 0.0 };
        param.map(|old| {
            let shape = old.shape();
            let old = old.inner().reshape([-1]);
            let kept = if decay == 0.0 { old } else { old * (1.0 - decay) };
            Tensor::from_inner((kept - step).reshape(shape)).require_grad()
        })
    }
}
