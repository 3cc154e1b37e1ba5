//! `manyheads bench train` and `manyheads bench infer`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
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

pub fn run(args: Args, step: Step) -> Result<ExitCode> {
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
    let options = Options { device: args.device, warmup: args.warmup as usize, steps: args.steps as usize };
    let report = match step {
        Step::Train => bench::train(&loaded, &options)?,
        Step::Infer => bench::infer(&loaded, &options)?,
    };
    if args.json {
        crate::print(serde_json::to_string(&report).map_err(|e| Error::Failed(format!("cannot print as JSON: {e}")))?)?;
    } else {
        crate::print(text(&report, step).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
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
    if let Some(bytes) = report.peak_memory_bytes {
        out += &format!("{:>10.1} MB of memory at most\n", bytes as f64 / 1e6);
    }
    out
}
