//! `manyheads train`.

use std::path::PathBuf;
use std::process::ExitCode;

use manyheads_trainer::{DeviceName, Error, Result, config, train};

/// Train from a configuration file.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration (TOML).
    config: PathBuf,
    /// Set a key of the configuration, as train.epochs=10; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Weights to start from, as train.weights: a weights file, a folder that holds one, or the folder of a run.
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Folder of the run. Default: runs/NAME, numbered where that is taken.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// auto, cpu, wgpu, wgpu:N, cuda or cuda:N; wins over the configuration.
    #[arg(long, value_parser = crate::device)]
    device: Option<DeviceName>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let mut sets = args.sets;
    if let Some(weights) = &args.weights {
        let weights =
            weights.to_str().ok_or_else(|| Error::Usage(format!("--weights {}: the path is not UTF-8", weights.display())))?;
        // JSON's strings are TOML's too.
        sets.push(format!("train.weights={}", serde_json::Value::from(weights)));
    }
    let loaded = config::load(&args.config, &sets)?;
    crate::tell(&train(&loaded, args.out.as_deref(), args.device)?, args.json)
}
