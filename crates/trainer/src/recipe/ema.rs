//! A running average of the weights (EMA).
//!
//! DeiT keeps one with timm's `ModelEma`: decay 0.99996 from the initial weights on. timm's `ModelEmaV3` can copy the weights for the
//! first steps and raise the decay slowly. Here the decay is a pure function of the step (law 2).

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Tensor};
use manyheads_model::VisionTransformer;
use manyheads_model::weights::timm::{self, HeldTensor, NamedTensor};

use crate::config::EmaConfig;
use crate::error::{Error, Result};

/// The average of a model's weights, without autodiff.
#[derive(Debug)]
pub struct Ema {
    config: EmaConfig,
    /// Taken out only while it is being updated.
    average: Option<VisionTransformer>,
}

impl Ema {
    /// An average that begins as the weights of `model`; none where the configuration has it off.
    pub fn new(model: &VisionTransformer, config: &EmaConfig) -> Option<Self> {
        config.enabled.then(|| Self { config: config.clone(), average: Some(model.valid()) })
    }

    /// The averaged model.
    pub fn model(&self) -> &VisionTransformer {
        self.average.as_ref().expect("the average is away only during an update")
    }

    /// Takes `model` into the average. `count` is the number of the optimizer's update from 1.
    pub fn update(&mut self, model: &VisionTransformer, count: u64) {
        self.update_unless(model, count, None);
    }

    /// [`Ema::update`], which changes nothing where `broken`, `[1]` on the device, is true.
    pub fn update_unless(&mut self, model: &VisionTransformer, count: u64, broken: Option<&Tensor<1, Bool>>) {
        let mut values = Values::default();
        model.visit(&mut values);
        let average = self.average.take().expect("the average is away only during an update");
        let mut blend = Blend { values: values.0.into_iter(), decay: decay(&self.config, count), broken };
        self.average = Some(average.map(&mut blend));
    }

    /// The average under timm's names.
    pub fn export(&self) -> Vec<NamedTensor> {
        timm::export(self.model())
    }

    /// The average under timm's names, held as it is now.
    pub fn hold(&self) -> Vec<HeldTensor> {
        timm::hold(self.model())
    }

    /// Takes over an average written by [`Ema::export`].
    ///
    /// # Errors
    /// Where tensors are missing, misshapen or unknown.
    pub fn import(&mut self, tensors: &mut HashMap<String, NamedTensor>) -> Result<()> {
        let average = crate::weights::into_model(self.model().clone(), tensors).map_err(|e| Error::Failed(e.to_string()))?;
        self.average = Some(average);
        Ok(())
    }
}

/// Share of the average that update `count` (from 1) keeps.
pub fn decay(config: &EmaConfig, count: u64) -> f64 {
    let Some(copied) = config.copy_steps.or(config.warmup.then_some(0)) else {
        return config.decay;
    };
    let step = count.saturating_sub(copied).saturating_sub(1);
    if step == 0 {
        return 0.0;
    }
    if !config.warmup {
        return config.decay;
    }
    let raised = 1.0 - (1.0 + step as f64 / config.warmup_gamma).powf(-config.warmup_power);
    raised.min(config.decay).max(config.min_decay)
}

/// The values of a model's parameters, flat.
#[derive(Default)]
struct Values(Vec<Tensor<1>>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let value = if value.is_autodiff() { value.inner() } else { value };
        self.0.push(value.reshape([-1]));
    }
}

struct Blend<'a> {
    values: std::vec::IntoIter<Tensor<1>>,
    decay: f64,
    broken: Option<&'a Tensor<1, Bool>>,
}

impl ModuleMapper for Blend<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.values.next().expect("both models have the same parameters");
        let decay = self.decay;
        param.map(|average| {
            let shape = average.shape();
            let average = average.reshape([-1]);
            let before = self.broken.map(|broken| (broken.clone().expand(average.shape()), average.clone()));
            // In this form, timm's, the average of a parameter that does not move is the parameter to the last bit.
            let blended = if decay == 0.0 { value } else { average.clone() + (value - average) * (1.0 - decay) };
            let blended = match before {
                Some((broken, before)) => blended.mask_where(broken, before),
                None => blended,
            };
            blended.reshape(shape)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deits_decay_is_constant_from_the_first_step() {
        let config = EmaConfig { enabled: true, ..EmaConfig::default() };
        assert_eq!([1, 2, 1000].map(|count| decay(&config, count)), [0.99996; 3]);
    }

    /// Values of timm 1.0.31's `ModelEmaV3.get_decay`.
    #[test]
    fn copying_and_warming_up_follow_timm() {
        let copy = EmaConfig { copy_steps: Some(2), decay: 0.9, ..EmaConfig::default() };
        assert_eq!([1, 2, 3, 4].map(|count| decay(&copy, count)), [0.0, 0.0, 0.0, 0.9]);
        let warm = EmaConfig { warmup: true, decay: 0.999, ..EmaConfig::default() };
        assert_eq!(decay(&warm, 1), 0.0);
        assert!((decay(&warm, 2) - (1.0 - 2f64.powf(-2.0 / 3.0))).abs() < 1e-12);
        assert!((decay(&warm, 11) - (1.0 - 11f64.powf(-2.0 / 3.0))).abs() < 1e-12);
        assert_eq!(decay(&warm, 100_000), 0.999);
    }
}
