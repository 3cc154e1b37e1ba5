//! Learning from a teacher (DeiT, Touvron et al., 2020, arXiv 2012.12877, section 4).
//!
//! The loss is (1 − alpha) · base + alpha · distillation, as in DeiT's `losses.py`. The distillation loss is of the second head where the
//! network has a distillation token, else of the one head there is:
//! - hard: cross-entropy with the class that the teacher ranks first;
//! - soft: T² / K times the Kullback-Leibler divergence of the student's softmax at temperature T from the teacher's, over K classes.

use burn::tensor::{Device, Tensor, TensorData, activation};
use manyheads_data::Batch;
use manyheads_model::{Architecture, VisionTransformer};

use super::loss::soft_cross_entropy_sum;
use super::mixing::Blend;
use crate::config::{Config, DistillationKind};
use crate::error::{Error, Result};
use crate::logits::StoredLogits;
use crate::network::{Naming, Selection};

/// A teacher and what is learnt from it.
#[derive(Debug)]
pub struct Distillation {
    kind: DistillationKind,
    alpha: f64,
    temperature: f64,
    teacher: Teacher,
}

#[derive(Debug)]
enum Teacher {
    /// A network, without autodiff; it sees the images that the student sees.
    Network(Box<VisionTransformer>),
    /// Its logits of every training image, as it is before augmentation.
    Stored(StoredLogits),
}

