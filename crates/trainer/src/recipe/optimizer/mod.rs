//! Optimizers over the parameters of a model, as PyTorch and timm compute them, with DeiT's parameter groups.
//!
//! Our own rather than Burn's: their state is keyed by the timm name of each parameter, so that a checkpoint that lacks a part is
//! an error and not a silent restart; decay follows DeiT's list; and moments are f32 whatever the model computes in (law 7).

mod slots;

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Device, Tensor, TensorData};
use manyheads_model::ops::{AdamW, Form, Fusible, adamw_step, adamw_step_plain};
use manyheads_model::weights::timm::{HeldTensor, Layout, NamedTensor};
use manyheads_model::{Ops, VisionTransformer};

use crate::config::{OptimizerConfig, OptimizerKind};
use crate::engine::gradients::{norm, sum};
use crate::error::{Error, Result};

pub use slots::{Slot, Slots, layer_rate};

/// An optimizer with its state.
///
/// - AdamW: Loshchilov & Hutter, "Decoupled Weight Decay Regularization"; the arithmetic is that of `torch.optim.AdamW`.
/// - LAMB: You et al., "Large Batch Optimization for Deep Learning" (arXiv 1904.00962); the arithmetic is that of timm's `Lamb`.
/// - SGD with momentum: the arithmetic is that of `torch.optim.SGD`.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    slots: Slots,
    /// Whether a step is one pass, where the device has that form.
    fused: bool,
    /// Running means, flat: for each of [`parts`] one tensor per trained parameter.
    state: Vec<Vec<Tensor<1>>>,
}

/// The names of an optimizer's running means.
fn parts(config: &OptimizerConfig) -> &'static [&'static str] {
    match config.kind {
        OptimizerKind::Adamw | OptimizerKind::Lamb => &["first", "second"],
        OptimizerKind::Sgd if config.momentum > 0.0 => &["momentum"],
        OptimizerKind::Sgd => &[],
    }
}

impl Optimizer {
    /// A fresh optimizer for the parameters `slots`, with a state of zeros on `device` (without autodiff).
    pub fn new(slots: Slots, config: &OptimizerConfig, ops: Ops, device: &Device) -> Self {
        let zeros = |_| slots.trained.iter().map(|slot| Tensor::zeros([slot.shape.iter().product::<usize>()], device)).collect();
        let state = parts(config).iter().map(zeros).collect();
        let fused = Form::of(&Tensor::<1>::zeros([1], device), ops).fuses(Fusible::AdamW);
        Self { config: config.clone(), state, slots, fused }
    }

    /// The parameters it updates.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Whether the passes over gradients are fused.
    pub fn fused(&self) -> bool {
        self.fused
    }

    /// One update. `gradients` are flat, one per trained parameter; `count` is the number of this update from 1, for the bias
    /// correction.
    pub fn update(
        &mut self,
        model: VisionTransformer,
        gradients: Vec<Tensor<1>>,
        learning_rate: f64,
        count: u64,
    ) -> VisionTransformer {
        self.update_unless(model, gradients, learning_rate, count, None)
    }

    /// [`Optimizer::update`], which changes neither weights nor state where `broken`, `[1]` on the device, is true.
    pub fn update_unless(
        &mut self,
        model: VisionTransformer,
        mut gradients: Vec<Tensor<1>>,
        learning_rate: f64,
        count: u64,
        broken: Option<&Tensor<1, Bool>>,
    ) -> VisionTransformer {
        assert_eq!(gradients.len(), self.slots.trained.len(), "one gradient per parameter");
        if self.config.kind == OptimizerKind::Lamb && self.config.lamb_clip_norm > 0.0 {
            let factor = (norm(&gradients, self.fused) / self.config.lamb_clip_norm).clamp_min(1.0).recip();
            gradients = gradients.into_iter().map(|gradient| gradient * factor.clone()).collect();
        }
        let [beta1, beta2] = self.config.betas;
        let mut mapper = Update {
            gradients: gradients.into_iter().map(Some).collect(),
            learning_rate,
            correction1: 1.0 - beta1.powf(count as f64),
            correction2: (1.0 - beta2.powf(count as f64)).sqrt(),
            visited: 0,
            broken,
            optimizer: self,
        };
        model.map(&mut mapper)
    }

    /// The state as `first.<name>`, `second.<name>` or `momentum.<name>`, in the module's shapes, held as it is now.
    pub fn hold(&self) -> Vec<HeldTensor> {
        let part = |(prefix, tensors): (&&str, &Vec<Tensor<1>>)| -> Vec<HeldTensor> {
            let named = self.slots.trained.iter().zip(tensors);
            let hold = |(slot, tensor): (&Slot, &Tensor<1>)| HeldTensor {
                name: format!("{prefix}.{}", slot.name),
                shape: slot.shape.clone(),
                values: tensor.clone(),
                layout: Layout::Same,
            };
            named.map(hold).collect()
        };
        parts(&self.config).iter().zip(&self.state).flat_map(part).collect()
    }

