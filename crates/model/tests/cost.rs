//! Counts that are published or follow from a line of arithmetic.
#![allow(missing_docs)]

mod common;

use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use common::rng;
use manyheads_model::{Architecture, ModelConfig, Training, cost, training_memory_bytes};

fn architecture(text: &str) -> Architecture {
    toml::from_str::<ModelConfig>(text).expect("a readable config").resolve().expect("a possible architecture")
}

fn giga(macs: u64) -> f64 {
    macs as f64 / 1e9
}

#[test]
fn parameters_are_timms() {
    for (preset, parameters) in [("tiny", 5_717_416), ("small", 22_050_664), ("base", 86_567_656), ("large", 304_326_632)] {
        let architecture = architecture(&format!("preset = \"{preset}\""));
        assert_eq!(cost(&architecture).parameters(), parameters, "{preset}");
    }
}

/// `scripts/reference/model_presets.py` counted them in timm, with 1000 classes.
#[test]
fn every_presets_parameters_are_timms() {
    let counts: std::collections::BTreeMap<String, u64> =
        serde_json::from_str(include_str!("fixtures/parameters.json")).expect("a sound fixture");
    assert!(counts.len() > 80);
    for (preset, parameters) in counts {
        let architecture = architecture(&format!("preset = \"{preset}\"\nclasses = 1000"));
        assert_eq!(cost(&architecture).parameters(), parameters, "{preset}");
    }
}

#[test]
fn counted_parameters_are_those_of_the_network() {
    for text in
        ["preset = \"tiny\"", "preset = \"tiny\"\nqkv_bias = false\nclasses = 10\nimage_size = [32, 64]\nchannels = 1\ndepth = 2"]
    {
        let architecture = architecture(text);
        let model = architecture.init(&mut rng(0), &Device::flex());
        assert_eq!(cost(&architecture).parameters(), model.num_params() as u64, "{text}");
    }
}

#[test]
fn deit_b_at_224_is_17_564_gmacs_of_which_attention_0_715() {
    let cost = cost(&architecture(""));
    assert_eq!(format!("{:.3}", giga(cost.macs())), "17.564");
    assert_eq!(format!("{:.3}", giga(cost.macs_attention())), "0.715");
}

#[test]
fn all_hydra_attention_is_0_0036_gmacs() {
    let cost = cost(&architecture("[attention]\nkind = \"hydra\""));
    assert_eq!(format!("{:.4}", giga(cost.macs_attention())), "0.0036");
    // Softmax costs exactly the number of tokens times as much.
    let softmax = manyheads_model::cost(&architecture(""));
    assert_eq!(softmax.macs_attention(), 197 * cost.macs_attention());
}

#[test]
fn deit_b_at_384_with_0_2_7_and_12_hydra_layers() {
    for (count, macs) in [(0, "55.48"), (2, "54.46"), (7, "51.91"), (12, "49.36")] {
        let plan = match count {
            0 => String::new(),
            _ => format!("\n[attention]\noverrides = [{{ kind = \"hydra\", place = \"back\", count = {count} }}]"),
        };
        let cost = cost(&architecture(&format!("image_size = 384{plan}")));
        assert_eq!(format!("{:.2}", giga(cost.macs())), macs, "{count}");
    }
    let softmax = cost(&architecture("image_size = 384"));
    assert_eq!(format!("{:.3}", giga(softmax.macs())), "55.484");
}

#[test]
fn linear_attention_falls_with_heads_to_hydra() {
    let attention = |heads: usize| {
        let text = format!("heads = {heads}\n[attention]\nkind = \"linear\"");
        cost(&architecture(&text)).macs_attention()
    };
    assert_eq!(attention(1), 12 * 2 * 197 * 768 * 768);
    assert_eq!(attention(12), attention(1) / 12);
    let hydra = cost(&architecture("[attention]\nkind = \"hydra\"")).macs_attention();
    assert_eq!(attention(768), hydra);
}

