//! `manyheads bench`.

use std::path::PathBuf;

use clap::Subcommand;
use manyheads_trainer::data_tools::{self, BenchReport, Half, PixelFormat};
use manyheads_trainer::{Error, Result};

use crate::bench_attention;
use crate::bench_gpu;
use crate::bench_model::{self, Step};
use crate::data::More;
use crate::leave::{Code, SUCCESS};

/// Measure how fast things are on this machine.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure training steps on synthetic images: forward, backward and update, without loader and disk.
    Train(bench_model::Args),
    /// Measure forward passes on synthetic images.
    Infer(bench_model::Args),
    /// Measure one attention, without its projections, beside the machine's copy and product of matrices.
    Attention(bench_attention::Args),
    /// Check that a GPU computes what the CPU computes, then measure training and inference of DeiT's sizes, beside PyTorch. Exit code 1
    /// where it does not agree.
    Gpu(bench_gpu::Args),
    Data(Data),
}

/// Measure how fast images become batches: reading, decoding, the whole transform, and the loader with its queue.
#[derive(clap::Args)]
struct Data {
    /// Images; those of the configuration if absent.
    #[arg(required_unless_present = "config")]
    path: Option<PathBuf>,
    #[command(flatten)]
    more: More,
    /// The configuration whose transforms are measured; DeiT's crop and flip at 224 pixels if absent.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a key of the configuration, as augment.auto=rand-m9-mstd0.5-inc1; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Measure the evaluation transform instead of the training one.
    #[arg(long)]
    eval: bool,
    /// Numbers of threads, separated by commas; 0: all cores.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,0")]
    threads: Vec<usize>,
    /// Seconds of each measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Make batches of bytes, to be normalised on the device, instead of floats.
    #[arg(long)]
    bytes: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Code> {
    match args.command {
        Command::Train(args) => bench_model::run(args, Step::Train),
        Command::Infer(args) => bench_model::run(args, Step::Infer),
        Command::Attention(args) => bench_attention::run(args),
        Command::Gpu(args) => bench_gpu::run(args),
        Command::Data(args) => {
            let loaded = data_tools::configuration(args.config.as_deref(), &args.sets)?;
            let images = args.path.as_deref().map(|path| args.more.images(path));
            let half = if args.eval { Half::Eval } else { Half::Train };
            let format = if args.bytes { PixelFormat::U8 } else { PixelFormat::F32 };
            let report = data_tools::measure(&loaded, images.as_ref(), half, &args.threads, args.seconds, format)?;
            if args.json {
                crate::print(json(&report)?)?;
            } else {
                crate::print(text(&report).trim_end())?;
            }
            Ok(SUCCESS)
        }
    }
}

/// The whole loader's speed with the last number of threads, and all measurements.
fn json(report: &BenchReport) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(report).map_err(|e| Error::Failed(format!("cannot print as JSON: {e}")))?;
    value["images_per_second"] = report.measurements.last().map(|last| last.images_per_second).into();
    Ok(value)
}

fn text(report: &BenchReport) -> String {
    let mut out = format!("{} images, {:.1} kB each\n", report.images, report.bytes_per_image / 1e3);
    out += &format!(
        "{:>7}  {:8}  {:>10}  {:>9}  {:>14}  {:>14}\n",
        "threads", "up to", "images/s", "MB/s", "CPU µs / image", "share of time"
    );
    for measured in &report.measurements {
        let stage =
            serde_json::to_value(measured.stage).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
        let cpu = measured.cpu_seconds_per_image.map_or("–".into(), |seconds| format!("{:.0}", seconds * 1e6));
        out += &format!(
            "{:>7}  {stage:8}  {:>10.1}  {:>9.1}  {cpu:>14}  {:>12.0} %\n",
            measured.threads,
            measured.images_per_second,
            measured.megabytes_per_second,
            100.0 * measured.share
        );
        if let Some(times) = measured.microseconds {
            out += &format!(
                "{:>19}µs of a thread: decode {:.0}, resize {:.0}, augment {:.0}, normalise {:.0}\n",
                "", times.decode, times.resize, times.augment, times.finish
            );
        }
    }
    out
}