    /// Takes over a state held by [`Optimizer::hold`] and written down.
    ///
    /// # Errors
    /// Lists every tensor that is missing, has another shape, or belongs to no parameter; then nothing is taken over.
    pub fn import(&mut self, mut tensors: HashMap<String, NamedTensor>) -> Result<()> {
        let mut problems = Vec::new();
        let mut state = Vec::new();
        for (prefix, old) in parts(&self.config).iter().zip(&self.state) {
            let mut part = Vec::new();
            for (slot, old) in self.slots.trained.iter().zip(old) {
                let name = format!("{prefix}.{}", slot.name);
                match tensors.remove(&name) {
                    None => problems.push(format!("{name} is missing")),
                    Some(tensor) if tensor.shape != slot.shape => {
                        problems.push(format!("{name} has shape {:?} instead of {:?}", tensor.shape, slot.shape));
                    }
                    Some(tensor) => {
                        let length = tensor.values.len();
                        part.push(Tensor::from_data(TensorData::new(tensor.values, [length]), &old.device()));
                    }
                }
            }
            state.push(part);
        }
        problems.extend(tensors.into_keys().map(|name| format!("{name} belongs to no trained parameter of the model")));
        if !problems.is_empty() {
            problems.sort();
            return Err(Error::Failed(format!("the optimizer state does not fit the model: {}", problems.join("; "))));
        }
        self.state = state;
        Ok(())
    }
}

/// Walks the model and replaces each trained parameter by its updated value.
struct Update<'a> {
    optimizer: &'a mut Optimizer,
    gradients: Vec<Option<Tensor<1>>>,
    visited: usize,
    learning_rate: f64,
    correction1: f64,
    correction2: f64,
    broken: Option<&'a Tensor<1, Bool>>,
}

impl Update<'_> {
    /// [`Update::step`], which changes nothing where the gradient is broken.
    fn guarded(&mut self, place: usize, old: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
        let Some(broken) = self.broken else { return self.step(place, old, gradient) };
        let broken = broken.clone().expand(old.shape());
        let before: Vec<Tensor<1>> = self.optimizer.state.iter().map(|part| part[place].clone()).collect();
        let new = self.step(place, old.clone(), gradient);
        for (part, before) in self.optimizer.state.iter_mut().zip(before) {
            part[place] = part[place].clone().mask_where(broken.clone(), before);
        }
        new.mask_where(broken, old)
    }

    /// The old value, flat, to the new one.
    fn step(&mut self, place: usize, old: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
        let OptimizerConfig { kind, betas: [beta1, beta2], eps, momentum, nesterov, .. } = self.optimizer.config;
        let Slot { weight_decay, rate, .. } = self.optimizer.slots.trained[place];
        let learning_rate = self.learning_rate * rate;
        let empty = Tensor::zeros([0], &gradient.device());
        // The old moments are moved out, so that backends can work in place.
        let mut take = |part: usize| std::mem::replace(&mut self.optimizer.state[part][place], empty.clone());
        match kind {
            OptimizerKind::Adamw => {
                let numbers = AdamW {
                    betas: [beta1, beta2],
                    epsilon: eps,
                    learning_rate,
                    weight_decay,
                    correction1: self.correction1,
                    correction2: self.correction2,
                };
                let step = if self.optimizer.fused { adamw_step } else { adamw_step_plain };
                let [new, first, second] = step(numbers, old, gradient, take(0), take(1));
                self.optimizer.state[0][place] = first;
                self.optimizer.state[1][place] = second;
                new
            }
            OptimizerKind::Lamb => {
                let first = take(0) * beta1 + gradient.clone() * (1.0 - beta1);
                let second = take(1) * beta2 + gradient.square() * (1.0 - beta2);
                let denominator = second.clone().sqrt() / self.correction2 + eps;
                let moved = first.clone() / denominator;
                self.optimizer.state[0][place] = first;
                self.optimizer.state[1][place] = second;
                let moved = moved / self.correction1;
                if weight_decay == 0.0 {
                    // timm adapts the step of decayed parameters alone.
                    return old - moved * learning_rate;
                }
                let moved = moved + old.clone() * weight_decay;
                old.clone() - moved.clone() * trust(&old, &moved) * learning_rate
            }
            OptimizerKind::Sgd => {
                let gradient = if weight_decay == 0.0 { gradient } else { gradient + old.clone() * weight_decay };
                if momentum == 0.0 {
                    return old - gradient * learning_rate;
                }
                let average = take(0) * momentum + gradient.clone();
                let moved = if nesterov { gradient + average.clone() * momentum } else { average.clone() };
                self.optimizer.state[0][place] = average;
                old - moved * learning_rate
            }
        }
    }
}

/// LAMB's trust ratio, `[1]`: length of the parameter over that of its step, 1 where one of them is 0. Nothing is read back.
fn trust(parameter: &Tensor<1>, step: &Tensor<1>) -> Tensor<1> {
    let length = |tensor: &Tensor<1>| sum(tensor.clone().square()).sqrt();
    let (parameter, step) = (length(parameter), length(step));
    let degenerate = parameter.clone().equal_elem(0.0).bool_or(step.clone().equal_elem(0.0));
    (parameter / step).mask_fill(degenerate, 1.0)
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let place = self.optimizer.slots.places[self.visited];
        self.visited += 1;
        let Some(place) = place else { return param };
        let gradient = self.gradients[place].take().expect("a parameter is visited once");
        param.map(|old| {
            let shape = old.shape();
            let new = self.guarded(place, old.inner().reshape([-1]), gradient);
            Tensor::from_inner(new.reshape(shape)).require_grad()
        })
    }
}
