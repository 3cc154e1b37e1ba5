//! Writes a contact sheet of augmented samples, to look at what a network sees.
//!
//! ```text
//! cargo run --release -p manyheads-data --example preview -- FOLDER rand-m9-mstd0.5-inc1 sheet.png
//! ```
//!
//! Without a folder: the embedded Fashion-MNIST. Each row is one image: the evaluation crop, then seven training samples.

use std::error::Error;
use std::sync::Arc;

use image::{ImageEncoder, codecs::png::PngEncoder};
use manyheads_data::source::{embedded::FashionMnist, folder::Folder};
use manyheads_data::{EvalTransform, Loader, LoaderConfig, OnError, Source, TrainTransform, Transform};

const ROWS: usize = 8;
const COLUMNS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (source, out, policy): (Arc<dyn Source>, &String, &str) = match arguments.as_slice() {
        [out] => (Arc::new(FashionMnist::train()?), out, "rand-m9-mstd0.5-inc1"),
        [folder, out] => (Arc::new(Folder::open(folder)?), out, "rand-m9-mstd0.5-inc1"),
        [folder, policy, out] => (Arc::new(Folder::open(folder)?), out, policy),
        _ => return Err("usage: preview [FOLDER [POLICY]] OUT.png".into()),
    };
    let side = if arguments.len() == 1 { 56 } else { 112 };
    let train = Transform::Train(TrainTransform {
        size: [side; 2],
        auto_augment: policy.parse().map(Some)?,
        ..TrainTransform::default()
    });
    let eval = Transform::Eval(EvalTransform { size: [side; 2], ..EvalTransform::default() });
    let config = LoaderConfig {
        seed: 0,
        batch_size: ROWS,
        shuffle: false,
        drop_last: false,
        workers: 2,
        prefetch: 1,
        on_error: OnError::Fail,
        ..LoaderConfig::default()
    };

    let mut sheet = vec![0u8; ROWS * side * COLUMNS * side * 3];
    let step = source.len() / ROWS;
    let picked: Arc<dyn Source> = Arc::new(Every { source, step: step.max(1) });
    for column in 0..COLUMNS {
        let transform = if column == 0 { eval.clone() } else { train.clone() };
        let loader = Loader::new(Arc::clone(&picked), transform, config.clone())?;
        let (mean, std) = loader.transform().normalisation();
        let batch = loader.epoch(column as u64, 0).next().ok_or("no images")??;
        for (row, sample) in batch.images.as_f32().ok_or("no floats")?.chunks_exact(3 * side * side).enumerate() {
            for (i, value) in sample.iter().enumerate() {
                let (channel, y, x) = (i / (side * side), i / side % side, i % side);
                // Normalisation undone.
                let value = ((value * std[channel] + mean[channel]) * 255.0).round() as u8;
                sheet[((row * side + y) * COLUMNS * side + column * side + x) * 3 + channel] = value;
            }
        }
    }
    let (width, height) = ((COLUMNS * side) as u32, (ROWS * side) as u32);
    let encoder = PngEncoder::new(std::fs::File::create(out)?);
    encoder.write_image(&sheet, width, height, image::ExtendedColorType::Rgb8)?;
    println!("{out}: {width} × {height}");
    Ok(())
}

/// Every n-th image of a source.
struct Every {
    source: Arc<dyn Source>,
    step: usize,
}

impl Source for Every {
    fn len(&self) -> usize {
        (self.source.len() / self.step).min(ROWS)
    }
    fn classes(&self) -> &[String] {
        self.source.classes()
    }
    fn label(&self, index: usize) -> usize {
        self.source.label(index * self.step)
    }
    fn name(&self, index: usize) -> String {
        self.source.name(index * self.step)
    }
    fn read(&self, index: usize) -> Result<std::borrow::Cow<'_, [u8]>, manyheads_data::DataError> {
        self.source.read(index * self.step)
    }
    fn notices(&self) -> &[String] {
        self.source.notices()
    }
}
