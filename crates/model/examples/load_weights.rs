//! How long a file of weights takes to load on the CPU, and how much memory: `cargo run --release -p manyheads-model --example
//! load_weights -- FILE [PRESET]`.

use burn::tensor::Device;
use manyheads_model::Preset;
use manyheads_model::weights::{Hints, LoadOptions, OpenOptions, Source, load, recognise};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: load_weights FILE [PRESET]")?;
    let preset = arguments.next().map(|name| Preset::find(&name)).transpose()?;

    let before = peak_memory();
    let start = Instant::now();
    let source = Source::open(Path::new(&path), &OpenOptions::default())?;
    let found = recognise(&source, &Hints { preset, ..Hints::default() })?;
    let (model, report) = load(&source, &found.config.resolve()?, &LoadOptions::default(), &Device::flex())?;
    let seconds = start.elapsed().as_secs_f64();

    for note in source.notes().iter().chain(&found.notes) {
        println!("{note}");
    }
    println!("{report}");
    let stored: usize = source.tensors().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    println!("{stored} parameters in {seconds:.3} s");
    if let (Some(before), Some(after)) = (before, peak_memory()) {
        println!("peak memory {after} KiB, {before} KiB before loading");
    }
    drop(model);
    Ok(())
}

/// The process's greatest resident memory so far in KiB, where the system tells (Linux).
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
