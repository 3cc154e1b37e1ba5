//! The helper process that computes on the device: reads questions from stdin, writes answers to stdout.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{FloatDType, Tensor};
use manyheads_model::ops::has_fused;
use serde::Serialize;
use serde_json::Value;

use super::agreement::{Outcome, attention, outcome, reference};
use super::task::{Agree, Answer, Device, Measure, Speed, Step, Task};
use crate::bench::peak::{self, Arithmetic};
use crate::bench::{self, Options};
use crate::config::Precision;
use crate::engine::device::{DeviceName, OpenDevice, advice};
use crate::error::{Error, Result};
use crate::memory;

/// Answers the questions that stdin asks of `device` until it ends.
///
/// # Errors
/// Where a question cannot be read. What goes wrong with the device is an answer.
pub fn answer(device: DeviceName) -> Result<()> {
    let unreadable = |e: &dyn std::fmt::Display| Error::Usage(format!("a question of the check cannot be read: {e}"));
    let mut worker = Worker { name: device, open: None, reference: None };
    for line in std::io::stdin().lines() {
        let task: Task = serde_json::from_str(&line.map_err(|e| unreadable(&e))?).map_err(|e| unreadable(&e))?;
        let answer = match catch_unwind(AssertUnwindSafe(|| worker.answer(&task))) {
            Ok(Ok(value)) => Answer::Ok(value),
            Ok(Err(error)) => Answer::Error(error.to_string()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
                Answer::Error(format!("the backend failed: {}", text.unwrap_or("it gave no reason")))
            }
        };
        let line = serde_json::to_string(&answer).map_err(|e| Error::Failed(format!("an answer cannot be written: {e}")))?;
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(())
}

/// Whether the text of an error speaks of a full memory.
pub fn out_of_memory(reason: &str) -> bool {
    !advice(reason).is_empty()
}

struct Worker {
    name: DeviceName,
    open: Option<OpenDevice>,
    /// The CPU's outcome of the last network compared: several precisions are held against one.
    reference: Option<(Agree, Outcome)>,
}

impl Worker {
    fn open(&mut self) -> Result<&OpenDevice> {
        match &mut self.open {
            Some(open) => Ok(open),
            none => {
                let open = self.name.open()?;
                if self.name == DeviceName::Auto && open.eager {
                    return Err(Error::Failed(
                        "no GPU was found: its driver must be installed, and NVIDIA's needs a program built with `--features cuda`; \
                         --device cpu checks the CPU's fused operations against the plain ones"
                            .into(),
                    ));
                }
                Ok(none.insert(open))
            }
        }
    }

    fn answer(&mut self, task: &Task) -> Result<Value> {
        match task {
            Task::Describe => json(&describe(self.open()?)?),
            Task::Agree(agree) => {
                let network = Agree { precision: Precision::F32, ops: manyheads_model::Ops::Plain, ..agree.clone() };
                if self.reference.as_ref().is_none_or(|(of, _)| *of != network) {
                    let outcome = reference(&network)?;
                    self.reference = Some((network, outcome));
                }
                let got = outcome(agree, self.open()?)?;
                json(&self.reference.as_ref().map(|(_, reference)| got.compare(reference)))
            }
            Task::Measure(measure) => json(&speed(measure, self.name, self.open()?)?),
        }
    }
}

fn json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::Failed(format!("an answer cannot be written: {e}")))
}

fn describe(open: &OpenDevice) -> Result<Device> {
    let bf16 = open.device.supports_dtype(FloatDType::BF16);
    let f32_products = peak::arithmetic_of_f32(&open.device)?;
    Ok(Device {
        name: open.label.clone(),
        f32_products,
        bf16,
        fused: has_fused(&Tensor::<1>::zeros([1], &open.device)),
        peak_f32: peak::of(open, f32_products)?,
        peak_bf16: bf16.then(|| peak::of(open, Arithmetic::Bf16)).transpose()?,
    })
}

fn speed(measure: &Measure, device: DeviceName, open: &OpenDevice) -> Result<Speed> {
    let mut sets = measure.sets.clone();
    sets.push(format!("model.attention.kind={}", attention(measure.attention)));
    sets.push(format!("train.batch_size={}", measure.batch));
    sets.push(super::sizes::ops(measure.ops).into());
    let section = if measure.step == Step::Train { "train" } else { "eval" };
    sets.push(format!("{section}.precision={}", measure.precision.name()));
    let loaded = bench::configuration(None, "tiny", &sets)?;
    // What an earlier network took is not this one's.
    open.device.memory_cleanup();
    memory::forget_peak();
    let options = Options { device: Some(device), steps: 50, seconds: measure.seconds, ..Options::default() };
    let report = match measure.step {
        Step::Train => bench::train(&loaded, &options)?,
        Step::Infer => bench::infer(&loaded, &options)?,
    };
    Ok(Speed {
        images_per_second: report.images_per_second,
        flops_per_second: Some(report.flops_per_second),
        flops_per_image: Some(report.flops_per_step / report.batch as f64),
        device_memory_bytes: report.device_memory_bytes,
        process_memory_bytes: report.peak_memory_bytes,
    })
}
