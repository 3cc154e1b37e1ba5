//! Whether a device computes what the CPU computes: logits, the gradient of every parameter, and the losses of twenty steps.

use burn::tensor::Tensor;
use manyheads_data::random::{Purpose, stream};
use manyheads_model::{AttentionKind, Ops, VisionTransformer};

use super::task::{Agree, Agreement};
use crate::bench::peak::Arithmetic;
use crate::bench::{configuration, synthetic};
use crate::config::{Loaded, Precision};
use crate::engine::device::{DeviceName, OpenDevice};
use crate::engine::step::{Learner, StepReport, Window};
use crate::engine::upload::normalised;
use crate::error::{Error, Result};

/// Steps whose losses are compared.
const STEPS: u64 = 20;

/// How far from the CPU's f32 a device may be.
///
/// The numbers are a few times what rounding does in these networks and a small part of what a wrong kernel does.
pub fn tolerance(arithmetic: Arithmetic) -> Agreement {
    let [logits, gradient, loss] = match arithmetic {
        Arithmetic::F32 => [1e-4, 1e-3, 1e-3],
        Arithmetic::Tf32 => [5e-3, 2e-2, 1e-2],
        Arithmetic::Bf16 => [3e-2, 1e-1, 3e-2],
    };
    Agreement { logits, gradient, parameter: String::new(), loss }
}

impl Agreement {
    /// Whether it is within a tolerance. A number that is not finite is not.
    pub fn within(&self, tolerance: &Self) -> bool {
        self.logits <= tolerance.logits && self.gradient <= tolerance.gradient && self.loss <= tolerance.loss
    }
}

/// What a device makes of a network.
pub struct Outcome {
    logits: Vec<f32>,
    gradients: Vec<(String, Vec<f32>)>,
    losses: Vec<f64>,
}

/// The CPU's outcome in f32, of Burn's own operations: what defines the network.
///
/// # Errors
/// Where the program was built without the CPU's backend.
pub fn reference(task: &Agree) -> Result<Outcome> {
    let task = Agree { precision: Precision::F32, ops: Ops::Plain, ..task.clone() };
    outcome(&task, &DeviceName::Cpu.open()?)
}

/// The outcome of `device`.
///
/// # Errors
/// Where the network cannot be built or the device fails.
pub fn outcome(task: &Agree, open: &OpenDevice) -> Result<Outcome> {
    let loaded = configuration(None, "tiny", &sets(task))?;
    let Loaded { config, architecture, .. } = &loaded;
    let device = open.device.clone();
    let autodiff = device.clone().autodiff();
    let model = || architecture.init(&mut stream(config.run.seed, Purpose::Init, 0, 0), &autodiff);

    // Bytes on both devices, so that normalisation is compared too.
    let batch = |number: u64| synthetic(&loaded, number as usize, false);
    let first = batch(0);
    let images = normalised(first.images, first.shape, [config.data.mean(), config.data.std()], &device);
    let inner: VisionTransformer = architecture.init(&mut stream(config.run.seed, Purpose::Init, 0, 0), &device);
    let logits = read(inner.forward(images.cast(task.precision.float()), None))?;
    drop(inner);

    let mut learner = Learner::new(model(), architecture, config, &device)?;
    let close = |learner: &Learner, number: u64| {
        let batch = batch(number);
        let mut window = Window::new(batch.items.len());
        learner.add(&mut window, batch)?;
        learner.close(window).ok_or_else(|| Error::Failed("a step of synthetic images has no gradient".into()))
    };
    let (gradients, _) = close(&learner, 0)?;
    let slots = learner.optimizer().slots().trained.iter().map(|slot| slot.name.clone());
    let gradients = slots.zip(gradients.into_tensors()).map(|(name, tensor)| Ok((name, read(tensor)?))).collect::<Result<_>>()?;

    let mut reports = Vec::new();
    for step in 0..STEPS {
        let (gradients, report) = close(&learner, step)?;
        learner.update(gradients, config.optimizer.learning_rate, step + 1);
        reports.push((step + 1, report));
    }
    StepReport::read_all(&mut reports)?;
    let loss = |(_, report): (u64, StepReport)| match report {
        StepReport::Read(step) => Some(step.loss_sum / step.images as f64),
        StepReport::OnDevice(..) => None,
    };
    Ok(Outcome { logits, gradients, losses: reports.into_iter().filter_map(loss).collect() })
}

fn sets(task: &Agree) -> Vec<String> {
    let mut sets = task.sets.clone();
    sets.push(format!("model.attention.kind={}", attention(task.attention)));
    sets.push(super::sizes::ops(task.ops).into());
    sets.push(format!("train.precision={}", task.precision.name()));
    sets
}

