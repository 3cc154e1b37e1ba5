//! What the fifty-step comparison with PyTorch and timm consists of: configurations, weights, images and draws, each defined as
//! `scripts/reference/recipe_fixtures.py` defines it.
#![allow(dead_code, reason = "the test and the example each use a part")]

use burn::tensor::Device;
use manyheads_data::mix::{Mix, MixDraw, MixKind};
use manyheads_data::{Batch, Images};
use manyheads_trainer::recipe::stochastic_depth;
use serde_json::{Value, json};

/// Steps of a run.
pub const STEPS: u64 = 50;
pub const STEPS_PER_EPOCH: u64 = 10;
const BATCH: usize = 16;
const GROUP: usize = 8;
const IMAGES: usize = 160;
const CLASSES: usize = 10;
const SIDE: usize = 24;
const DEPTH: usize = 12;

/// DeiT-Ti's body on small images, with everything of DeiT's recipe.
pub const CONFIG: &str = r#"
[model]
image_size = 24
patch_size = 8
classes = 10
width = 192
depth = 12
heads = 3
stochastic_depth = 0.1
[data]
train = "unused"
val = "unused"
[mix]
mixup = 0.8
cutmix = 1.0
group = 8
[optimizer]
learning_rate = 1e-3
reference_batch = 0
clip_norm = 1.0
[schedule]
interval = "step"
warmup_epochs = 2
warmup_learning_rate = 1e-4
min_learning_rate = 1e-5
[ema]
enabled = true
decay = 0.9
[train]
epochs = 5
batch_size = 16
accumulate = 1
"#;

/// `count` 64-bit words: SplitMix64 started at the 64-bit FNV-1a hash of `name`.
fn words(name: &str, count: usize) -> impl Iterator<Item = u64> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (1..=count as u64).map(move |index| {
        let z = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Nearly normal numbers of deviation `scale`: the sum of a word's four quarters. The same bits in every language.
fn noise(name: &str, count: usize, scale: f64) -> Vec<f32> {
    let value = |word: u64| {
        let total: u64 = (0..4).map(|quarter| (word >> (16 * quarter)) & 0xffff).sum();
        (scale * ((total as i64 - 131_070) as f64 * (3f64.sqrt() / 65536.0))) as f32
    };
    words(name, count).map(value).collect()
}

/// The initial values of a parameter: DeiT's law, weights normal with deviation `scale`, biases 0, norms 1, LayerScale 1e-4.
pub fn initial(prefix: &str, name: &str, shape: &[usize], scale: f64) -> Vec<f32> {
    let count = shape.iter().product();
    if name.contains("norm") && name.ends_with("weight") {
        vec![1.0; count]
    } else if name.ends_with("bias") {
        vec![0.0; count]
    } else if name.ends_with("gamma") {
        vec![1e-4; count]
    } else {
        noise(&format!("{prefix}{name}"), count, scale)
    }
}

/// Sums of a tensor's values with random signs in 8 buckets: the length of a difference of two such sketches estimates that of the
/// difference of the tensors (count sketch: Charikar et al., 2002).
pub fn sketch(name: &str, values: &[f32]) -> Vec<f64> {
    let mut buckets = vec![0.0; 8];
    for (word, value) in words(&format!("sketch {name}"), values.len()).zip(values) {
        let value = f64::from(*value);
        buckets[(word % 8) as usize] += if word & (1 << 32) == 0 { value } else { -value };
    }
    buckets
}

/// The batch of a step, without pixels.
fn items(step: u64) -> Batch {
    let (epoch, number) = (step / STEPS_PER_EPOCH, (step % STEPS_PER_EPOCH) as usize);
    let items: Vec<usize> = (0..BATCH).map(|place| (7 * (number * BATCH + place) + 13 * epoch as usize) % IMAGES).collect();
    Batch {
        images: Images::F32(Vec::new()),
        shape: [BATCH, 3, SIDE, SIDE],
        labels: items.iter().map(|item| (item % CLASSES) as u32).collect(),
        items,
        copies: vec![0; BATCH],
        counted: BATCH,
        skipped: Vec::new(),
        epoch,
        batch: number,
    }
}

/// The batch of a step; an image is its class's pattern and its own noise.
pub fn batch(step: u64) -> Batch {
    let count = 3 * SIDE * SIDE;
    let mut batch = items(step);
    let image = |item: &usize| {
        let class = noise(&format!("class {}", item % CLASSES), count, 1.0);
        class.into_iter().zip(noise(&format!("image {item}"), count, 1.0)).map(|(class, own)| class + own).collect::<Vec<f32>>()
    };
    batch.images = Images::F32(batch.items.iter().flat_map(image).collect());
    batch
}

/// What the program draws for the fifty steps: mixing, and which branches stochastic depth keeps where its rate rises to 0.1 and where it is
/// 0.2 in every layer; for each step a hexadecimal number of [layer, branch, image] bits, a kept branch being 1.
pub fn draws() -> Value {
    let mix = Mix { mixup_alpha: 0.8, cutmix_alpha: 1.0, probability: 1.0, switch_probability: 0.5 };
    let mixed = |step: u64| -> Value {
        let batch = items(step);
        let groups = (0..BATCH).step_by(GROUP);
        groups
            .map(|first| {
                let place = (batch.batch * BATCH + first) as u64;
                let MixDraw { kind, lambda } = mix.draw(0, batch.epoch, place, [SIDE, SIDE]);
                match kind {
                    MixKind::CutMix(r) => json!({"kind": "cutmix", "lambda": lambda, "rect": [r.y, r.x, r.height, r.width]}),
                    MixKind::Mixup => json!({"kind": "mixup", "lambda": lambda}),
                    MixKind::None => json!({"kind": "none", "lambda": lambda}),
                }
            })
            .collect()
    };
    let kept = |rates: &[f64], step: u64| -> String {
        let batch = items(step);
        let factors = stochastic_depth::factors(0, batch.epoch, &batch.items, &batch.copies, rates, &Device::flex());
        let factors: Vec<f32> = factors.expect("rates above 0").into_data().try_into_vec().expect("f32");
        let digit = |bits: &[f32]| bits.iter().fold(0u32, |number, factor| 2 * number + u32::from(*factor != 0.0));
        factors.chunks(4).map(|bits| format!("{:x}", digit(bits))).collect()
    };
    let linear: Vec<f64> = (0..DEPTH).map(|layer| 0.1 * layer as f64 / (DEPTH - 1) as f64).collect();
    let of_steps = |value: &dyn Fn(u64) -> Value| (0..STEPS).map(value).collect::<Value>();
    json!({
        "mix": of_steps(&mixed),
        "linear": of_steps(&|step| kept(&linear, step).into()),
        "constant": of_steps(&|step| kept(&[0.2; DEPTH], step).into()),
    })
}
