//! Fifty steps of whole recipes on DeiT-Ti's body against PyTorch and timm: `scripts/reference/recipe_fixtures.py`.
#![cfg(feature = "flex")]

mod fifty_steps;

use std::collections::HashMap;

use burn::tensor::Device;
use fifty_steps::{CONFIG, STEPS, STEPS_PER_EPOCH, batch, draws, initial, sketch};
use manyheads_data::{Purpose, stream};
use manyheads_model::weights::timm::{NamedTensor, expected, export};
use manyheads_model::{Architecture, AttentionKind, ModelConfig, VisionTransformer};
use manyheads_trainer::config::{Loaded, load_text};
use manyheads_trainer::engine::gradients::GradientSum;
use manyheads_trainer::engine::step::{Learner, StepReport, Window};
use manyheads_trainer::recipe::distillation::Distillation;
use manyheads_trainer::recipe::schedule::Schedule;
use manyheads_trainer::weights;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

fn tensors(architecture: &Architecture, prefix: &str, scale: f64) -> Vec<NamedTensor> {
    let named = expected(architecture).into_iter();
    named.map(|(name, shape)| NamedTensor { values: initial(prefix, &name, &shape, scale), name, shape }).collect()
}

fn model(architecture: &Architecture, prefix: &str, device: &Device) -> VisionTransformer {
    let model = architecture.init(&mut stream(0, Purpose::Init, 0, 0), &device.clone().autodiff());
    let mut tensors: HashMap<_, _> = tensors(architecture, prefix, 0.02).into_iter().map(|t| (t.name.clone(), t)).collect();
    weights::into_model(model, &mut tensors).unwrap()
}

/// The teacher of the distillation recipes, from a file as a run reads it.
fn teacher(loaded: &mut Loaded, device: &Device) -> Option<Distillation> {
    loaded.config.distillation.kind.learns()?;
    let network = ModelConfig {
        image_size: Some(manyheads_model::ImageSize::Square(24)),
        patch_size: Some(8),
        classes: Some(10),
        width: Some(64),
        depth: Some(2),
        heads: Some(1),
        ..ModelConfig::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("teacher.safetensors");
    let tensors = tensors(&network.resolve().unwrap(), "teacher ", 0.1);
    let bytes = |tensor: &NamedTensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let bytes: Vec<Vec<u8>> = tensors.iter().map(bytes).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|(tensor, bytes)| (tensor.name.as_str(), TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).unwrap()));
    std::fs::write(&file, safetensors::serialize(views, None).unwrap()).unwrap();
    loaded.config.distillation.teacher = Some(file);
    Distillation::open(&loaded.config, &loaded.architecture, 160, "", device, &mut |_| ()).unwrap()
}

/// Greatest relative difference allowed after so many steps.
fn limit(steps: u64) -> f64 {
    if steps <= 10 { 1e-4 } else { 1e-3 }
}

/// What a run has learnt.
struct Learnt<'a> {
    architecture: &'a Architecture,
    /// The sum of the learning rates of all steps.
    rates: f64,
}

/// Trains a recipe of the reference script, `sets` being what it differs in, and compares every step, with operations fused and composed.
fn check(recipe: &str, sets: &[&str]) {
    for ops in ["fused", "plain"] {
        check_with(recipe, &[sets, &[&format!("run.ops={ops}")]].concat());
    }
}

