//! Time and memory of the index of a dataset of ImageNet's size, and of epochs over many images.
//!
//! ```sh
//! cargo run --release -p manyheads-data --example index_memory -- make FOLDER   # 1,281,167 empty files in 1000 classes
//! cargo run --release -p manyheads-data --example index_memory -- open FOLDER   # folder, tar, shards, …
//! cargo run --release -p manyheads-data --example index_memory -- epochs        # 6 epochs of 20,000 images
//! ```

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use manyheads_data::source::embedded::FashionMnist;
use manyheads_data::source::{OpenOptions, open};
use manyheads_data::{DataError, EvalTransform, Interpolation, Loader, LoaderConfig, Source, Transform, imagenet};
use std::borrow::Cow;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["make", folder] => make(Path::new(folder)),
        ["open", path] => measure(Path::new(path)),
        ["epochs"] => epochs(),
        _ => Err("arguments: make FOLDER, open PATH, or epochs".into()),
    }
}

/// A number in `/proc/self/status`, in MiB.
fn memory(key: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')?.trim().strip_suffix("kB"));
    line.and_then(|kib| kib.trim().parse::<f64>().ok()).map_or(f64::NAN, |kib| kib / 1024.0)
}

fn make(folder: &Path) -> Result<(), Box<dyn Error>> {
    for (label, wnid) in imagenet::wnids().iter().enumerate() {
        let class = folder.join(wnid);
        fs::create_dir_all(&class)?;
        for i in (label..imagenet::TRAIN_IMAGES).step_by(1000) {
            fs::File::create(class.join(format!("{wnid}_{i}.JPEG")))?;
        }
    }
    Ok(())
}

fn measure(path: &Path) -> Result<(), Box<dyn Error>> {
    let (before, start) = (memory("VmRSS"), Instant::now());
    let source = open(path, &OpenOptions::default())?;
    println!("{} images, {} classes in {:.2} s", source.len(), source.classes().len(), start.elapsed().as_secs_f64());
    println!("resident memory grew by {:.0} MiB, peak {:.0} MiB", memory("VmRSS") - before, memory("VmHWM"));
    source.notices().iter().for_each(|notice| println!("{notice}"));
    Ok(())
}

/// The embedded images, again and again.
struct Many(FashionMnist);

impl Source for Many {
    fn len(&self) -> usize {
        20_000
    }
    fn classes(&self) -> &[String] {
        self.0.classes()
    }
    fn label(&self, index: usize) -> usize {
        self.0.label(index % Source::len(&self.0))
    }
    fn name(&self, index: usize) -> String {
        format!("image {index}")
    }
    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        self.0.read(index % Source::len(&self.0))
    }
    fn notices(&self) -> &[String] {
        &[]
    }
}

fn epochs() -> Result<(), Box<dyn Error>> {
    let transform = Transform::Eval(EvalTransform {
        size: [64, 64],
        channels: 3,
        crop_pct: 1.0,
        interpolation: Interpolation::Bilinear,
        mean: vec![0.5; 3],
        std: vec![0.5; 3],
        ..EvalTransform::default()
    });
    let config = LoaderConfig { batch_size: 128, shuffle: true, workers: 2, ..LoaderConfig::default() };
    let loader = Loader::new(Arc::new(Many(FashionMnist::train()?)), transform, config)?;
    for epoch in 0..6 {
        let start = Instant::now();
        for batch in loader.epoch(epoch, 0) {
            loader.recycle(batch?.images);
        }
        println!("epoch {epoch}: {:.2} s, resident memory {:.1} MiB", start.elapsed().as_secs_f64(), memory("VmRSS"));
    }
    Ok(())
}