impl Distillation {
    /// The teacher that a configuration names; none where it names none. `files` identifies the training images, of which there are
    /// `images`; `device` is without autodiff. `note` is told of the teacher.
    ///
    /// # Errors
    /// Where the teacher cannot be read, or has other classes or images than the student.
    pub fn open(
        config: &Config,
        architecture: &Architecture,
        images: usize,
        files: &str,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Option<Self>> {
        let settings = &config.distillation;
        let (Some(kind), classes) = (settings.kind.learns(), architecture.classes) else { return Ok(None) };
        let teacher = match (&settings.teacher, &settings.logits) {
            (_, Some(path)) => {
                let stored = StoredLogits::read(path).map_err(|e| e.under("distillation.logits"))?;
                stored.check(path, images, classes, files).map_err(|e| e.under("distillation.logits"))?;
                note(&format!("teacher {}: stored logits of {images} images", path.display()));
                Teacher::Stored(stored)
            }
            (Some(path), None) => {
                let naming = Naming { preset: settings.teacher_preset.as_deref(), ..Naming::default() };
                let network = Selection::of(path, None, naming, &[])
                    .and_then(|selection| {
                        let loaded = selection.configuration(false, note)?;
                        selection.open(loaded, device, note)
                    })
                    .map_err(|e| e.under("distillation.teacher"))?;
                let teacher = &network.loaded.architecture;
                for (what, theirs, ours) in [
                    ("classes", format!("{}", teacher.classes), format!("{classes}")),
                    ("images", format!("{:?}", teacher.image), format!("{:?}", architecture.image)),
                    ("channels", format!("{}", teacher.channels), format!("{}", architecture.channels)),
                ] {
                    if theirs != ours {
                        return Err(Error::Usage(format!(
                            "distillation.teacher: {} has {what} {theirs}, the model {ours}: both see the same images and classes",
                            path.display()
                        )));
                    }
                }
                note(&format!("teacher {}", network.weights.display()));
                Teacher::Network(Box::new(network.model))
            }
            (None, None) => return Err(Error::Usage("distillation.teacher: missing: who is the teacher?".into())),
        };
        Ok(Some(Self { kind, alpha: settings.alpha, temperature: settings.temperature, teacher }))
    }

    /// Where the configuration has a teacher, one that finds all classes alike in each of `images` images: to try a training out without it.
    pub(crate) fn of_zeros(config: &Config, architecture: &Architecture, images: usize) -> Option<Self> {
        let (settings, classes) = (&config.distillation, architecture.classes);
        let kind = settings.kind.learns()?;
        let teacher = Teacher::Stored(StoredLogits::new(vec![0.0; images * classes], classes, String::new()));
        Some(Self { kind, alpha: settings.alpha, temperature: settings.temperature, teacher })
    }

    /// What the teacher says of a batch: `[batch, classes]`, probabilities that the student is held to. `images` are the student's, on
    /// its device with autodiff; `batch` tells which they are, and `blend` how they were mixed.
    pub fn targets(&self, images: &Tensor<4>, batch: &Batch, blend: &Blend, classes: usize, device: &Device) -> Tensor<2> {
        match &self.teacher {
            Teacher::Network(model) => {
                let logits = model.forward(images.clone().inner(), None);
                let probabilities = match self.kind {
                    DistillationKind::Hard => first(logits, classes),
                    _ => activation::softmax(logits / self.temperature, 1),
                };
                Tensor::from_inner(probabilities)
            }
            Teacher::Stored(stored) => {
                let temperature = if self.kind == DistillationKind::Hard { 1.0 } else { self.temperature };
                let rows = batch.items.iter().map(|item| softmax(stored.row(*item), temperature)).collect();
                let mut rows = blend.rows(rows);
                if self.kind == DistillationKind::Hard {
                    rows.iter_mut().for_each(|row| keep_first(row));
                }
                Tensor::from_data(TensorData::new(rows.concat(), [batch.items.len(), classes]), device)
            }
        }
    }

    /// The whole loss, summed over the batch, `[1]`: of `base`, the sum of the base losses, and of the student's `logits`
    /// `[batch, classes]` against the teacher's `targets`.
    pub fn loss(&self, base: Tensor<1>, logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
        let [batch, classes] = logits.dims();
        let distilled = match self.kind {
            DistillationKind::Hard => soft_cross_entropy_sum(logits, targets, false),
            _ => {
                // Where a probability is 0 its part of the entropy is 0 too.
                let entropies = (targets.clone() * targets.clone().clamp_min(1e-30).log()).sum_dim(1);
                let entropy = entropies.reshape([1, batch]).sum_dim(1).reshape([1]);
                let divergence = soft_cross_entropy_sum(logits / self.temperature, targets, false) + entropy;
                divergence * (self.temperature * self.temperature / classes as f64)
            }
        };
        base * (1.0 - self.alpha) + distilled * self.alpha
    }
}

/// 1 at the greatest of each row, the first of equal ones; 0 elsewhere.
fn first(logits: Tensor<2>, classes: usize) -> Tensor<2> {
    let [batch, _] = logits.dims();
    let device = logits.device();
    let best = logits.argmax(1);
    let numbers = Tensor::<1, burn::tensor::Int>::arange(0..classes as i64, &device).reshape([1, classes]);
    numbers.expand([batch, classes]).equal(best.expand([batch, classes])).float()
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f32> {
    let scaled: Vec<f64> = logits.iter().map(|logit| f64::from(*logit) / temperature).collect();
    let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scaled.iter().map(|value| (value - max).exp()).sum();
    scaled.iter().map(|value| ((value - max).exp() / sum) as f32).collect()
}

fn keep_first(row: &mut [f32]) {
    let mut best = 0;
    for (class, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = class;
        }
    }
    row.iter_mut().enumerate().for_each(|(class, value)| *value = f32::from(class == best));
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    fn distillation(kind: DistillationKind, alpha: f64, temperature: f64) -> Distillation {
        let teacher = Teacher::Stored(StoredLogits::new(vec![2.0, 0.0, -1.0, 0.5, 0.0, 3.0], 3, String::new()));
        Distillation { kind, alpha, temperature, teacher }
    }

    fn batch() -> Batch {
        Batch {
            images: manyheads_data::Images::F32(Vec::new()),
            shape: [2, 1, 1, 1],
            labels: vec![0, 2],
            items: vec![0, 1],
            copies: vec![0; 2],
            counted: 2,
            skipped: Vec::new(),
            epoch: 0,
            batch: 0,
        }
    }

    fn run(kind: DistillationKind, alpha: f64, temperature: f64) -> f64 {
        let device = Device::flex();
        let distillation = distillation(kind, alpha, temperature);
        let images = Tensor::zeros([2, 1, 1, 1], &device);
        let targets = distillation.targets(&images, &batch(), &Blend::none(2), 3, &device);
        let logits = Tensor::from_data([[0.3f32, -0.2, 0.1], [1.0, 0.0, -1.0]], &device);
        f64::from(distillation.loss(Tensor::from_data([4.0f32], &device), logits, targets).into_scalar::<f32>())
    }

    /// `torch.nn.functional.kl_div(log_softmax(z / 3), log_softmax(t / 3), reduction="sum", log_target=True) * 9 / z.numel() * 2`, with the
    /// factor 2 since losses are summed over the batch here.
    #[test]
    fn soft_distillation_is_deits() {
        let log_softmax = |z: [f64; 3], t: f64| {
            let log = z.map(|v| (v / t).exp()).iter().sum::<f64>().ln();
            z.map(|v| v / t - log)
        };
        let mut divergence = 0.0;
        for (z, t) in [([0.3, -0.2, 0.1], [2.0, 0.0, -1.0]), ([1.0, 0.0, -1.0], [0.5, 0.0, 3.0])] {
            let (q, p) = (log_softmax(z, 3.0), log_softmax(t, 3.0));
            divergence += q.iter().zip(p).map(|(q, p)| p.exp() * (p - q)).sum::<f64>();
        }
        let expected = 0.9 * 4.0 + 0.1 * divergence * 9.0 / 6.0 * 2.0;
        assert!((run(DistillationKind::Soft, 0.1, 3.0) - expected).abs() < 1e-6);
    }

    #[test]
    fn hard_distillation_is_cross_entropy_with_the_teachers_first() {
        let loss = |z: [f64; 3], class: usize| z.iter().map(|v| v.exp()).sum::<f64>().ln() - z[class];
        let expected = 0.5 * 4.0 + 0.5 * (loss([0.3, -0.2, 0.1], 0) + loss([1.0, 0.0, -1.0], 2));
        assert!((run(DistillationKind::Hard, 0.5, 1.0) - expected).abs() < 1e-6);
    }

    #[test]
    fn the_first_of_equal_logits_is_taken_on_device_and_host() {
        let device = Device::flex();
        let rows = first(Tensor::from_data([[1.0f32, 5.0, 5.0], [0.0, 0.0, 0.0]], &device), 3);
        assert_eq!(rows.into_data().try_to_vec::<f32>().unwrap(), [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
        let mut row = [0.2, 0.4, 0.4];
        keep_first(&mut row);
        assert_eq!(row, [0.0, 1.0, 0.0]);
    }
}
