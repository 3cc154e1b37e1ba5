//! `manyheads bench gpu`: whether a GPU computes what the CPU computes, and how fast it trains and infers, beside PyTorch.
//!
//! The work is done by helper processes that are asked line by line, so that a full memory, a crash or a kernel that never ends is a
//! result like any other, and the check ends in time.

mod agreement;
mod helper;
mod report;
mod sizes;
mod task;
mod worker;

use std::time::{Duration, Instant};

use manyheads_model::{AttentionKind, Ops};
use serde::Serialize;

pub use self::task::{Agreement, Device, Speed, Step};
pub use self::worker::answer;

use self::helper::Helper;
use self::task::{Agree, Answer, Measure, Task};
use crate::bench::peak::{Arithmetic, Peak};
use crate::config::Precision;
use crate::error::{Error, Result};

/// What is checked, and for how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// Program and arguments of the helper that computes on the device: this program.
    pub worker: Vec<String>,
    /// Program and arguments of the helper that measures PyTorch; empty for none.
    pub peer: Vec<String>,
    /// Small sizes, for software renderers.
    pub tiny: bool,
    /// Seconds that the whole check may take.
    pub seconds: f64,
}

/// What the check says while it works.
pub trait Listener {
    /// Something was done.
    fn progress(&mut self, line: &str);
    /// A part of the report is complete.
    fn part(&mut self, markdown: &str);
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The device.
    pub device: Device,
    /// Whether every comparison was made and is within its tolerance.
    pub agreed: bool,
    /// The comparisons.
    pub agreement: Vec<Compared>,
    /// The measurements.
    pub speed: Vec<Measured>,
    /// PyTorch's versions and device, or why it was not measured.
    pub peer: Option<Answer<serde_json::Value>>,
    /// Seconds that the check took.
    pub seconds: f64,
}

/// A comparison and its result.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// What was compared.
    #[serde(flatten)]
    pub task: Agree,
    /// How the device multiplies matrices in that precision.
    pub arithmetic: Arithmetic,
    /// How far it may be from the CPU.
    pub tolerance: Agreement,
    /// How far it is.
    pub found: Answer<Agreement>,
    /// Whether that is within the tolerance.
    pub passed: bool,
}

/// A measurement of this program and of PyTorch.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// What was measured, with the batch that the device could hold.
    #[serde(flatten)]
    pub task: Measure,
    /// Larger batches for which its memory was too small.
    pub out_of_memory_at: Vec<usize>,
    /// This program.
    pub manyheads: Answer<Speed>,
    /// Share of the device's peak.
    pub mfu: Option<f64>,
    /// This program with plain operations, where the device has others.
    pub plain: Option<Answer<Speed>>,
    /// PyTorch as it is; none where it was not measured.
    pub eager: Option<Answer<Speed>>,
    /// PyTorch with `torch.compile`.
    pub compiled: Option<Answer<Speed>>,
}

/// Shares of the time after which comparisons, and this program's measurements, must have ended.
const UNTIL_AGREED: f64 = 0.45;
const UNTIL_MEASURED: f64 = 0.75;

/// Share of the time that one measurement may take: what hangs costs no more.
const ONE: f64 = 0.25;

/// The least time, in seconds, that a question is asked for.
const LEAST: f64 = 3.0;

/// Checks a device.
///
/// # Errors
/// Where the device cannot be opened. Whether it agrees is in the report.
pub fn run(options: &Options, listener: &mut dyn Listener) -> Result<Report> {
    let clock = Clock { begin: Instant::now(), seconds: options.seconds };
    let mut worker = Helper::new(options.worker.clone());
    let device: Device = match worker.ask(&Task::Describe, clock.left(UNTIL_AGREED).unwrap_or_default()) {
        Answer::Ok(device) => device,
        Answer::Error(reason) => return Err(Error::Failed(format!("the device cannot be checked: {reason}"))),
    };
    listener.part(&report::head(&device));

    let agreement = compare(options, &device, &mut worker, &clock, listener);
    let agreed = agreement.iter().all(|compared| compared.passed);
    listener.part(&report::agreement(&agreement));

    let mut speed = measure(options, &device, &mut worker, &clock, listener);
    // Its memory is the peer's now.
    worker.stop();
    let peer = (!options.peer.is_empty()).then(|| beside(options, &mut speed, &clock, listener));
    listener.part(&report::speed(&device, &speed, peer.as_ref()));
    Ok(Report { device, agreed, agreement, speed, peer, seconds: clock.begin.elapsed().as_secs_f64() })
}

struct Clock {
    begin: Instant,
    seconds: f64,
}

impl Clock {
    /// What is left until the `share` of the time is over; none where that is too little to begin anything.
    fn left(&self, share: f64) -> Option<Duration> {
        let left = self.seconds * share - self.begin.elapsed().as_secs_f64();
        (left >= LEAST).then(|| Duration::from_secs_f64(left))
    }

