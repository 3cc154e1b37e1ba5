//! `manyheads train`.

use std::path::PathBuf;
use std::process::ExitCode;

use manyheads_trainer::{DeviceName, Result, config, train};

/// Train from a configuration file.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration (TOML).
    config: PathBuf,
    /// Set a key of the configuration, as train.epochs=10; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
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
    let loaded = config::load(&args.config, &args.sets)?;
    crate::tell(&train(&loaded, args.out.as_deref(), args.device)?, args.json)
}
