//! `manyheads train`.

use std::path::PathBuf;

use crate::leave::{Code, SUCCESS};
use manyheads_trainer::{DeviceName, Error, Result, config, dry_run, train};

/// Train from a configuration file.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration (TOML).
    config: PathBuf,
    /// Set a key of the configuration, as train.epochs=10; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Weights to start a new run from, as train.weights: a weights file, a folder that holds one, or the folder of a run. To continue
    /// a run that was interrupted, use `manyheads resume` instead.
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Folder of the run. Default: runs/NAME, numbered where that is taken.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// auto, cpu, wgpu, wgpu:N, cuda or cuda:N; wins over the configuration.
    #[arg(long, value_parser = crate::device)]
    device: Option<DeviceName>,
    /// Try the configuration out instead of training: build everything, take one step and one evaluation on a few random images, write
    /// nothing. Whatever is not there yet (images, weights, teacher) is listed.
    #[arg(long, conflicts_with_all = ["out", "dashboard"])]
    dry_run: bool,
    /// Show curves, progress and events over the whole terminal, with keys to save and to stop. Without a terminal: plain lines.
    #[arg(long)]
    dashboard: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Code> {
    let mut sets = args.sets;
    if let Some(weights) = &args.weights {
        let weights =
            weights.to_str().ok_or_else(|| Error::Usage(format!("--weights {}: the path is not UTF-8", weights.display())))?;
        // JSON's strings are TOML's too.
        sets.push(format!("train.weights={}", serde_json::Value::from(weights)));
    }
    let loaded = config::load(&args.config, &sets)?;
    if args.dry_run {
        let tried = dry_run(&loaded, args.device)?;
        if args.json {
            let json = serde_json::to_string(&tried).map_err(|e| Error::Failed(format!("cannot print as JSON: {e}")))?;
            crate::print(json)?;
        } else {
            crate::print(tried.to_text().trim_end())?;
        }
        return Ok(SUCCESS);
    }
    crate::tell(&train(&loaded, args.out.as_deref(), args.device, crate::view(args.dashboard))?, args.json)
}
