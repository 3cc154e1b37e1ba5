//! `manyheads resume`.

use std::path::PathBuf;
use std::process::ExitCode;

use manyheads_trainer::{DeviceName, Result, resume};

/// Continue a run, bit for bit, from its newest sound checkpoint.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the run.
    run: PathBuf,
    /// auto, cpu, wgpu, wgpu:N, cuda or cuda:N; wins over the configuration. Another kind of device rounds differently.
    #[arg(long, value_parser = crate::device)]
    device: Option<DeviceName>,
    /// Continue although the configuration or the dataset is not the one the checkpoint was trained with.
    #[arg(long = "override")]
    override_config: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    crate::tell(&resume(&args.run, args.device, args.override_config)?, args.json)
}
