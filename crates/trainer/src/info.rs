//! What a configuration amounts to, before anything runs.

use std::fmt::Write;

use burn::tensor::{DType, FloatDType};
use manyheads_data::Plan;
use manyheads_model::{Architecture, LayerCost, MemoryEstimate, Operation, cost, training_memory_bytes};
use serde::Serialize;

use crate::config::{Config, Interval, Loaded, ScheduleConfig, ScheduleKind, TrainConfig};
use crate::dataset::Datasets;
use crate::error::Result;

/// Everything that `manyheads info` tells.
#[derive(Debug, Serialize)]
pub struct Info {
    /// Parameters of the model.
    pub parameters: u64,
    /// Multiply-accumulates of one image's forward pass.
    pub macs: u64,
    /// Of these, those that create and apply the attention.
    pub macs_attention: u64,
    /// The parts of the model.
    pub layers: Vec<Layer>,
    /// Images that make one optimizer step.
    pub effective_batch: usize,
    /// Learning rate at its peak.
    pub learning_rate: f64,
    /// How it comes about.
    pub learning_rate_formula: String,
    /// Optimizer steps of the run; null where the dataset is not there.
    pub steps: Option<u64>,
    /// Optimizer steps of an epoch; null where the dataset is not there.
    pub steps_per_epoch: Option<u64>,
    /// Training images; null where the dataset is not there.
    pub train_images: Option<usize>,
    /// Held-out images; null where the dataset is not there.
    pub val_images: Option<usize>,
    /// Why the dataset is not there.
    pub data_error: Option<String>,
    /// Estimated bytes of one training batch on the device.
    pub memory: Memory,
    /// The float type of each kind of operation of training; then those of teacher and evaluations.
    pub precision: Vec<Precision>,
    /// The configuration with every default written out.
    pub config: Config,
}

/// A row of the layer table.
#[derive(Debug, Serialize)]
pub struct Layer {
    /// Name, as in weights files.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// Its parameters.
    pub parameters: u64,
    /// Its multiply-accumulates for one image.
    pub macs: u64,
    /// Of these, those of the attention itself.
    pub macs_attention: u64,
}

/// In which float type something runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Precision {
    /// What runs.
    pub operation: &'static str,
    /// Type of its operands in the forward pass; null where it has none.
    pub forward: Option<&'static str>,
    /// Type of the gradients it works on, or of what an update works on; null where it has none.
    pub backward: Option<&'static str>,
}

/// Estimated bytes on the device.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// Weights.
    pub weights: u64,
    /// Gradients.
    pub gradients: u64,
    /// Moments of the optimizer.
    pub optimizer: u64,
    /// What the forward pass keeps for the backward pass.
    pub activations: u64,
    /// All together.
    pub total: u64,
}

impl Info {
    /// Gathers it. A dataset that cannot be opened is not an error here: its numbers are missing, and the reason is told.
    ///
    /// # Errors
    /// Where the configuration does not fit a dataset that is there.
    pub fn new(loaded: &Loaded) -> Result<Self> {
        let Loaded { config, architecture, .. } = loaded;
        let cost = cost(architecture);
        let (sizes, data_error) = match Datasets::open(config) {
            Ok(data) => {
                loaded.check_data(data.train.len(), data.train.classes().len(), "as the dataset has them")?;
                (Some((data.train.len(), data.val.len())), None)
            }
            Err(e) => (None, Some(e.to_string())),
        };
        let steps_per_epoch = sizes.map(|(train, _)| config.steps_per_epoch(train));
        let estimate = training_memory_bytes(architecture, config.train.batch_size, config.training());
        let total = estimate.total();
        let MemoryEstimate { weights, gradients, optimizer, activations } = estimate;
        Ok(Self {
            parameters: cost.parameters(),
            macs: cost.macs(),
            macs_attention: cost.macs_attention(),
            layers: cost.layers.into_iter().map(Layer::from).collect(),
            effective_batch: config.effective_batch(),
            learning_rate: config.peak_learning_rate(),
            learning_rate_formula: config.learning_rate_formula(),
            steps: steps_per_epoch.map(|steps| steps * config.train.epochs),
            steps_per_epoch,
            train_images: sizes.map(|(train, _)| train),
            val_images: sizes.map(|(_, val)| val),
            data_error,
            memory: Memory { weights, gradients, optimizer, activations, total },
            precision: precision(config, architecture),
            config: config.clone(),
        })
    }

