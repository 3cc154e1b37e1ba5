//! `manyheads weights`.

use std::path::PathBuf;

use clap::Subcommand;
use manyheads_trainer::weights::{Convert, convert, inspect};
use manyheads_trainer::{Error, Result, network::Layout};

use crate::leave::{Code, SUCCESS};
use crate::weights_options::WeightsOptions;

/// Look into weights files, and convert them between layouts.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Inspect(Inspect),
    Convert(ConvertArgs),
}

/// Say what is in a weights file: layout, network, presets that fit, and every tensor.
#[derive(clap::Args)]
struct Inspect {
    /// A .safetensors, .pt, .pth or .bin file, a folder that holds one, or the folder of a run.
    file: PathBuf,
    #[command(flatten)]
    options: WeightsOptions,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Write the weights under the names of timm or Hugging Face, as safetensors.
#[derive(clap::Args)]
struct ConvertArgs {
    /// A .safetensors, .pt, .pth or .bin file, a folder that holds one, or the folder of a run.
    file: PathBuf,
    #[command(flatten)]
    options: WeightsOptions,
    /// Names to write: timm, deit (the same as timm) or huggingface.
    #[arg(long, value_name = "LAYOUT")]
    to: String,
    /// File to write; for huggingface a folder, which gets config.json and model.safetensors.
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Code> {
    match args.command {
        Command::Inspect(args) => {
            let found = inspect(&args.file, args.options.naming()?)?;
            if args.json {
                crate::print(serde_json::to_string(&found).map_err(|e| Error::Failed(e.to_string()))?)?;
            } else {
                crate::print(found.to_text().trim_end())?;
            }
        }
        Command::Convert(args) => {
            let to = Layout::find(&args.to)
                .ok_or_else(|| Error::Usage(format!("--to {}: it is one of timm, deit, huggingface", args.to)))?;
            let request = Convert { file: &args.file, naming: args.options.naming()?, to, out: &args.out };
            let done = convert(&request, &mut |note| crate::say(&format!("note: {note}")))?;
            if args.json {
                crate::print(serde_json::json!({"tensors": done.tensors, "out": done.out.to_string_lossy()}))?;
            } else {
                crate::print(format!("{} tensors written to {}", done.tensors, done.out.display()))?;
            }
        }
    }
    Ok(SUCCESS)
}
