//! `manyheads bench gpu`.

use std::path::PathBuf;

use crate::leave::{Code, FAILURE, SUCCESS};
use manyheads_trainer::gpu_check::{self, Listener, Options};
use manyheads_trainer::{DeviceName, Error, Result};

/// What the check takes.
#[derive(clap::Args)]
pub struct Args {
    /// auto, cpu, wgpu, wgpu:N, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Small networks, for software renderers: the figures say nothing of a GPU.
    #[arg(long)]
    tiny: bool,
    /// Seconds that the check may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 440.0)]
    seconds: f64,
    /// The program that measures PyTorch, with its arguments: scripts/gpu_peer.py.
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,
    /// Where everything found is written as JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print everything found as one JSON object on stdout instead of tables.
    #[arg(long)]
    json: bool,
    /// Answer the questions of a check.
    #[arg(long, hide = true)]
    worker: bool,
}

pub fn run(args: Args) -> Result<Code> {
    let device = DeviceName::parse(&args.device).map_err(Error::Usage)?;
    if args.worker {
        gpu_check::answer(device)?;
        return Ok(SUCCESS);
    }
    if !args.seconds.is_finite() || args.seconds <= 0.0 {
        return Err(Error::Usage(format!("--seconds {}: it is a number of seconds above 0", args.seconds)));
    }
    let program = std::env::current_exe().map_err(|e| Error::Failed(format!("this program cannot find itself: {e}")))?;
    let program = program.to_str().ok_or_else(|| Error::Failed(format!("{} is no UTF-8", program.display())))?;
    let worker = [program, "bench", "gpu", "--worker", "--device", &args.device];
    let options = Options {
        worker: worker.map(str::to_owned).into(),
        peer: args.peer.as_deref().unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
        tiny: args.tiny,
        seconds: args.seconds,
    };
    let mut console = Console { quiet: args.json, failed: None };
    let report = gpu_check::run(&options, &mut console)?;
    if let Some(error) = console.failed {
        return Err(error);
    }
    let unprintable = |e| Error::Failed(format!("cannot print as JSON: {e}"));
    if args.json {
        crate::print(serde_json::to_string(&report).map_err(unprintable)?)?;
    }
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&report).map_err(unprintable)?;
        std::fs::write(path, text + "\n").map_err(|e| Error::io("write", path, &e))?;
    }
    if !report.agreed {
        crate::say("error: the device does not compute what the CPU computes; the table of agreement says where");
        return Ok(FAILURE);
    }
    Ok(SUCCESS)
}

/// Tables on stdout as they are complete, what happens on stderr.
struct Console {
    quiet: bool,
    failed: Option<Error>,
}

impl Listener for Console {
    fn progress(&mut self, line: &str) {
        crate::say(line);
    }

    fn part(&mut self, markdown: &str) {
        if !self.quiet && self.failed.is_none() {
            self.failed = crate::print(markdown).err();
        }
    }
}