    /// The whole as text for people: the resolved configuration, and the rest as comments, so that it is a valid configuration.
    pub fn to_text(&self) -> String {
        let comments: String = self.summary().lines().map(|line| format!("{}\n", format!("# {line}").trim_end())).collect();
        format!("{}\n\n{comments}", self.config.to_toml().trim_end())
    }

    /// Layer table and totals.
    fn summary(&self) -> String {
        let mut out = String::new();
        let width = self.layers.iter().map(|layer| layer.name.len()).max().unwrap_or(0).max(5);
        let kinds = self.layers.iter().map(|layer| layer.kind.chars().count()).max().unwrap_or(0).max(4);
        let _ = writeln!(out, "{:width$}  {:kinds$}  {:>12}  {:>9}  {:>10}", "layer", "kind", "parameters", "MMACs", "attention");
        let row = |out: &mut String, name: &str, kind: &str, parameters: u64, macs: u64, attention: u64| {
            let attention = if attention == 0 { "–".into() } else { format!("{:.3}", attention as f64 / 1e6) };
            let _ = writeln!(
                out,
                "{name:width$}  {kind:kinds$}  {:>12}  {:>9.2}  {attention:>10}",
                group(parameters),
                macs as f64 / 1e6
            );
        };
        for layer in &self.layers {
            row(&mut out, &layer.name, &layer.kind, layer.parameters, layer.macs, layer.macs_attention);
        }
        row(&mut out, "total", "", self.parameters, self.macs, self.macs_attention);
        let width = self.precision.iter().map(|row| row.operation.chars().count()).max().unwrap_or(0);
        let _ = writeln!(out, "\n{:width$}  {:7}  backward", "precision", "forward");
        for Precision { operation, forward, backward } in &self.precision {
            let _ = writeln!(out, "{operation:width$}  {:7}  {}", forward.unwrap_or("–"), backward.unwrap_or("–"));
        }
        out + "\n" + &self.totals()
    }

    /// The totals alone: cost of an image, batch, learning rate, length of the run, memory.
    pub fn totals(&self) -> String {
        let mut out = String::new();
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let share = 100.0 * self.macs_attention as f64 / self.macs as f64;
        let _ = write!(
            out,
            "parameters       {}\nGMACs per image  {:.3}, of which attention {:.4} ({share:.2} %)\n",
            group(self.parameters),
            self.macs as f64 / 1e9,
            self.macs_attention as f64 / 1e9,
        );
        let _ = writeln!(
            out,
            "effective batch  {} × {} = {} images a step (train.batch_size × train.accumulate)\nlearning rate    {}",
            self.config.train.batch_size,
            self.config.train.accumulate,
            self.effective_batch,
            match self.config.optimizer.reference_batch {
                0 => self.learning_rate_formula.clone(),
                _ => format!(
                    "{} (optimizer.learning_rate × effective batch / optimizer.reference_batch)",
                    self.learning_rate_formula
                ),
            }
        );
        let _ = writeln!(out, "schedule         {}", schedule(&self.config));
        match (self.steps, self.steps_per_epoch, self.train_images, self.val_images) {
            (Some(steps), Some(per_epoch), Some(train), Some(val)) => {
                let _ = writeln!(
                    out,
                    "images           {} to train on{}, {} held out\nsteps            {} epochs × {} = {}",
                    group(train as u64),
                    left_out(&self.config, train),
                    group(val as u64),
                    self.config.train.epochs,
                    group(per_epoch),
                    group(steps)
                );
            }
            _ => {
                let reason = self.data_error.as_deref().unwrap_or_default();
                let _ = writeln!(out, "steps            unknown: {reason}");
            }
        }
        let Memory { weights, gradients, optimizer, activations, total } = self.memory;
        let _ = writeln!(
            out,
            "memory           tensors on the device about {:.2} GiB at batch {}: weights {:.2}, gradients {:.2}, optimizer {:.2}, activations {:.2}",
            gib(total),
            self.config.train.batch_size,
            gib(weights),
            gib(gradients),
            gib(optimizer),
            gib(activations)
        );
        out
    }
}