fn check_with(recipe: &str, sets: &[&str]) {
    let golden = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/recipes.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let golden = &golden[recipe];
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let mut loaded = load_text(CONFIG, "test", &sets).unwrap();
    let device = Device::flex();
    let teacher = teacher(&mut loaded, &device);
    let Loaded { config, architecture, .. } = &loaded;
    // The reference script says why some recipes begin elsewhere.
    let prefix = match recipe {
        "deit" => "fourth ",
        "deit3" => "second ",
        _ => "",
    };
    let mut learner = Learner::new(model(architecture, prefix, &device), architecture, config, &device).unwrap();
    learner.set_teacher(teacher);
    let schedule = Schedule::new(config, STEPS_PER_EPOCH);

    let mut worst = [(0.0f64, 0.0f64); 2];
    for step in 0..STEPS {
        let expected = &golden["steps"][step as usize];
        let number = |key: &str| expected[key].as_f64().unwrap();
        let rate = schedule.learning_rate(step);
        assert!((rate / number("learning_rate") - 1.0).abs() < 1e-9, "{recipe} step {step}: learning rate {rate}");
        let mut window = Window::new(16);
        learner.add(&mut window, batch(step)).unwrap();
        let (gradients, report) = learner.close(window).unwrap();
        if step == 0 {
            compare_gradients(recipe, gradients.clone(), &learner, architecture, golden);
        }
        learner.update(gradients, rate, step + 1);
        let mut reports = [(step, report)];
        StepReport::read_all(&mut reports).unwrap();
        let [(_, StepReport::Read(report))] = reports else { panic!("the numbers were read") };
        let (loss, norm) = (report.loss_sum / report.images as f64, report.gradient_norm);
        let apart = ((loss / number("loss") - 1.0).abs(), (norm / number("gradient_norm") - 1.0).abs());
        assert!(apart.0 < limit(step + 1), "{recipe} step {step}: loss {loss} is not {}", number("loss"));
        assert!(apart.1 < limit(step + 1), "{recipe} step {step}: norm {norm} is not {}", number("gradient_norm"));
        let worst = &mut worst[usize::from(step >= 10)];
        *worst = (worst.0.max(apart.0), worst.1.max(apart.1));
        if let Some(after) = golden["after"].get((step + 1).to_string()) {
            let what = format!("{recipe} after {} steps", step + 1);
            let learnt = Learnt { architecture, rates: (0..=step).map(|step| schedule.learning_rate(step)).sum() };
            let average = learner.ema().unwrap().export();
            compare(&format!("{what}, average"), average, &after["average"], &learnt, limit(step + 1));
            compare(&format!("{what}, weights"), export(learner.model()), &after["parameters"], &learnt, limit(step + 1));
        }
    }
    let [(early, early_norm), (late, late_norm)] = worst;
    println!(
        "{recipe}: up to step 10 loss {early:.1e} and gradient norm {early_norm:.1e} apart, later {late:.1e} and {late_norm:.1e}"
    );
}

/// The keys' bias, where it is softmax that does not see it: its gradient is rounding noise, of which Adam makes full steps of either sign.
fn unseen<'a>(name: &str, values: &'a mut [f32], architecture: &Architecture) -> Option<&'a mut [f32]> {
    let block = name.strip_prefix("blocks.")?.strip_suffix(".attn.qkv.bias")?;
    let width = values.len() / 3;
    let softmax = architecture.layers[block.parse::<usize>().unwrap()].kind == AttentionKind::Softmax;
    softmax.then(|| &mut values[width..2 * width])
}