    /// The same for one measurement of many.
    fn for_one(&self, share: f64) -> Option<Duration> {
        self.left(share).map(|left| left.min(Duration::from_secs_f64(ONE * self.seconds)))
    }
}

fn no_time<T>() -> Answer<T> {
    Answer::Error("not begun: the time was over".into())
}

fn compare(options: &Options, device: &Device, worker: &mut Helper, clock: &Clock, listener: &mut dyn Listener) -> Vec<Compared> {
    let precisions: &[Precision] = if device.bf16 { &[Precision::F32, Precision::Bf16] } else { &[Precision::F32] };
    let ops: &[Ops] = if device.fused { &[Ops::Plain, Ops::Fused] } else { &[Ops::Plain] };
    let compared = |task: Agree| {
        let arithmetic = match task.precision {
            Precision::F32 => device.f32_products,
            Precision::Bf16 => Arithmetic::Bf16,
        };
        let tolerance = agreement::tolerance(arithmetic);
        let found: Answer<Agreement> = match clock.left(UNTIL_AGREED) {
            Some(left) => worker.ask(&Task::Agree(task.clone()), left),
            None => no_time(),
        };
        let passed = matches!(&found, Answer::Ok(found) if found.within(&tolerance));
        let compared = Compared { task, arithmetic, tolerance, found, passed };
        listener.progress(&report::compared(&compared));
        compared
    };
    sizes::comparisons(options.tiny, precisions, ops).into_iter().map(compared).collect()
}

fn measure(options: &Options, device: &Device, worker: &mut Helper, clock: &Clock, listener: &mut dyn Listener) -> Vec<Measured> {
    let precision = if device.bf16 { Precision::Bf16 } else { Precision::F32 };
    let peak = peak(device, precision);
    let measured = |mut task: Measure| {
        let mut out_of_memory_at = Vec::new();
        let manyheads: Answer<Speed> = loop {
            let Some(left) = clock.for_one(UNTIL_MEASURED) else { break no_time() };
            match worker.ask(&Task::Measure(task.clone()), left) {
                // A quarter of the batch is the least that says something.
                Answer::Error(reason) if worker::out_of_memory(&reason) && out_of_memory_at.len() < 2 && task.batch > 1 => {
                    out_of_memory_at.push(task.batch);
                    task.batch /= 2;
                }
                answer => break answer,
            }
        };
        let mfu = match &manyheads {
            Answer::Ok(speed) => speed.flops_per_second.map(|flops| flops / peak.flops_per_second),
            Answer::Error(_) => None,
        };
        let measured = Measured { task, out_of_memory_at, manyheads, mfu, plain: None, eager: None, compiled: None };
        listener.progress(&report::measured("manyheads", &measured.task, &measured.manyheads));
        measured
    };
    let mut all: Vec<Measured> = sizes::measurements(options.tiny, precision).into_iter().map(measured).collect();
    for measured in all.iter_mut().filter(|_| device.fused) {
        let task = Measure { ops: Ops::Plain, ..measured.task.clone() };
        let answer: Answer<Speed> = match clock.for_one(UNTIL_MEASURED) {
            Some(left) => worker.ask(&Task::Measure(task), left),
            None => no_time(),
        };
        listener.progress(&report::measured("plain", &measured.task, &answer));
        measured.plain = Some(answer);
    }
    all
}

/// The device's peak in a precision.
fn peak(device: &Device, precision: Precision) -> &Peak {
    match (precision, &device.peak_bf16) {
        (Precision::Bf16, Some(peak)) => peak,
        _ => &device.peak_f32,
    }
}

/// Measures PyTorch: everything as it is first, since compiling takes long.
fn beside(options: &Options, speed: &mut [Measured], clock: &Clock, listener: &mut dyn Listener) -> Answer<serde_json::Value> {
    let mut peer = Helper::new(options.peer.clone());
    let Some(left) = clock.left(1.0) else { return no_time() };
    let about: Answer<serde_json::Value> = peer.ask(&Task::Describe, left);
    if let Answer::Error(reason) = &about {
        listener.progress(&format!("PyTorch is not measured: {reason}"));
        return about;
    }
    for compile in [false, true] {
        for measured in &mut *speed {
            let answer: Answer<Speed> = match clock.for_one(1.0) {
                Some(left) => peer.ask(&Task::Measure(Measure { compile, ..measured.task.clone() }), left),
                None => no_time(),
            };
            let name = if compile { "torch.compile" } else { "PyTorch" };
            listener.progress(&report::measured(name, &measured.task, &answer));
            *(if compile { &mut measured.compiled } else { &mut measured.eager }) = Some(answer);
        }
    }
    about
}

/// What an attention is called in a table.
fn attention(kind: AttentionKind) -> &'static str {
    match kind {
        AttentionKind::Softmax => "softmax",
        AttentionKind::Linear => "MLA",
        AttentionKind::Hydra => "Hydra",
    }
}
