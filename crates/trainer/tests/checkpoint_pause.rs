//! How long training stops for a checkpoint of 86 million parameters with AdamW and an average of the weights on the CPU, and how much
//! memory writing it takes. The numbers are printed with `--nocapture`.
//!
//! The body is ViT-B/16's on images of 32 × 32 pixels, so that the tensors of a checkpoint are all there and a step takes little.
#![cfg(all(feature = "flex", target_os = "linux"))]

use std::time::{Duration, Instant};

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

/// Most bytes of memory that this process has held since [`reset_peak`].
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// Longest stop.
const PAUSE: Duration = Duration::from_millis(300);
/// Most memory beside that of training, in sizes of the checkpoint: a copy, while training goes on with what was copied, and what
/// serialising and hashing take.
const COPIES: f64 = 1.1;
/// Another process may take the processor or the disk at the wrong time.
const TRIES: usize = 3;

/// What one checkpoint took.
#[derive(Debug, Clone, Copy)]
struct Taken {
    pause: Duration,
    /// Memory beside that of training, in sizes of the checkpoint.
    copies: f64,
}

#[test]
fn training_hardly_stops_for_a_checkpoint_and_one_copy_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    store.create().unwrap();
    let Loaded { config, architecture, .. } = load_text(CONFIG, "test", &["ema.enabled=true".into()]).unwrap();
    let device = Device::flex();
    let model = architecture.init(&mut stream(0, Purpose::Init, 0, 0), &device.clone().autodiff());
    let mut run = Run {
        learner: Learner::new(model, &architecture, &config, &device).unwrap(),
        steps: 0,
        saver: Saver::new(store),
        config: config.to_toml(),
        copy: manyheads_model::cost(&architecture).parameters() * 16,
    };
    run.step();
    let mut best = Taken { pause: Duration::MAX, copies: f64::MAX };
    for _ in 0..TRIES {
        let taken = run.checkpoint();
        best = Taken { pause: best.pause.min(taken.pause), copies: best.copies.min(taken.copies) };
        if best.pause <= PAUSE && best.copies <= COPIES {
            return;
        }
    }
    panic!("training may stop for {PAUSE:?}, and saving may take {COPIES} of the checkpoint in memory: {best:?}");
}

struct Run {
    learner: Learner,
    steps: u64,
    saver: Saver,
    config: String,
    /// Size of a checkpoint, in bytes.
    copy: u64,
}

impl Run {
    fn step(&mut self) {
        self.steps += 1;
        step(&mut self.learner, self.steps);
    }

    /// Trains on while a checkpoint is written.
    fn checkpoint(&mut self) -> Taken {
        reset_peak();
        let start = Instant::now();
        self.step();
        self.step();
        let (plain, plain_peak) = (start.elapsed() / 2, peak());
        reset_peak();
        let start = Instant::now();
        let average = self.learner.ema().map(Ema::hold);
        let model = timm::hold(self.learner.model());
        let parts = Parts::hold(model, average, self.learner.optimizer().hold(), self.config.clone(), true).unwrap();
        let keep = Keep { newest: 1, best: None, every: None };
        self.saver.start(Job { manifest: manifest(self.steps), parts, logs: Vec::new(), keep }).unwrap();
        let pause = start.elapsed();
        self.step();
        let (first, mut more) = (start.elapsed() - pause, 1);
        while self.saver.poll().unwrap().is_none() {
            self.step();
            more += 1;
        }
        let (writing, saving_peak) = (start.elapsed(), peak());
        let copies = (saving_peak as f64 - plain_peak as f64) / self.copy as f64;
        println!(
            "a checkpoint of {} MiB | training stops for {:.1} ms | a step takes {:.2} s, the one after it {:.2} s | written, synced and \
             hashed after {:.2} s, {more} steps on | peak of memory {} MiB, without saving {} MiB: {copies:.2} of the checkpoint more",
            self.copy >> 20,
            pause.as_secs_f64() * 1e3,
            plain.as_secs_f64(),
            first.as_secs_f64(),
            writing.as_secs_f64(),
            saving_peak >> 20,
            plain_peak >> 20,
        );
        Taken { pause, copies }
    }
}

fn manifest(step: u64) -> Manifest {
    Manifest {
        format: FORMAT,
        version: "0".into(),
        step,
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
    }
}
