//! Writes a contact sheet of augmented samples, to look at what a network sees.
//!
//! ```text
//! cargo run --release -p manyheads-data --example preview -- FOLDER sheet.png
//! ```
//!
//! Without a folder: the embedded Fashion-MNIST. Each row is one image: the evaluation crop, then seven training samples.

use std::error::Error;
use std::sync::Arc;

use image::{ImageEncoder, codecs::png::PngEncoder};
use manyheads_data::source::{embedded::FashionMnist, folder::Folder};
use manyheads_data::{
    EvalTransform, Interpolation, Loader, LoaderConfig, OnError, RandomResizedCrop, Source, TrainTransform, Transform,
};

const ROWS: usize = 8;
const COLUMNS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (source, out): (Arc<dyn Source>, &String) = match arguments.as_slice() {
        [out] => (Arc::new(FashionMnist::train()?), out),
        [folder, out] => (Arc::new(Folder::open(folder)?), out),
        _ => return Err("usage: preview [FOLDER] OUT.png".into()),
    };
    let side = if arguments.len() == 1 { 56 } else { 112 };
    let (mean, std) = (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]);
    let interpolation = Interpolation::Bicubic;
    let train = Transform::Train(TrainTransform {
        size: [side; 2],
        channels: 3,
        random_resized_crop: Some(RandomResizedCrop { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] }),
        horizontal_flip: 0.5,
        interpolation,
        mean: mean.clone(),
        std: std.clone(),
    });
    let eval = Transform::Eval(EvalTransform {
        size: [side; 2],
        channels: 3,
        crop_pct: 0.875,
        interpolation,
        mean: mean.clone(),
        std: std.clone(),
    });
    let config = LoaderConfig {
        seed: 0,
        batch_size: ROWS,
        shuffle: false,
        drop_last: false,
        workers: 2,
        prefetch: 1,
        on_error: OnError::Fail,
    };

    let mut sheet = vec![0u8; ROWS * side * COLUMNS * side * 3];
    let step = source.len() / ROWS;
    let picked: Arc<dyn Source> = Arc::new(Every { source, step: step.max(1) });
    for column in 0..COLUMNS {
        let transform = if column == 0 { eval.clone() } else { train.clone() };
        let loader = Loader::new(Arc::clone(&picked), transform, config.clone())?;
        let batch = loader.epoch(column as u64, 0).next().ok_or("no images")??;
        for (row, sample) in batch.images.chunks_exact(3 * side * side).enumerate() {
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