/// The configuration's word for an attention.
pub fn attention(kind: AttentionKind) -> &'static str {
    match kind {
        AttentionKind::Softmax => "softmax",
        AttentionKind::Linear => "linear",
        AttentionKind::Hydra => "hydra",
    }
}

fn read<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    let failed = |reason: String| Error::Failed(format!("the device failed: {reason}"));
    let data = tensor.try_into_data().map_err(|e| failed(e.to_string()))?;
    data.try_into_vec().map_err(|e| failed(e.to_string()))
}

impl Outcome {
    /// How far this is from `expected`.
    pub fn compare(&self, expected: &Self) -> Agreement {
        let lengths = expected.gradients.iter().map(|(_, values)| square(values.iter().map(|v| f64::from(*v))));
        let floor = 1e-3 * lengths.sum::<f64>().sqrt();
        let mut worst = (0.0, String::new());
        for ((name, got), (_, wanted)) in self.gradients.iter().zip(&expected.gradients) {
            let apart = distance(got, wanted, floor);
            if apart.is_nan() {
                // What is not a number is worse than every number.
                worst = (apart, name.clone());
                break;
            }
            if apart > worst.0 {
                worst = (apart, name.clone());
            }
        }
        let loss = self.losses.iter().zip(&expected.losses).map(|(a, b)| (a / b - 1.0).abs());
        let loss = loss.fold(0.0, |most, apart| if apart.is_nan() || apart > most { apart } else { most });
        let counted = self.losses.len() == expected.losses.len() && self.gradients.len() == expected.gradients.len();
        let logits = if counted { distance(&self.logits, &expected.logits, 0.0) } else { f64::NAN };
        // JSON has no word for what is not finite.
        let finite = |value: f64| if value.is_finite() { value } else { f64::MAX };
        Agreement { logits: finite(logits), gradient: finite(worst.0), parameter: worst.1, loss: finite(loss) }
    }
}

/// Length of the difference over that of `expected`, or over `floor` where that is more. Not a number where the counts differ.
fn distance(got: &[f32], expected: &[f32], floor: f64) -> f64 {
    if got.len() != expected.len() {
        return f64::NAN;
    }
    let difference = square(got.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b))).sqrt();
    difference / square(expected.iter().map(|v| f64::from(*v))).sqrt().max(floor)
}

fn square(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Outcome {
        Outcome {
            logits: vec![1.0, -2.0, 3.0],
            gradients: vec![
                ("head.weight".into(), vec![0.3, -0.4]),
                ("head.bias".into(), vec![1e-9, -1e-9]),
                ("norm.bias".into(), vec![0.1, 0.2]),
            ],
            losses: vec![2.3, 2.2],
        }
    }

    #[test]
    fn rounding_passes_and_a_wrong_kernel_is_named() {
        let expected = example();
        let tolerance = tolerance(Arithmetic::F32);
        let same = example().compare(&expected);
        assert!(same.within(&tolerance) && same.logits == 0.0 && same.gradient == 0.0 && same.loss == 0.0, "{same:?}");

        let mut rounded = example();
        rounded.logits[2] += 1e-6;
        rounded.gradients[1].1[0] = 2e-9; // rounding of a gradient that is next to nothing
        rounded.losses[1] *= 1.0 + 1e-5;
        let near = rounded.compare(&expected);
        assert!(near.within(&tolerance) && near.logits > 0.0 && near.gradient > 0.0 && near.loss > 0.0, "{near:?}");

        let mut wrong = example();
        wrong.gradients[2].1[1] = 0.0;
        let far = wrong.compare(&expected);
        assert!(!far.within(&tolerance) && far.parameter == "norm.bias", "{far:?}");
    }

    #[test]
    fn what_is_not_a_number_or_not_there_is_no_agreement() {
        let tolerance = tolerance(Arithmetic::Bf16);
        let mut outcomes: Vec<Outcome> = (0..5).map(|_| example()).collect();
        outcomes[0].logits[0] = f32::NAN;
        outcomes[1].gradients[0].1[0] = f32::INFINITY;
        outcomes[2].losses[0] = f64::NAN;
        outcomes[3].losses.pop();
        outcomes[4].gradients[1].1.pop();
        for (number, outcome) in outcomes.iter().enumerate() {
            let agreement = outcome.compare(&example());
            assert!(!agreement.within(&tolerance), "{number}: {agreement:?}");
        }
    }
}