#[test]
fn layers_are_listed_from_input_to_output() {
    let cost = cost(&architecture("depth = 2\n[attention]\noverrides = [{ kind = \"hydra\", kernel = \"tanh\", layers = [1] }]"));
    let rows: Vec<(&str, &str)> = cost.layers.iter().map(|layer| (layer.name.as_str(), layer.kind.as_str())).collect();
    assert_eq!(
        rows,
        [
            ("patch_embed", "embedding"),
            ("blocks.0", "softmax"),
            ("blocks.1", "hydra/tanh"),
            ("norm", "norm"),
            ("head", "classifier"),
        ]
    );
    assert_eq!(cost.layers[0].parameters, 768 * 768 + 768 + 768 + 197 * 768);
    assert_eq!(cost.layers[0].macs, 196 * 768 * 768);
    assert_eq!(cost.layers[3].parameters, 2 * 768);
    assert_eq!(cost.layers[4].parameters, 769 * 1000);
}

#[test]
fn memory_follows_its_formula() {
    let softmax = training_memory_bytes(&architecture(""), 64, Training::default());
    assert_eq!(softmax.weights, 4 * 86_567_656);
    assert_eq!(softmax.gradients, softmax.weights);
    assert_eq!(softmax.optimizer, 2 * softmax.weights);
    let (tokens, width) = (197, 768);
    let block = 10 * tokens * width + 8 * tokens * width;
    let rest = 196 * 768 + 3 * width;
    let per_image = 12 * (block + tokens * width + 3 * 12 * tokens * tokens) + rest;
    assert_eq!(softmax.activations, 4 * 64 * per_image);
    assert_eq!(softmax.total(), 4 * softmax.weights + softmax.activations);

    let hydra = training_memory_bytes(&architecture("[attention]\nkind = \"hydra\""), 64, Training::default());
    let per_image = 12 * (block + 2 * tokens * width + width) + rest;
    assert_eq!(hydra.activations, 4 * 64 * per_image);

    let more_heads = training_memory_bytes(&architecture("heads = 96"), 64, Training::default());
    assert!(more_heads.activations > softmax.activations);
    // Absurd batches saturate instead of wrapping round.
    assert_eq!(training_memory_bytes(&architecture(""), usize::MAX, Training::default()).total(), u64::MAX);
}

#[test]
fn masks_of_dropout_are_counted() {
    let memory = |text: &str| training_memory_bytes(&architecture(text), 64, Training::default()).activations;
    let (tokens, width) = (197, 768);
    let masks = |text: &str| (memory(&format!("[dropout]\n{text}")) - memory("")) / (4 * 64);
    assert_eq!(masks("projections = 0.1"), 12 * (2 * tokens * width + tokens * 4 * width));
    assert_eq!(masks("attention = 0.1"), 12 * 12 * tokens * tokens);
    assert_eq!(masks("positions = 0.1\nhead = 0.2"), tokens * width + width);
}

#[test]
fn bf16_halves_what_products_keep_and_recomputed_blocks_keep_their_input() {
    let architecture = architecture("");
    let memory = |products, recompute| training_memory_bytes(&architecture, 64, Training { products, recompute }).activations;
    let (tokens, width, batch) = (197, 768, 64);
    let in_products = 4 * tokens * width + 4 * tokens * width + 3 * tokens * width + 12 * tokens * tokens;
    let others = 4 * tokens * width + 4 * tokens * width + 2 * 12 * tokens * tokens;
    let matrices = 12 * width * width;
    let (patches, rest) = (196 * 768 + width, 2 * width);
    let copies = |count: u64| 2 * count;
    let ends = batch * (2 * patches + 4 * rest) + copies(768 * width + 1000 * width);
    let block = batch * (2 * in_products + 4 * others) + copies(matrices);
    assert_eq!(memory(FloatDType::BF16, false), 12 * block + ends);
    assert_eq!(memory(FloatDType::BF16, true), batch * 12 * 4 * tokens * width + block + ends);

    let (whole, recomputed) = (memory(FloatDType::F32, false), memory(FloatDType::F32, true));
    let ends = batch * 4 * (patches + rest);
    assert_eq!(recomputed, batch * 12 * 4 * tokens * width + (whole - ends) / 12 + ends);
}
