//! `manyheads eval`.

use std::path::PathBuf;

use manyheads_trainer::eval::{self, Outputs, Report, Request, Subset, Target};
use manyheads_trainer::{DeviceName, Error, Result};

use crate::leave::{Code, SUCCESS};
use crate::weights_options::WeightsOptions;

/// Measure top-1, top-5 and loss: of a run, or of weights files.
///
/// Weights are a .safetensors, .pt, .pth or .bin file with timm's, DeiT's or Hugging Face's names, or a folder that holds one. The
/// network is that of TARGET where it is a configuration, otherwise that of --preset, otherwise what the file's tensors tell.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of a run, or a configuration file together with --weights.
    #[arg(required_unless_present = "weights")]
    target: Option<PathBuf>,
    /// Weights to evaluate; may be repeated, and all are evaluated on the same images.
    #[arg(long, value_name = "FILE", conflicts_with = "checkpoint")]
    weights: Vec<PathBuf>,
    #[command(flatten)]
    options: WeightsOptions,
    /// Images to evaluate on, instead of the configuration's: a folder, a tar file, or another form of dataset.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Labels of a folder or tar of images without class folders: lines of file name and class, or ILSVRC's ground truth.
    #[arg(long, value_name = "FILE", requires = "data")]
    labels: Option<PathBuf>,
    /// Which checkpoint of the run: last, best, or a name such as step-00001250.
    #[arg(long, value_name = "NAME", default_value = "last")]
    checkpoint: String,
    /// Judge by ReaL's labels (real.json) instead of the images' own; the images are ImageNet's validation set.
    #[arg(long, value_name = "FILE")]
    real_labels: Option<PathBuf>,
    /// The images have some of the model's ImageNet classes only: `restrict` lets only these compete (as for ImageNet-A and -R),
    /// `all` lets all of the model's classes compete.
    #[arg(long, value_name = "HOW", value_parser = subset)]
    subset: Option<Subset>,
    /// Write a table with the result of each class (csv).
    #[arg(long, value_name = "FILE")]
    per_class: Option<PathBuf>,
    /// Write the five best classes of each image (csv).
    #[arg(long, value_name = "FILE")]
    predictions: Option<PathBuf>,
    /// Write a line for each of the weights (csv).
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the network's output for every image, for a student to learn from (distillation.logits).
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
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

fn subset(word: &str) -> std::result::Result<Subset, String> {
    match word {
        "restrict" => Ok(Subset::Restrict),
        "all" => Ok(Subset::All),
        _ => Err("it is `restrict` or `all`".into()),
    }
}

pub fn run(args: Args) -> Result<Code> {
    let target = match (&args.target, args.weights.is_empty()) {
        (Some(target), false) if target.is_dir() => {
            return Err(Error::Usage(format!(
                "--weights needs a configuration file, but {} is a folder. Use its config.toml, or for a folder of images: manyheads eval --weights FILE --data {}",
                target.display(),
                target.display(),
            )));
        }
        (Some(target), true) if target.is_file() => {
            return Err(Error::Usage(format!(
                "{} is a file. Give the folder of a run, or a configuration together with --weights FILE",
                target.display()
            )));
        }
        (Some(run), true) => Target::Run { dir: run, checkpoint: &args.checkpoint, ema: args.options.ema },
        (config, _) => Target::Weights { files: &args.weights, config: config.as_deref(), naming: args.options.naming()? },
    };
    let request = Request {
        target,
        data: args.data.as_deref(),
        labels: args.labels.as_deref(),
        real_labels: args.real_labels.as_deref(),
        subset: args.subset,
        sets: &args.sets,
        device: args.device,
        outputs: Outputs {
            per_class: args.per_class.as_deref(),
            predictions: args.predictions.as_deref(),
            csv: args.csv.as_deref(),
            logits: args.logits.as_deref(),
        },
    };
    let reports = eval::run(&request)?;
    if args.json {
        let object = match reports.as_slice() {
            [only] => json(only),
            all => serde_json::json!({"results": all.iter().map(json).collect::<Vec<_>>()}),
        };
        crate::print(object)?;
    } else {
        for report in &reports {
            let score = &report.evaluation.score;
            let name = if reports.len() > 1 { format!("{}: ", report.weights.display()) } else { String::new() };
            crate::print(format!(
                "{name}top-1 {:.2} % | top-5 {:.2} % | loss {:.4} | n {} | {:.1} images/s",
                score.top1,
                score.top5,
                score.loss,
                score.n,
                report.images_per_second()
            ))?;
        }
    }
    Ok(SUCCESS)
}

fn json(report: &Report) -> serde_json::Value {
    let score = &report.evaluation.score;
    serde_json::json!({
        "top1": score.top1, "top5": score.top5, "loss": score.loss, "n": score.n,
        "skipped": report.evaluation.skipped.len(), "weights": report.weights.to_string_lossy(),
        "labels": report.labels, "images_per_second": report.images_per_second(),
    })
}
