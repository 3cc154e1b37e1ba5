//! `manyheads bench train` and `manyheads bench infer`.

use std::path::PathBuf;

use crate::leave::{Code, SUCCESS};
use clap::ValueEnum;
use manyheads_trainer::bench::peak::Source;
use manyheads_trainer::bench::profile::StepProfile;
use manyheads_trainer::bench::{self, Options, Report};
use manyheads_trainer::{DeviceName, Error, Result};

/// What both measurements take.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration (TOML); DeiT's recipe with `--preset` if absent. Its dataset is not read.
    config: Option<PathBuf>,
    /// A known model: tiny, small, base, large, or a name of timm's.
    #[arg(long, value_name = "NAME", default_value = "tiny", conflicts_with = "config")]
    preset: String,
    /// Images that go through the network at once, as train.batch_size.
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// The attention of every layer.
    #[arg(long, value_name = "KIND")]
    attention: Option<Attention>,
    /// How the network computes, as run.ops.
    #[arg(long, value_name = "HOW")]
    ops: Option<Ops>,
    /// auto, cpu, wgpu, wgpu:N, cuda or cuda:N; wins over the configuration.
    #[arg(long, value_parser = crate::device)]
    device: Option<DeviceName>,
    /// Steps that are measured.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Steps before them that are not.
    #[arg(long, value_name = "N", default_value_t = 3)]
    warmup: u32,
    /// Split a step by kind of operation. The device is waited for around each, so the profiled steps, which come after the others, are
    /// slower. Also measures the peak of a device whose vendor's figure is not known.
    #[arg(long)]
    profile: bool,
    /// Set a key of the configuration, as optimizer.kind=lamb; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// An attention, as the command line names it.
#[derive(Clone, Copy, ValueEnum)]
pub enum Attention {
    Softmax,
    Linear,
    Hydra,
}

/// How operations are computed, as the command line names it.
#[derive(Clone, Copy, ValueEnum)]
pub enum Ops {
    Fused,
    Plain,
}

/// What a step is.
#[derive(Clone, Copy)]
pub enum Step {
    /// Forward, backward and update.
    Train,
    /// Forward.
    Infer,
}

pub fn run(args: Args, step: Step) -> Result<Code> {
    let mut sets = args.sets;
    if let Some(attention) = args.attention {
        let kind = match attention {
            Attention::Softmax => "softmax",
            Attention::Linear => "linear",
            Attention::Hydra => "hydra",
        };
        sets.push(format!("model.attention.kind={kind}"));
    }
    if let Some(ops) = args.ops {
        sets.push(format!("run.ops={}", if let Ops::Fused = ops { "fused" } else { "plain" }));
    }
    if let Some(batch) = args.batch {
        sets.push(format!("train.batch_size={batch}"));
    }
    let loaded = bench::configuration(args.config.as_deref(), &args.preset, &sets)?;
    let options = Options {
        device: args.device,
        warmup: args.warmup as usize,
        steps: args.steps as usize,
        profile: args.profile,
        ..Options::default()
    };
    let report = match step {
        Step::Train => bench::train(&loaded, &options)?,
        Step::Infer => bench::infer(&loaded, &options)?,
    };
    if args.json {
        crate::print(serde_json::to_string(&report).map_err(|e| Error::Failed(format!("cannot print as JSON: {e}")))?)?;
    } else {
        crate::print(text(&report, step).trim_end())?;
    }
    Ok(SUCCESS)
}

fn text(report: &Report, step: Step) -> String {
    let [height, width] = report.image;
    let what = match step {
        Step::Train => "training",
        Step::Infer => "inference",
    };
    let mut out = format!(
        "{what} on {}: {:.1} M parameters, batches of {} images of {height} x {width}\n",
        report.device,
        report.parameters as f64 / 1e6,
        report.batch
    );
    out += &format!("{:>10.2} images/s\n", report.images_per_second);
    out += &format!("{:>10.4} s a step (median; fastest {:.4})\n", report.seconds_per_step, report.fastest_step);
    if let Some(cpu) = report.cpu_seconds_per_step {
        out += &format!("{cpu:>10.4} s of processor time a step\n");
    }
    out += &format!("{:>10.1} GFLOP/s in matrix products and attention\n", report.flops_per_second / 1e9);
    if let (Some(mfu), Some(peak)) = (report.mfu, &report.peak) {
        let source = match peak.source {
            Source::Published => "published",
            Source::Measured => "measured",
        };
        let tera = peak.flops_per_second / 1e12;
        out += &format!("{:>10.1} % of the peak (MFU), {tera:.3} TFLOP/s {source}: {}\n", 100.0 * mfu, peak.what);
    }
    if let Some(bytes) = report.peak_memory_bytes {
        out += &format!("{:>10.1} MB of memory at most\n", bytes as f64 / 1e6);
    }
    if let Some(bytes) = report.device_memory_bytes {
        out += &format!("{:>10.1} MB of the device's memory held\n", bytes as f64 / 1e6);
    }
    if let Some(profile) = &report.profile {
        out += &profile_text(profile);
    }
    out
}

fn profile_text(profile: &StepProfile) -> String {
    let mut out = format!(
        "\na profiled step takes {:.4} s, {:.2} times an unprofiled one\n{:18}{:>12}{:>12}{:>12}{:>9}{:>12}\n",
        profile.seconds_per_step, profile.slowdown, "", "forward ms", "backward ms", "ms", "share", "GFLOP/s"
    );
    let milliseconds = |seconds: f64| format!("{:.3}", 1e3 * seconds);
    let dash = || "–".to_owned();
    for kind in &profile.kinds {
        out += &format!(
            "{:18}{:>12}{:>12}{:>12}{:>7.1} %{:>12}\n",
            kind.kind.name(),
            kind.forward_seconds.map_or_else(dash, milliseconds),
            kind.backward_seconds.map_or_else(dash, milliseconds),
            milliseconds(kind.seconds),
            100.0 * kind.share,
            kind.flops_per_second.map_or_else(dash, |flops| format!("{:.1}", flops / 1e9)),
        );
    }
    out += &format!("{:18}{:>36}{:>7.1} %\n", "the step", milliseconds(profile.seconds_per_step), 100.0);
    out
}