/// What runs in which float type under a configuration.
fn precision(config: &Config, architecture: &Architecture) -> Vec<Precision> {
    let products = config.train.precision.float();
    let name = |float: FloatDType| DType::from(float).name();
    let there = Operation::ALL.into_iter().filter(|operation| operation.is_in(architecture));
    let of_training = there.map(|operation| {
        let types = operation.types(products);
        Precision { operation: operation.name(), forward: types.forward.map(name), backward: types.backward.map(name) }
    });
    let beside = |operation, float| Precision { operation, forward: Some(name(float)), backward: None };
    let teacher = config.distillation.teacher.as_ref().map(|_| beside("products of the teacher", products));
    let evaluation = beside("products of evaluations", config.eval.precision.float());
    of_training.chain(teacher).chain([evaluation]).collect()
}

/// The way of the learning rate in words, with every number.
fn schedule(config: &Config) -> String {
    let ScheduleConfig { kind, interval, epoch_late, warmup_epochs, warmup_learning_rate, min_learning_rate } = config.schedule;
    let peak = config.peak_learning_rate();
    let epochs = config.train.epochs;
    let warmup = match warmup_epochs {
        0.0 => String::new(),
        epochs => format!("{warmup_learning_rate} rising to {peak} over {epochs} epochs, then "),
    };
    // timm's cosine begins at the start of the run, so that the warm-up ends a little below the peak's curve.
    let curve = match kind {
        ScheduleKind::Cosine => format!("a cosine from {peak} at the start to {min_learning_rate} at the end of epoch {epochs}"),
        ScheduleKind::Linear => format!("a line from {peak} at the start to {min_learning_rate} at the end of epoch {epochs}"),
        ScheduleKind::Constant => format!("{peak} to the end of epoch {epochs}"),
    };
    let moves = match (interval, epoch_late) {
        (Interval::Step, _) => "moves every step",
        (Interval::Epoch, Some(false)) => "moves every epoch",
        (Interval::Epoch, _) => "moves every epoch, one epoch late",
    };
    format!("{warmup}{curve}; {moves}")
}

/// Which of `train` images an epoch does not show: those that fill no batch, and with repeated augmentation most of them; others in
/// each epoch.
fn left_out(config: &Config, train: usize) -> String {
    let TrainConfig { batch_size, drop_last, .. } = config.train;
    let repeats = config.augment.repeats;
    let shown = Plan::new(train, repeats, 0, 1, batch_size, drop_last).len();
    if repeats > 1 {
        let (shown, different) = (group(shown as u64), group((shown / repeats) as u64));
        return format!(" (an epoch shows about {different} of them {repeats} times, {shown} samples)");
    }
    match train - shown.min(train) {
        0 => String::new(),
        rest => format!(" ({rest} left out of each epoch: they fill no batch)"),
    }
}

impl From<LayerCost> for Layer {
    fn from(cost: LayerCost) -> Self {
        let LayerCost { name, kind, parameters, macs, macs_attention } = cost;
        Self { name, kind, parameters, macs, macs_attention }
    }
}

/// The lines that open a training: what decides its result, with every number.
pub fn announcement(loaded: &Loaded, device: &str, train: usize, val: usize, steps_per_epoch: u64) -> Vec<String> {
    let Loaded { config, architecture, .. } = loaded;
    let cost = cost(architecture);
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for layer in &architecture.layers {
        let name = layer.to_string();
        match kinds.iter_mut().find(|(kind, _)| *kind == name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((name, 1)),
        }
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
    vec![
        format!(
            "model {} parameters, {:.3} GMACs, {} tokens of width {}, attention {}",
            group(cost.parameters()),
            cost.macs() as f64 / 1e9,
            architecture.tokens(),
            architecture.width,
            kinds.join(" + ")
        ),
        format!(
            "data {} images to train on{}, {} held out, {} classes",
            group(train as u64),
            left_out(config, train),
            group(val as u64),
            architecture.classes
        ),
        format!(
            "batch {} × {} = {} | learning rate {} | {} epochs × {} = {} steps | device {device}",
            config.train.batch_size,
            config.train.accumulate,
            config.effective_batch(),
            config.learning_rate_formula(),
            config.train.epochs,
            group(steps_per_epoch),
            group(steps_per_epoch * config.train.epochs)
        ),
    ]
}

/// A number with commas between its thousands.
pub fn group(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (86_567_656, "86,567,656")] {
            assert_eq!(group(number), text);
        }
    }
}
