//! Dropout against timm's with given masks: `scripts/reference/dropout_fixtures.py`.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use manyheads_model::weights::timm::{NamedTensor, expected, import};
use manyheads_model::{Architecture, BlockMasks, DropoutMasks, KeptPatches, Mask, ModelConfig, parameter_name};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::Value;

const BATCH: usize = 3;

const CONFIG: &str = r#"
image_size = 16
patch_size = 4
classes = 5
width = 16
depth = 2
heads = 2
mlp_ratio = 2.0
[dropout]
head = 0.3
positions = 0.2
patches = 0.4
projections = 0.25
attention = 0.15
"#;

/// The reference script's `uniform`.
fn uniform(name: &str, count: usize) -> Vec<f64> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let word = |index: u64| {
        let z = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (1..=count as u64).map(|index| (word(index) >> 11) as f64 / (1u64 << 53) as f64).collect()
}

fn mask<const D: usize>(name: &str, shape: [usize; D], rate: f64, device: &Device) -> Option<Mask<D>> {
    let dropped: Vec<bool> = uniform(name, shape.iter().product()).into_iter().map(|number| number < rate).collect();
    Some(Mask::new(Tensor::from_data(TensorData::new(dropped, shape), device), rate))
}

fn masks(architecture: &Architecture, device: &Device) -> DropoutMasks {
    let Architecture { width, heads, mlp_hidden, dropout, .. } = *architecture;
    let patches = architecture.tokens() - architecture.prefix_tokens();
    let count = KeptPatches::count(patches, dropout.patches);
    let numbers = uniform("patches", BATCH * patches);
    let rows = numbers.chunks(patches).enumerate().flat_map(|(image, numbers)| {
        let mut order: Vec<usize> = (0..patches).collect();
        order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]));
        order.into_iter().take(count).map(move |patch| (image * patches + patch) as i32)
    });
    let rows = rows.collect::<Vec<i32>>();
    let tokens = architecture.training_tokens();
    let block = |index: usize| {
        let name = |part: &str| format!("blocks.{index}.{part}");
        BlockMasks {
            attention: mask(&name("attention"), [BATCH, heads, tokens, tokens], dropout.attention, device),
            projection: mask(&name("projection"), [BATCH, tokens, width], dropout.projections, device),
            hidden: mask(&name("hidden"), [BATCH, tokens, mlp_hidden], dropout.projections, device),
            output: mask(&name("output"), [BATCH, tokens, width], dropout.projections, device),
        }
    };
    DropoutMasks {
        positions: mask("positions", [BATCH, architecture.tokens(), width], dropout.positions, device),
        patches: Some(KeptPatches { rows: Tensor::from_data(rows.as_slice(), device), count }),
        blocks: (0..architecture.depth).map(block).collect(),
        head: mask("head", [BATCH, width], dropout.head, device),
        head_dist: mask("head_dist", [BATCH, width], dropout.head, device),
    }
}

/// The norm of every parameter's gradient.
struct Norms<'a> {
    path: Vec<String>,
    gradients: &'a Gradients,
    found: HashMap<String, f64>,
}

impl ModuleVisitor for Norms<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.gradients).expect("every parameter has a gradient");
        let values: Vec<f32> = gradient.into_data().try_into_vec().expect("f32");
        let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        self.found.insert(parameter_name(&self.path), norm);
    }
}

fn check(name: &str, distilled: bool) {
    let golden: Value = serde_json::from_str(include_str!("fixtures/dropout.json")).unwrap();
    let golden = &golden[name];
    let config: ModelConfig = toml::from_str(&format!("distilled = {distilled}\n{CONFIG}")).unwrap();
    let architecture = config.resolve().unwrap();
    let device = Device::flex().autodiff();
    let named = expected(&architecture).into_iter().map(|(name, shape)| {
        let mut values: Vec<f32> =
            uniform(&name, shape.iter().product()).into_iter().map(|number| ((number - 0.5) * 0.4) as f32).collect();
        if name.contains("norm") && name.ends_with("weight") {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        (name.clone(), NamedTensor { name, shape, values })
    });
    let mut tensors: HashMap<String, NamedTensor> = named.collect();
    let names: Vec<String> = tensors.keys().cloned().collect();
    let model = architecture.init(&mut ChaCha8Rng::seed_from_u64(0), &device);
    let model = import(model, &names, |name| tensors.remove(name)).unwrap();
    let pixels: Vec<f32> =
        uniform("images", BATCH * 3 * 16 * 16).into_iter().map(|number| ((number - 0.5) * 4.0) as f32).collect();
    let images = Tensor::from_data(TensorData::new(pixels, [BATCH, 3, 16, 16]), &device);
    let heads = model.dropping(images, None, Some(&masks(&architecture, &device)));

    let mut loss = Tensor::<1>::zeros([1], &device);
    let logits = [Some(heads.class), heads.distillation];
    for (number, (logits, theirs)) in logits.into_iter().flatten().zip(golden["logits"].as_array().unwrap()).enumerate() {
        loss = loss + logits.clone().square().sum();
        let ours: Vec<f32> = logits.into_data().try_into_vec().unwrap();
        for (ours, theirs) in ours.iter().zip(theirs.as_array().unwrap()) {
            assert!((f64::from(*ours) - theirs.as_f64().unwrap()).abs() < 1e-5, "{name} head {number}: {ours} is not {theirs}");
        }
    }
    let gradients = loss.backward();
    let mut norms = Norms { path: Vec::new(), gradients: &gradients, found: HashMap::new() };
    model.visit(&mut norms);
    let theirs = golden["gradients"].as_object().unwrap();
    assert_eq!(norms.found.len(), theirs.len());
    for (parameter, theirs) in theirs {
        let (ours, theirs) = (norms.found[parameter], theirs.as_f64().unwrap());
        assert!((ours / theirs - 1.0).abs() < 1e-4, "{name}: gradient of {parameter} has norm {ours}, not {theirs}");
    }
}

#[test]
fn with_given_masks_every_kind_of_dropout_is_timms() {
    check("plain", false);
}

#[test]
fn both_heads_of_a_distilled_model_drop_by_themselves_as_timms() {
    check("distilled", true);
}

/// timm's `max(1, int(patches * (1 - rate)))`.
#[test]
fn patches_that_are_kept_are_counted_as_timm_counts_them() {
    for (patches, rate, count) in [(196, 0.5, 98), (196, 0.25, 147), (196, 0.999, 1), (9, 0.1, 8), (3, 0.9, 1), (10, 0.3, 7)] {
        assert_eq!(KeptPatches::count(patches, rate), count, "{patches} {rate}");
    }
}
