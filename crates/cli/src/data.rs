//! `manyheads data`.

use std::path::PathBuf;

use crate::leave::{Code, FAILURE, SUCCESS};
use clap::Subcommand;
use manyheads_trainer::data_tools::{self, Images, PackOptions, Sheet, VerifyOptions};
use manyheads_trainer::{Error, Result};

/// Check a dataset, pack it for speed, look at augmented samples.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Verify(Verify),
    Pack(Pack),
    Unpack(Unpack),
    Preview(Preview),
}

/// A dataset in any form.
#[derive(clap::Args)]
pub struct Dataset {
    /// Images: a folder, a tar or packed file, or shards as train-{000..146}.tar.
    path: PathBuf,
    #[command(flatten)]
    more: More,
}

/// What some forms of dataset need besides.
#[derive(clap::Args)]
pub struct More {
    /// Labels of images that lie without class folders: lines of file name and class, or ILSVRC's ground truth.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// A class name a line, for WebDataset shards whose labels are numbers.
    #[arg(long, value_name = "FILE")]
    class_names: Option<PathBuf>,
    /// Split to take where a folder of shards holds several.
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
}

impl More {
    pub fn images<'a>(&'a self, path: &'a std::path::Path) -> Images<'a> {
        Images { path, labels: self.labels.as_deref(), class_names: self.class_names.as_deref(), split: self.split.as_deref() }
    }
}

/// Decode every image, in parallel: which are broken, what is odd, which come twice. Leaves with 1 where one is broken.
#[derive(clap::Args)]
struct Verify {
    #[command(flatten)]
    dataset: Dataset,
    /// Threads; 0: all cores.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Do not look for images with the same bytes.
    #[arg(long)]
    no_duplicates: bool,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Write a dataset into one file that is read faster, and check it. A stopped packing is continued by the same command.
#[derive(clap::Args)]
struct Pack {
    #[command(flatten)]
    dataset: Dataset,
    /// File to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Shrink images whose short side has more pixels to this many. Without it the bytes stay as they are.
    #[arg(long, value_name = "PIXELS")]
    short_side: Option<u32>,
    /// JPEG quality of shrunk images, 1 to 100.
    #[arg(long, value_name = "QUALITY", default_value_t = PackOptions::default().quality, requires = "short_side")]
    quality: u8,
    /// Threads; 0: all cores.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Replace a file of that name.
    #[arg(long)]
    overwrite: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Write the images of a packed file into class folders again.
#[derive(clap::Args)]
struct Unpack {
    /// The packed file.
    file: PathBuf,
    /// Folder to write to.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Write a sheet of images as the network sees them, before mixup and CutMix: each row is one image, its evaluation crop first, then
/// its training samples of one epoch after another.
#[derive(clap::Args)]
struct Preview {
    /// Images; those of the configuration if absent.
    #[arg(required_unless_present = "config")]
    path: Option<PathBuf>,
    #[command(flatten)]
    more: More,
    /// The configuration whose augmentation is shown.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a key of the configuration, as augment.auto=rand-m9-mstd0.5-inc1; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Picture to write (PNG).
    #[arg(long, value_name = "FILE", default_value = "preview.png")]
    out: PathBuf,
    /// Images.
    #[arg(long, value_name = "N", default_value_t = 8)]
    rows: usize,
    /// Training samples of each image.
    #[arg(long, value_name = "N", default_value_t = 7)]
    columns: usize,
    /// Epoch of the first sample; each column is one more.
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u64,
}

pub fn run(args: Args) -> Result<Code> {
    match args.command {
        Command::Verify(args) => verify(&args),
        Command::Pack(args) => {
            let Pack { dataset, out, short_side, quality, threads, overwrite, json } = args;
            let options = PackOptions { short_side, quality, threads, overwrite };
            let report = data_tools::pack(&dataset.more.images(&dataset.path), &out, &options)?;
            if json {
                crate::print(object(&report)?)?;
            } else {
                crate::print(format!(
                    "{} images in {} ({:.1} MB), {} shrunk; every byte read back and compared. `manyheads data verify {}` decodes them; \
                     data.train = \"{}\" trains on them",
                    report.items,
                    out.display(),
                    report.file_bytes as f64 / 1e6,
                    report.shrunk,
                    out.display(),
                    out.display()
                ))?;
            }
            Ok(SUCCESS)
        }
        Command::Unpack(args) => {
            let count = data_tools::unpack(&args.file, &args.out)?;
            crate::print(format!("{count} images written below {}", args.out.display()))?;
            Ok(SUCCESS)
        }
        Command::Preview(args) => {
            let loaded = data_tools::configuration(args.config.as_deref(), &args.sets)?;
            let images = args.path.as_deref().map(|path| args.more.images(path));
            let sheet = Sheet { out: &args.out, rows: args.rows, columns: args.columns, epoch: args.epoch };
            crate::print(data_tools::preview(&loaded, images.as_ref(), &sheet)?.display())?;
            Ok(SUCCESS)
        }
    }
}

fn object(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::Failed(format!("cannot print as JSON: {e}")))
}

/// Names shown of a long list.
const SHOWN: usize = 10;

fn verify(args: &Verify) -> Result<Code> {
    let options = VerifyOptions { threads: args.threads, duplicates: !args.no_duplicates };
    let report = data_tools::verify(&args.dataset.more.images(&args.dataset.path), &options)?;
    let code = if report.is_sound() { SUCCESS } else { FAILURE };
    if args.json {
        crate::print(object(&report)?)?;
        return Ok(code);
    }
    for broken in &report.broken {
        crate::print(format!("broken: {}: {}", broken.name, broken.reason))?;
    }
    for same in report.duplicates.iter().take(SHOWN) {
        let classes = if same.across_classes { "in different classes" } else { "in one class" };
        crate::print(format!("same bytes {classes}: {}", same.names.join(", ")))?;
    }
    if report.duplicates.len() > SHOWN {
        crate::print(format!("… and {} more groups of images with the same bytes", report.duplicates.len() - SHOWN))?;
    }
    for (what, count) in &report.odd {
        crate::print(format!("{count} {what}"))?;
    }
    let counts = report.classes.iter().map(|(_, count)| *count);
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    crate::print(format!(
        "{} images of {} classes ({least} to {most} each), {:.1} MB: {} sound, {} broken, {} groups with the same bytes | {:.0} images/s",
        report.images,
        report.classes.len(),
        report.bytes as f64 / 1e6,
        report.ok,
        report.broken.len(),
        report.duplicates.len(),
        report.images_per_second
    ))?;
    Ok(code)
}
