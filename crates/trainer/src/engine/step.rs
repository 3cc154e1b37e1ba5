//! One optimizer step: forward and backward over its batches, then one update.

use burn::tensor::{Bool, Device, Tensor, TensorData};
use manyheads_data::{Batch, Images};
use manyheads_model::{Architecture, VisionTransformer};

use super::device::failed;
use super::gradients::GradientSum;
use super::upload::{normalised, shown};
use crate::checkpoint::PendingStep;
use crate::config::{Config, LossKind};
use crate::error::{Error, Result};
use crate::recipe::distillation::Distillation;
use crate::recipe::dropout::Samples;
use crate::recipe::ema::Ema;
use crate::recipe::loss::{binary_cross_entropy_sum, soft_cross_entropy_sum};
use crate::recipe::optimizer::{Optimizer, Slots};
use crate::recipe::{mixing, stochastic_depth};

/// The network with its optimizer and its average: everything that a step changes.
pub struct Learner {
    /// Taken out only while it is being updated.
    model: Option<VisionTransformer>,
    optimizer: Optimizer,
    ema: Option<Ema>,
    teacher: Option<Distillation>,
    device: Device,
    rates: Vec<f64>,
    architecture: Architecture,
    config: Config,
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
    ///
    /// # Errors
    /// Where the optimizer's groups do not fit the model.
    pub fn new(model: VisionTransformer, architecture: &Architecture, config: &Config, device: &Device) -> Result<Self> {
        let device = device.clone().inner();
        let slots = Slots::new(&model, &config.optimizer)?;
        let model = slots.freeze(model);
        Ok(Self {
            ema: Ema::new(&model, &config.ema),
            optimizer: Optimizer::new(slots, &config.optimizer, config.run.ops, &device),
            model: Some(model),
            teacher: None,
            rates: architecture.drop_path_rates(),
            architecture: architecture.clone(),
            config: config.clone(),
            device,
        })
    }

    /// Learns from a teacher too.
    pub fn set_teacher(&mut self, teacher: Option<Distillation>) {
        self.teacher = teacher;
    }

    /// The teacher, taken away.
    pub fn take_teacher(&mut self) -> Option<Distillation> {
        self.teacher.take()
    }

    /// The model as it is trained.
    pub fn model(&self) -> &VisionTransformer {
        self.model.as_ref().expect("the model is away only during an update")
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The optimizer, to load its state.
    pub fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// The average of the weights, where one is kept.
    pub fn ema(&self) -> Option<&Ema> {
        self.ema.as_ref()
    }

    /// The average of the weights, to load it.
    pub fn ema_mut(&mut self) -> Option<&mut Ema> {
        self.ema.as_mut()
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
        let classes = self.architecture.classes;
        let mut batch = batch;
        let (targets, blend) = mixing::apply(&mut batch, classes, &self.config);
        let targets = Tensor::from_data(TensorData::new(targets, [batch.items.len(), classes]), &device);
        let pixels = std::mem::replace(&mut batch.images, Images::F32(Vec::new()));
        let statistics = [self.config.data.mean(), self.config.data.std()];
        // The network's products take the type of its images, and so do the teacher's; all else here is f32.
        let float = self.config.train.precision.float();
        let mixes = matches!(pixels, Images::U8 { .. }) && !blend.is_none();
        let (pixels, images) = if self.teacher.is_none() && !mixes {
            let to = (self.model().byte_patch(), float);
            (shown(pixels, batch.shape, statistics, &self.device, to).from_inner(), None)
        } else {
            let mut images = normalised(pixels, batch.shape, statistics, &self.device);
            if mixes {
                images = blend.mix(images);
            }
            let images: Tensor<4> = Tensor::from_inner(images.cast(float));
            (images.clone().into(), Some(images))
        };
        let seed = self.config.run.seed;
        let factors = stochastic_depth::factors(seed, batch.epoch, &batch.items, &batch.copies, &self.rates, &device);
        let taught = self.teacher.as_ref().zip(images);
        let taught = taught.map(|(teacher, images)| teacher.targets(&images, &batch, &blend, classes, &device));
        let samples = Samples { seed, epoch: batch.epoch, items: &batch.items, copies: &batch.copies };
        let masks = samples.masks(&self.architecture, &device);
        let model = self.model();
        let (heads, kept) = match self.config.train.recompute {
            true => {
                let (heads, kept) = model.recomputing(pixels, factors, masks.as_ref());
                (heads, Some(kept))
            }
            false => (model.dropping(pixels, factors, masks.as_ref()), None),
        };
        let fused = self.optimizer.fused();
        let base = |logits: Tensor<2>| match self.config.train.loss {
            LossKind::CrossEntropy => soft_cross_entropy_sum(logits, targets, fused),
            LossKind::Bce => binary_cross_entropy_sum(logits, targets, fused),
        };
        let loss = match (&self.teacher, taught) {
            (Some(teacher), Some(taught)) => {
                let student = heads.distillation.unwrap_or_else(|| heads.class.clone());
                teacher.loss(base(heads.class), student, taught)
            }
            _ => base(heads.mean()),
        };
        let value = loss.clone().inner();
        window.loss = Some(match window.loss.take() {
            Some(sum) => sum + value,
            None => value,
        });
        window.images += batch.items.len();
        // Divided by the images of the whole step, so that batches of any sizes add up to the gradient of one large batch.
        let loss = loss / window.planned as f64;
        let mut gradients = match kept {
            Some(kept) => kept.backward(loss),
            None => vec![loss.backward()],
        };
        window.gradients.add(model, &mut gradients, self.optimizer.slots())
    }

    /// The gradient of the finished step, and the report; nothing has been updated yet. `None` where the step has no image.
    pub fn close(&self, window: Window) -> Option<(GradientSum, StepReport)> {
        let Window { mut gradients, loss, planned, images } = window;
        let loss = loss?;
        if images != planned {
            gradients.scale(planned as f64 / images as f64);
        }
        let norm = gradients.norm(self.optimizer.fused());
        if self.config.optimizer.clip_norm > 0.0 {
            gradients.clip(norm.clone(), self.config.optimizer.clip_norm);
        }
        Some((gradients, StepReport::OnDevice(Box::new([loss, norm]), images as u64)))
    }

    /// Applies the step's gradient. `count` is the number of the update from 1.
    pub fn update(&mut self, gradients: GradientSum, learning_rate: f64, count: u64) {
        self.update_unless(gradients, learning_rate, count, None);
    }

    /// Applies the step's gradient, and changes nothing where `broken`, `[1]` on the device, is true. The host need not know it yet.
    pub fn update_unless(&mut self, gradients: GradientSum, learning_rate: f64, count: u64, broken: Option<Tensor<1, Bool>>) {
        let model = self.model.take().expect("the model is away only during an update");
        let model = self.optimizer.update_unless(model, gradients.into_tensors(), learning_rate, count, broken.as_ref());
        if let Some(ema) = &mut self.ema {
            ema.update_unless(&model, count, broken.as_ref());
        }
        self.model = Some(model);
    }
}

impl StepReport {
    /// Whether the loss or the gradient's norm is not finite, `[1]`, left on the device.
    pub fn broken(&self) -> Option<Tensor<1, Bool>> {
        let Self::OnDevice(numbers, _) = self else { return None };
        let [loss, norm] = &**numbers;
        // A comparison with NaN is false, so it is asked what is sound.
        let sound = |number: &Tensor<1>| number.clone().abs().lower_equal_elem(f32::MAX);
        Some(sound(loss).bool_and(sound(norm)).bool_not())
    }

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
            .map_err(|e| Error::Failed(failed("during training", &e.to_string())))?
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
