//! `manyheads predict`.

use std::path::PathBuf;

use manyheads_trainer::predict::{self, Request};
use manyheads_trainer::{DeviceName, Result};

use crate::leave::{Code, SUCCESS};
use crate::weights_options::WeightsOptions;

/// Say what is in images: the five best classes of each, with their probabilities.
#[derive(clap::Args)]
pub struct Args {
    /// Image files.
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// Weights: a .safetensors, .pt, .pth or .bin file, a folder that holds one, or the folder of a run.
    #[arg(long, value_name = "FILE")]
    weights: PathBuf,
    #[command(flatten)]
    options: WeightsOptions,
    /// Configuration of the network and of how images are prepared, instead of a preset's.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    config: Option<PathBuf>,
    /// Print the network's output for every class too.
    #[arg(long)]
    logits: bool,
    /// Set a key of the configuration, as model.image_size=384; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// auto, cpu, wgpu, wgpu:N, cuda or cuda:N; wins over the configuration.
    #[arg(long, value_parser = crate::device)]
    device: Option<DeviceName>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<Code> {
    let request = Request {
        images: &args.images,
        weights: &args.weights,
        naming: args.options.naming()?,
        config: args.config.as_deref(),
        sets: &args.sets,
        device: args.device,
    };
    let mut images = Vec::new();
    predict::run(&request, &mut |prediction| {
        if args.json {
            let top5: Vec<_> = prediction
                .top5
                .iter()
                .map(|best| serde_json::json!({"index": best.index, "name": best.name, "probability": best.probability}))
                .collect();
            let mut image = serde_json::json!({"path": prediction.path.to_string_lossy(), "top5": top5});
            if args.logits {
                image["logits"] = serde_json::json!(prediction.logits);
            }
            images.push(image);
            return Ok(());
        }
        crate::print(prediction.path.display())?;
        for best in &prediction.top5 {
            crate::print(format!("{:7.2} %  {:>4}  {}", 100.0 * best.probability, best.index, best.name))?;
        }
        if args.logits {
            let logits: Vec<String> = prediction.logits.iter().map(f32::to_string).collect();
            crate::print(format!("logits {}", logits.join(" ")))?;
        }
        Ok(())
    })?;
    if args.json {
        crate::print(serde_json::json!({ "images": images }))?;
    }
    Ok(SUCCESS)
}
