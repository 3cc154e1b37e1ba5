//! `manyheads resume`.

use std::path::PathBuf;

use crate::leave::Code;
use manyheads_trainer::{Changes, DeviceName, Result, resume};

/// Continue a run, bit for bit, from its newest sound checkpoint.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the run.
    run: PathBuf,
    /// auto, cpu, wgpu, wgpu:N, cuda or cuda:N; wins over the configuration. Another kind of device rounds differently.
    #[arg(long, value_parser = crate::device)]
    device: Option<DeviceName>,
    /// Set a key of the run's configuration, as train.epochs=400; may be repeated. What the steps done depend on must be allowed besides.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Continue although this key, or any of this section, is not what the checkpoint was trained with; may be repeated. data.train and
    /// data.val stand for the images too.
    #[arg(long, value_name = "KEY")]
    allow: Vec<String>,
    /// Show curves, progress and events over the whole terminal, with keys to save and to stop. Without a terminal: plain lines.
    #[arg(long)]
    dashboard: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Code> {
    let changes = Changes { sets: args.sets, allow: args.allow };
    crate::tell(&resume(&args.run, args.device, &changes, crate::view(args.dashboard))?, args.json)
}
