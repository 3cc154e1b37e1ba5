//! One optimizer step: forward and backward over its batches, then one update.

use burn::tensor::{Device, Tensor, TensorData};
use manyheads_data::Batch;
use manyheads_model::{Architecture, VisionTransformer};

use super::gradients::GradientSum;
use crate::checkpoint::PendingStep;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::recipe::loss::{smooth_targets, soft_cross_entropy_sum};
use crate::recipe::optimizer::AdamW;
use crate::recipe::stochastic_depth;

/// The network with its optimizer: everything that a step changes.
pub struct Learner {
    /// Taken out only while it is being updated.
    model: Option<VisionTransformer>,
    optimizer: AdamW,
    device: Device,
    rates: Vec<f64>,
    seed: u64,
    smoothing: f64,
    clip_norm: f64,
}

/// The gradient of a step, growing batch by batch.
pub struct Window {
    gradients: GradientSum,
    /// Sum of the images' losses so far, on the device.
    loss: Option<Tensor<1>>,
    /// Images that the step would have if none were unreadable: the divisor of the loss.
    planned: usize,
    images: usize,
}

/// What a step says of itself. Its numbers may still be on the device.
#[derive(Debug)]
pub enum StepReport {
    /// Numbers on the device: sum of losses, gradient norm; and the images.
    OnDevice(Box<[Tensor<1>; 2]>, u64),
    /// Numbers on the host.
    Read(PendingStep),
}

impl Window {
    /// A step of `planned` images.
    pub fn new(planned: usize) -> Self {
        Self { gradients: GradientSum::default(), loss: None, planned, images: 0 }
    }
}

impl Learner {
    /// A learner for `model`, whose parameters live on `device` with autodiff.
    pub fn new(model: VisionTransformer, architecture: &Architecture, config: &Config, device: &Device) -> Self {
        let device = device.clone().inner();
        Self {
            optimizer: AdamW::new(&model, &config.optimizer, &device),
            model: Some(model),
            rates: architecture.drop_path_rates(),
            seed: config.run.seed,
            smoothing: config.train.label_smoothing,
            clip_norm: config.optimizer.clip_norm,
            device,
        }
    }

    /// The model as it is trained.
    pub fn model(&self) -> &VisionTransformer {
        self.model.as_ref().expect("the model is away only during an update")
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// The optimizer, to load its state.
    pub fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.optimizer
    }

    /// Adds a batch's gradient to the step. An empty batch adds nothing.
    ///
    /// # Errors
    /// Where a parameter takes no part in the loss.
    pub fn add(&self, window: &mut Window, batch: Batch) -> Result<()> {
        if batch.items.is_empty() {
            return Ok(());
        }
        let device = self.device.clone().autodiff();
        let images = Tensor::from_data(TensorData::new(batch.images, batch.shape), &device);
        let factors = stochastic_depth::factors(self.seed, batch.epoch, &batch.items, &self.rates, &device);
        let logits = self.model().forward(images, factors);
        let [_, classes] = logits.dims();
        let loss = soft_cross_entropy_sum(logits, smooth_targets(&batch.labels, classes, self.smoothing, &device));
        let value = loss.clone().inner();
        window.loss = Some(match window.loss.take() {
            Some(sum) => sum + value,
            None => value,
        });
        window.images += batch.items.len();
        // Divided by the images of the whole step, so that batches of any sizes add up to the gradient of one large batch.
        let mut gradients = (loss / window.planned as f64).backward();
        window.gradients.add(self.model(), &mut gradients, self.optimizer.slots())
    }

    /// The gradient of the finished step, and the report; nothing has been updated yet. `None` where the step has no image.
    pub fn close(&self, window: Window) -> Option<(GradientSum, StepReport)> {
        let Window { mut gradients, loss, planned, images } = window;
        let loss = loss?;
        if images != planned {
            gradients.scale(planned as f64 / images as f64);
        }
        let norm = gradients.norm();
        if self.clip_norm > 0.0 {
            gradients.clip(norm.clone(), self.clip_norm);
        }
        Some((gradients, StepReport::OnDevice(Box::new([loss, norm]), images as u64)))
    }

    /// Applies the step's gradient. `count` is the number of the update from 1.
    pub fn update(&mut self, gradients: GradientSum, learning_rate: f64, count: u64) {
        let model = self.model.take().expect("the model is away only during an update");
        self.model = Some(self.optimizer.update(model, gradients.into_tensors(), learning_rate, count));
    }
}

impl StepReport {
    /// Reads the numbers of many steps in one transfer.
    ///
    /// # Errors
    /// Where the device failed.
    pub fn read_all(reports: &mut [(u64, StepReport)]) -> Result<()> {
        let on_device: Vec<Tensor<1>> = reports
            .iter()
            .filter_map(|(_, report)| match report {
                Self::OnDevice(numbers, _) => Some(<[Tensor<1>; 2]>::clone(numbers)),
                Self::Read(_) => None,
            })
            .flatten()
            .collect();
        if on_device.is_empty() {
            return Ok(());
        }
        let values: Vec<f32> = Tensor::cat(on_device, 0)
            .try_into_data()
            .map_err(|e| Error::Failed(format!("the device failed during training: {e}")))?
            .try_into_vec()
            .map_err(|e| Error::Failed(format!("losses cannot be read back: {e}")))?;
        let mut pairs = values.chunks_exact(2);
        for (step, report) in reports {
            if let Self::OnDevice(_, images) = report
                && let Some([loss, norm]) = pairs.next()
            {
                *report = Self::Read(PendingStep {
                    step: *step,
                    loss_sum: f64::from(*loss),
                    images: *images,
                    gradient_norm: f64::from(*norm),
                });
            }
        }
        Ok(())
    }
}
