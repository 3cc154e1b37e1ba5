//! A step whose numbers are not finite changes nothing, even where the host does not know of it yet.
#![cfg(feature = "flex")]

use burn::tensor::Device;
use manyheads_data::{Batch, Images, Purpose, stream};
use manyheads_model::weights::timm::{NamedTensor, export};
use manyheads_trainer::checkpoint::Parts;
use manyheads_trainer::config::{Loaded, load_text};
use manyheads_trainer::engine::step::{Learner, Window};

const CONFIG: &str = r#"
[model]
image_size = 8
patch_size = 4
channels = 1
classes = 3
width = 8
depth = 1
heads = 2
[data]
train = "unused"
val = "unused"
mean = [0.5]
std = [0.5]
[optimizer]
reference_batch = 0
[ema]
enabled = true
decay = 0.9
[train]
epochs = 1
batch_size = 2
accumulate = 1
[schedule]
warmup_epochs = 0
"#;

fn batch(pixel: f32) -> Batch {
    let mut images: Vec<f32> = (0..128).map(|value| (value as f32 * 0.7).sin()).collect();
    images[5] = pixel;
    Batch {
        images: Images::F32(images),
        shape: [2, 1, 8, 8],
        labels: vec![0, 2],
        items: vec![0, 1],
        copies: vec![0, 0],
        counted: 2,
        skipped: Vec::new(),
        epoch: 0,
        batch: 0,
    }
}

/// Weights, average and optimizer's state as they are.
fn state(learner: &Learner) -> Vec<NamedTensor> {
    let held = learner.optimizer().hold().into_iter().map(|held| NamedTensor {
        values: held.values.into_data().try_into_vec().unwrap(),
        name: held.name,
        shape: held.shape,
    });
    export(learner.model()).into_iter().chain(learner.ema().unwrap().export()).chain(held).collect()
}

/// A step on a batch with this pixel, guarded on the device or not at all.
fn step(learner: &mut Learner, pixel: f32, count: u64, guarded: bool) {
    let mut window = Window::new(2);
    learner.add(&mut window, batch(pixel)).unwrap();
    let (gradients, report) = learner.close(window).unwrap();
    let broken = report.broken().expect("the numbers are on the device");
    learner.update_unless(gradients, 1e-2, count, guarded.then_some(broken));
}

fn bits(tensors: &[NamedTensor]) -> Vec<Vec<u32>> {
    tensors.iter().map(|tensor| tensor.values.iter().map(|value| value.to_bits()).collect()).collect()
}

#[test]
fn a_broken_step_changes_no_bit_and_a_sound_one_is_as_without_the_guard() {
    for optimizer in ["adamw", "lamb", "sgd"] {
        let Loaded { config, architecture, .. } = load_text(CONFIG, "test", &[format!("optimizer.kind={optimizer}")]).unwrap();
        let device = Device::flex();
        let learner = || {
            let model = architecture.init(&mut stream(0, Purpose::Init, 0, 0), &device.clone().autodiff());
            Learner::new(model, &architecture, &config, &device).unwrap()
        };
        let (mut guarded, mut plain) = (learner(), learner());
        step(&mut guarded, 0.1, 1, true);
        step(&mut plain, 0.1, 1, false);
        assert_eq!(bits(&state(&guarded)), bits(&state(&plain)), "{optimizer}: a sound step");
        for pixel in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            step(&mut guarded, pixel, 2, true);
            assert_eq!(bits(&state(&guarded)), bits(&state(&plain)), "{optimizer}: pixel {pixel}");
        }
        step(&mut guarded, 0.2, 3, true);
        step(&mut plain, 0.2, 3, false);
        assert_eq!(bits(&state(&guarded)), bits(&state(&plain)), "{optimizer}: the step after it");
        step(&mut plain, f32::NAN, 4, false);
        assert!(state(&plain).iter().any(|tensor| tensor.values.iter().any(|value| value.is_nan())), "the guard has a purpose");
    }
}

/// What a checkpoint holds is the state at its step, whatever the steps after it do before it is written.
#[test]
fn a_held_state_outlives_the_next_steps() {
    let Loaded { config, architecture, .. } = load_text(CONFIG, "test", &[]).unwrap();
    let device = Device::flex();
    let model = architecture.init(&mut stream(0, Purpose::Init, 0, 0), &device.clone().autodiff());
    let mut learner = Learner::new(model, &architecture, &config, &device).unwrap();
    step(&mut learner, 0.1, 1, false);
    for eager in [true, false] {
        let before = state(&learner);
        let model = manyheads_model::weights::timm::hold(learner.model());
        let (ema, optimizer) = (learner.ema().map(|ema| ema.hold()), learner.optimizer().hold());
        let Parts { model, ema, optimizer, .. } = Parts::hold(model, ema, optimizer, String::new(), eager).unwrap();
        for count in 2..5 {
            step(&mut learner, 0.3, count, false);
        }
        let held: Vec<NamedTensor> = model
            .into_iter()
            .chain(ema.into_iter().flatten())
            .chain(optimizer)
            .map(|part| NamedTensor { name: part.name().into(), shape: part.shape().into(), values: part.into_values().unwrap() })
            .collect();
        assert_eq!(bits(&held), bits(&before));
        assert_ne!(bits(&state(&learner)), bits(&before));
    }
}
