//! `manyheads eval`.

use std::path::PathBuf;
use std::process::ExitCode;

use manyheads_trainer::{DeviceName, Error, Result, config, eval};

/// Measure top-1, top-5 and loss of a run, or of a weights file under a configuration.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of a run; or a configuration file, together with --weights.
    target: PathBuf,
    /// Weights (safetensors with timm's names) to evaluate under the configuration.
    #[arg(long, value_name = "FILE", conflicts_with = "checkpoint")]
    weights: Option<PathBuf>,
    /// Which checkpoint of the run: last, best, or a name such as step-00001250.
    #[arg(long, value_name = "NAME", default_value = "last")]
    checkpoint: String,
    /// Set a key of the configuration, as eval.batch_size=64; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// auto, cpu, wgpu, wgpu:N, cuda or cuda:N; wins over the configuration.
    #[arg(long, value_parser = crate::device)]
    device: Option<DeviceName>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let report = match &args.weights {
        Some(weights) if args.target.is_dir() => {
            return Err(Error::Usage(format!(
                "--weights needs a configuration file, but {} is a folder. Use its config.toml: manyheads eval {} --weights {}",
                args.target.display(),
                args.target.join("config.toml").display(),
                weights.display()
            )));
        }
        Some(weights) => eval::evaluate_weights(&config::load(&args.target, &args.sets)?, weights, args.device)?,
        None if args.target.is_file() => {
            return Err(Error::Usage(format!(
                "{} is a file. Give the folder of a run, or a configuration together with --weights FILE",
                args.target.display()
            )));
        }
        None => eval::evaluate_run(&args.target, &args.checkpoint, &args.sets, args.device)?,
    };
    let score = &report.evaluation.score;
    if args.json {
        crate::print(serde_json::json!({
            "top1": score.top1, "top5": score.top5, "loss": score.loss, "n": score.n,
            "skipped": report.evaluation.skipped.len(), "weights": report.weights.to_string_lossy(),
        }))?;
    } else {
        crate::print(format!("top-1 {:.2} % | top-5 {:.2} % | loss {:.4} | n {}", score.top1, score.top5, score.loss, score.n))?;
    }
    Ok(ExitCode::SUCCESS)
}
