//! How long training stops for a checkpoint of an 86 M parameter model on the CPU, and how much memory writing it takes.
//!
//! ```text
//! cargo run --release -p manyheads-trainer --example checkpoint_pause [FOLDER]
//! ```
//!
//! The body is ViT-B/16's on images of 32 × 32 pixels, so that the tensors of a checkpoint are all there and a step takes little. FOLDER is
//! where the checkpoints go; the system's folder for temporary files if absent.

use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::Device;
use manyheads_data::{Batch, Images, Purpose, stream};
use manyheads_model::weights::timm;
use manyheads_trainer::checkpoint::{DataFingerprint, FORMAT, Job, Keep, Manifest, Parts, Phase, Saver, Store};
use manyheads_trainer::config::{Loaded, load_text};
use manyheads_trainer::engine::step::{Learner, Window};
use manyheads_trainer::recipe::ema::Ema;

const CONFIG: &str = r#"
[model]
image_size = 32
patch_size = 16
channels = 3
classes = 1000
width = 768
depth = 12
heads = 12
[data]
train = "unused"
val = "unused"
[optimizer]
reference_batch = 0
[train]
batch_size = 2
accumulate = 1
"#;

fn step(learner: &mut Learner, count: u64) {
    let batch = Batch {
        images: Images::F32((0..2 * 3 * 32 * 32).map(|value| ((value as f32 + count as f32) * 0.7).sin()).collect()),
        shape: [2, 3, 32, 32],
        labels: vec![0, 1],
        items: vec![0, 1],
        copies: vec![0, 0],
        counted: 2,
        skipped: Vec::new(),
        epoch: 0,
        batch: 0,
    };
    let mut window = Window::new(2);
    learner.add(&mut window, batch).expect("every parameter takes part");
    let (gradients, _) = learner.close(window).expect("there are images");
    learner.update(gradients, 1e-3, count);
}

/// Bytes of memory that this process holds at most since the last call; Linux tells, elsewhere 0.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    let bytes = line.trim().trim_end_matches(" kB").parse().unwrap_or(0) * 1024;
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    bytes
}

fn main() {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = parent.join(format!("checkpoint-pause-{}", std::process::id()));
    let store = Store::new(&folder);
    store.create().expect("the folder can be written");
    for ema in [false, true] {
        measure(&store, ema);
    }
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}

fn measure(store: &Store, ema: bool) {
    let Loaded { config, architecture, .. } = load_text(CONFIG, "example", &[format!("ema.enabled={ema}")]).expect("it is sound");
    let device = Device::flex();
    let model = architecture.init(&mut stream(0, Purpose::Init, 0, 0), &device.clone().autodiff());
    let mut learner = Learner::new(model, &architecture, &config, &device).expect("the groups fit");
    let copy = manyheads_model::cost(&architecture).parameters() * if ema { 16 } else { 12 };
    let mut saver = Saver::new(store.clone());
    step(&mut learner, 1);
    peak();
    let start = Instant::now();
    step(&mut learner, 2);
    step(&mut learner, 3);
    let (plain, plain_peak) = (start.elapsed() / 2, peak());
    let manifest = Manifest {
        format: FORMAT,
        version: "0".into(),
        step: 3,
        phase: Phase::Done,
        best: None,
        last: None,
        pending: Vec::new(),
        skipped_steps: 0,
        metrics_bytes: 0,
        data: DataFingerprint {
            train_images: 0,
            val_images: 0,
            classes: Vec::new(),
            train_files: String::new(),
            val_files: String::new(),
        },
        files: Default::default(),
        sha256: String::new(),
    };
    let start = Instant::now();
    let average = learner.ema().map(Ema::hold);
    let parts = Parts::hold(timm::hold(learner.model()), average, learner.optimizer().hold(), config.to_toml(), true);
    let keep = Keep { newest: 1, best: None, every: None };
    let job = Job { manifest, parts: parts.expect("the CPU does not fail"), logs: Vec::new(), keep };
    saver.start(job).expect("there is a thread to be had");
    let pause = start.elapsed();
    step(&mut learner, 4);
    let first = start.elapsed() - pause;
    let mut count = 5;
    while saver.poll().expect("it can be written").is_none() {
        step(&mut learner, count);
        count += 1;
    }
    let (writing, saving_peak) = (start.elapsed(), peak());
    let mib = |bytes: u64| bytes >> 20;
    println!(
        "{} parameters{} | a checkpoint of {} MiB | training stops for {:.1} ms | a step takes {:.2} s, the one after it {:.2} s | \
         written, synced and hashed after {:.2} s, {} steps on | peak of memory {} MiB, without saving {} MiB: {:.2} of the checkpoint more",
        manyheads_trainer::info::group(manyheads_model::cost(&architecture).parameters()),
        if ema { " with their average" } else { "" },
        mib(copy),
        pause.as_secs_f64() * 1e3,
        plain.as_secs_f64(),
        first.as_secs_f64(),
        writing.as_secs_f64(),
        count - 4,
        mib(saving_peak),
        mib(plain_peak),
        (saving_peak as f64 - plain_peak as f64) / copy as f64
    );
}