/// Compares the gradients of biases and norms with those that PyTorch has in f64. Each is taken relative to the whole gradient: the optimizers
/// clip in different places.
fn compare_gradients(recipe: &str, gradients: GradientSum, learner: &Learner, architecture: &Architecture, golden: &Value) {
    let expected: HashMap<&str, &Value> =
        golden["gradients"].as_array().unwrap().iter().map(|tensor| (tensor["name"].as_str().unwrap(), tensor)).collect();
    let mut found = Vec::new();
    for (slot, tensor) in learner.optimizer().slots().trained.iter().zip(gradients.into_tensors()) {
        let Some(expected) = expected.get(slot.name.as_str()) else { continue };
        let mut values: Vec<f32> = tensor.into_data().try_into_vec().unwrap();
        let sums: Vec<f64> = expected["sketch"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        if let Some(keys) = unseen(&slot.name, &mut values, architecture) {
            keys.fill(0.0);
        }
        let length = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        found.push((sketch(&slot.name, &values), length, sums, expected["norm"].as_f64().unwrap()));
    }
    assert_eq!(found.len(), expected.len());
    let ours = found.iter().map(|(_, square, ..)| square).sum::<f64>().sqrt();
    let theirs = found.iter().map(|(.., norm)| norm * norm).sum::<f64>().sqrt();
    let apart = |(ours_sums, _, theirs_sums, norm): &(Vec<f64>, f64, Vec<f64>, f64)| {
        let squares = ours_sums.iter().zip(theirs_sums).map(|(a, b)| (a / ours * theirs - b).powi(2));
        squares.sum::<f64>() / (norm * norm)
    };
    let apart = (found.iter().map(apart).sum::<f64>() / found.len() as f64).sqrt();
    let pytorch = golden["gradients_apart"].as_f64().unwrap();
    println!("{recipe}: gradients of the first step are {apart:.1e} from those in f64, PyTorch's {pytorch:.1e}");
    assert!(apart < 2.0 * pytorch, "{recipe}: gradients are {apart:.1e} from those in f64, PyTorch's {pytorch:.1e}");
}

/// Compares every tensor with the reference's, relative to its length.
fn compare(what: &str, tensors: Vec<NamedTensor>, expected: &Value, learnt: &Learnt<'_>, limit: f64) {
    let expected: HashMap<&str, &Value> =
        expected.as_array().unwrap().iter().map(|tensor| (tensor["name"].as_str().unwrap(), tensor)).collect();
    assert_eq!(tensors.len(), expected.len());
    let mut worst = (0.0, String::new());
    for mut tensor in tensors {
        if let Some(keys) = unseen(&tensor.name, &mut tensor.values, learnt.architecture) {
            // All that can be said of it is how far steps of rounding carry it: (1 - 0.9) / sqrt(1 - 0.999) of the learning rate at most.
            assert!(keys.iter().all(|value| f64::from(value.abs()) <= 3.2 * learnt.rates), "{what}: {}: {keys:?}", tensor.name);
            keys.fill(0.0);
        }
        let expected = expected[tensor.name.as_str()];
        let theirs = expected["sketch"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap());
        let squares = sketch(&tensor.name, &tensor.values).into_iter().zip(theirs).map(|(a, b)| (a - b) * (a - b));
        let apart = squares.sum::<f64>().sqrt() / expected["norm"].as_f64().unwrap();
        assert!(apart < limit, "{what}: {} is apart by {apart:.1e} of its length", tensor.name);
        if apart > worst.0 {
            worst = (apart, tensor.name);
        }
    }
    println!("{what}: {} is furthest apart, by {:.1e} of its length", worst.1, worst.0);
}

#[test]
fn the_draws_are_those_that_the_reference_was_given() {
    let stored: Value = serde_json::from_str(include_str!("fixtures/draws.json")).unwrap();
    assert!(draws() == stored, "draws have changed: a seed no longer makes the same run");
}

#[test]
fn deit_is_timms() {
    check("deit", &["schedule.interval=epoch"]);
}

#[test]
fn deit3_with_lamb_binary_cross_entropy_and_layer_scale_is_timms() {
    let sets = [
        "model.layer_scale=1e-4",
        "model.no_embed_class=true",
        "model.stochastic_depth=0.2",
        "model.stochastic_depth_mode=constant",
        "optimizer.kind=lamb",
        "optimizer.learning_rate=3e-3",
        "train.loss=bce",
        "train.label_smoothing=0",
    ];
    check("deit3", &sets);
}

#[test]
fn hard_distillation_is_deits() {
    check("hard", &["model.distilled=true", "distillation.kind=hard", "distillation.teacher=here"]);
}

#[test]
fn soft_distillation_is_deits() {
    let sets = ["model.distilled=true", "distillation.kind=soft", "distillation.temperature=3.0", "distillation.teacher=here"];
    check("soft", &sets);
}

#[test]
fn hydra_in_the_last_four_layers_is_its_twin_in_pytorch() {
    check("hydra", &[r#"model.attention.overrides=[{kind="hydra", place="back", count=4}]"#]);
}

#[test]
fn linear_attention_in_the_last_four_layers_is_its_twin_in_pytorch() {
    check("linear", &[r#"model.attention.overrides=[{kind="linear", place="back", count=4}]"#]);
}
