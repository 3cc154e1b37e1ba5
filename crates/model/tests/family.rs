//! Weights of timm and Hugging Face from files: recognised, loaded, their logits, and back. `scripts/reference/model_family_fixtures.py`
//! made the files.
#![allow(missing_docs)]

mod common;

use burn::tensor::{Device, Tensor};
use common::{assert_close, rng, tensor, values};
use manyheads_model::weights::timm::{NamedTensor, export};
use manyheads_model::weights::{
    Container, Export, Hints, Layout, LoadError, LoadOptions, OpenOptions, PositionResize, Problem, Recognised, Source, convert,
    load, load_into, recognise, resize_positions,
};
use manyheads_model::{Architecture, AttentionKind, ImageSize, ModelConfig, Preset};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/family").join(name)
}

/// A directory of the test's own, under cargo's for tests.
fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).expect("a writable target directory");
    path
}

fn open(name: &str) -> Source {
    Source::open(&fixture(name), &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn recognised(source: &Source) -> Recognised {
    recognise(source, &Hints { heads: Some(2), ..Hints::default() }).unwrap_or_else(|error| panic!("{error}"))
}

/// The library's configuration, images and logits.
fn golden(name: &str) -> (serde_json::Value, Tensor<4>, Vec<f64>) {
    let text = std::fs::read_to_string(fixture(&format!("{name}.json"))).expect(name);
    let golden: serde_json::Value = serde_json::from_str(&text).expect("sound JSON");
    let logits = golden["logits"].as_array().expect("logits").iter().map(|value| value.as_f64().expect("a number")).collect();
    let bytes = std::fs::read(fixture(&format!("{name}.images.safetensors"))).expect(name);
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a sound fixture");
    let view = file.tensor("images").expect("images");
    let shape: [usize; 4] = view.shape().try_into().expect("four axes");
    let pixels: Vec<f64> = view
        .data()
        .chunks_exact(2)
        .map(|pair| f64::from(burn::tensor::f16::from_le_bytes([pair[0], pair[1]]).to_f32()))
        .collect();
    (golden["config"].clone(), tensor(&pixels, shape, &Device::flex()), logits)
}

#[track_caller]
fn logits_are(source: &Source, architecture: &Architecture, options: &LoadOptions, name: &str) {
    let (model, report) = load(source, architecture, options, &Device::flex()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(report.missing.is_empty() && report.unused.is_empty(), "{name}: {report}");
    let (_, images, expected) = golden(name);
    assert_close(&values(model.forward(images, None)), &expected, 1e-5, name);
}

const TIMM: [&str; 10] = [
    "plain",
    "distilled",
    "deit3",
    "average",
    "average_tokenless",
    "registers",
    "registers_unplaced",
    "oblong",
    "patch14",
    "patch32",
];

#[test]
fn timms_models_are_recognised_and_give_timms_logits() {
    for name in TIMM {
        let source = open(&format!("{name}.safetensors"));
        let (keys, ..) = golden(name);
        let config: ModelConfig = serde_json::from_value(keys).unwrap_or_else(|error| panic!("{name}: {error}"));
        let architecture = config.resolve().unwrap_or_else(|error| panic!("{name}: {error}"));
        let image = Some(architecture.image);
        let found = recognise(&source, &Hints { heads: Some(2), image, ..Hints::default() }).expect(name);
        assert_eq!(found.layout, Layout::Timm);
        let mut recognised = found.config.resolve().expect(name);
        // The initial value of LayerScale shows in no shape.
        assert_eq!(recognised.layer_scale.is_some(), architecture.layer_scale.is_some(), "{name}");
        recognised.layer_scale = architecture.layer_scale;
        assert_eq!(recognised, architecture, "{name}");
        logits_are(&source, &architecture, &LoadOptions::default(), name);
    }
}

#[test]
fn hugging_faces_models_are_recognised_and_give_its_logits() {
    for (name, eps) in [("hf_vit", 1e-12), ("hf_deit", 1e-12), ("hf_distilled", 1e-3)] {
        let source = open(name);
        let found = recognise(&source, &Hints::default()).expect(name);
        assert_eq!(found.layout, Layout::HuggingFace);
        let architecture = found.config.resolve().expect(name);
        assert_eq!((architecture.heads, architecture.norm_eps), (2, eps), "{name}");
        assert_eq!(architecture.distilled, name == "hf_distilled");
        logits_are(&source, &architecture, &LoadOptions::default(), name);
    }
}

#[test]
fn both_heads_of_a_distilled_model_are_at_hand() {
    let source = open("distilled.safetensors");
    let architecture = recognised(&source).config.resolve().expect("a possible model");
    let (model, _) = load(&source, &architecture, &LoadOptions::default(), &Device::flex()).expect("it fits");
    let (_, images, expected) = golden("distilled");
    let heads = model.heads(images.clone(), None);
    let class = values(heads.class);
    let distillation = values(heads.distillation.expect("a second head"));
    let mean: Vec<f64> = class.iter().zip(&distillation).map(|(a, b)| (a + b) / 2.0).collect();
    assert_close(&mean, &expected, 1e-5, "mean of the heads");
    assert!(class.iter().zip(&distillation).any(|(a, b)| (a - b).abs() > 0.1), "the heads differ");
    assert_close(&values(model.forward(images, None)), &expected, 1e-5, "prediction");
}

#[test]
fn every_container_holds_the_same_model() {
    let plain = open("plain.safetensors");
    let architecture = recognised(&plain).config.resolve().expect("a possible model");
    let values_of = |source: &Source| {
        let (model, _) = load(source, &architecture, &LoadOptions::default(), &Device::flex()).unwrap_or_else(|e| panic!("{e}"));
        export(&model)
    };
    let expected = values_of(&plain);
    for (name, container, note) in [
        ("plain_legacy.pth", Container::Pytorch, None),
        ("plain_module.pth", Container::Pytorch, Some("`state_dict.module`")),
        ("plain_deit.pth", Container::Pytorch, Some("trained weights taken; averaged ones (EMA) are at `model_ema`")),
        ("plain_shards", Container::Sharded, None),
        ("plain_shards/model.safetensors.index.json", Container::Sharded, None),
    ] {
        let source = open(name);
        assert_eq!(source.container(), container, "{name}");
        let notes = source.notes().join("\n");
        assert!(note.is_none_or(|note| notes.contains(note)), "{name}: {notes}");
        assert_eq!(values_of(&source), expected, "{name}");
    }

    let averaged = Source::open(&fixture("plain_deit.pth"), &OpenOptions { ema: true, root: None }).expect("it holds averages");
    let notes = averaged.notes().join("\n");
    assert!(notes.contains("averaged weights (EMA) taken") && notes.contains("optimizer ("), "{notes}");
    for (averaged, trained) in values_of(&averaged).iter().zip(&expected) {
        assert!(averaged.values.iter().zip(&trained.values).all(|(a, b)| (a - 0.5 * b).abs() < 1e-3), "{}", averaged.name);
    }
}

#[test]
fn position_embeddings_are_timms_and_deits() {
    let bytes = std::fs::read(fixture("positions.safetensors")).expect("the fixture");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a sound fixture");
    let floats = |name: String| -> Vec<f32> {
        let view = file.tensor(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
        view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect()
    };
    for name in ["up", "other", "down", "oblong", "steep"] {
        let sizes: Vec<usize> = floats(format!("{name}.sizes")).into_iter().map(|size| size as usize).collect();
        let &[prefix, from_rows, from_columns, rows, columns] = sizes.as_slice() else { panic!("{name}: {sizes:?}") };
        let before = floats(format!("{name}.before"));
        for (resize, whose) in [(PositionResize::Antialiased, "timm"), (PositionResize::Plain, "deit")] {
            let after = resize_positions(&before, 4, prefix, [from_rows, from_columns], [rows, columns], resize);
            let expected = floats(format!("{name}.{whose}"));
            assert_eq!(after.len(), expected.len());
            for (a, b) in after.iter().zip(&expected) {
                assert!((a - b).abs() < 1e-5, "{name}, {whose}: {a} instead of {b}");
            }
        }
    }
}

#[test]
fn models_of_another_image_size_give_timms_logits() {
    for (file, name) in
        [("plain", "plain_larger"), ("plain", "plain_oblong"), ("plain", "plain_smaller"), ("deit3", "deit3_larger")]
    {
        let source = open(&format!("{file}.safetensors"));
        let mut config = recognised(&source).config;
        let (keys, ..) = golden(name);
        config.image_size = Some(serde_json::from_value::<ImageSize>(keys["image_size"].clone()).expect("a size"));
        let architecture = config.resolve().expect("a possible model");
        logits_are(&source, &architecture, &LoadOptions::default(), name);
        let (_, report) = load(&source, &architecture, &LoadOptions::default(), &Device::flex()).expect("it fits");
        assert_eq!(report.reshaped.len(), 1);
        assert!(report.to_string().contains("bicubic, antialiased, from a grid of 4 x 4"), "{report}");
    }
}

#[test]
fn the_grid_of_a_file_can_be_said() {
    let source = open("oblong.safetensors");
    assert!(recognise(&source, &Hints { heads: Some(2), ..Hints::default() }).is_err(), "2 x 3 patches are no square");
    let found = recognise(&source, &Hints { heads: Some(2), image: Some([32, 48]), ..Hints::default() }).expect("said");
    assert_eq!(found.grid, [2, 3]);
    let mut config = found.config;
    config.image_size = Some(ImageSize::HeightWidth([48, 32]));
    let architecture = config.resolve().expect("a possible model");
    let options = LoadOptions { grid: Some([2, 3]), ..LoadOptions::default() };
    let (_, report) = load(&source, &architecture, &options, &Device::flex()).expect("it fits");
    assert_eq!(report.reshaped[0].name, "pos_embed");
}

/// As the paper's fine-tuning does: softmax weights in a model whose layers attend otherwise.
#[test]
fn softmax_weights_load_into_linear_and_hydra_layers() {
    let source = open("deit3.safetensors");
    let mut config = recognised(&source).config;
    let softmax = config.resolve().expect("a possible model");
    config.attention = serde_json::from_value(serde_json::json!({
        "overrides": [{ "kind": "hydra", "layers": [1] }, { "kind": "linear", "kernel": "relu", "layers": [0] }]
    }))
    .expect("a plan");
    let architecture = config.resolve().expect("a possible model");
    let load = |architecture: &Architecture| {
        load(&source, architecture, &LoadOptions::default(), &Device::flex()).expect("the same tensors")
    };
    let ((other, report), (plain, _)) = (load(&architecture), load(&softmax));
    assert!(report.notes.iter().any(|note| note.contains("0 (linear/relu), 1 (hydra/cosine)")), "{report}");
    assert_eq!(export(&other), export(&plain));
    let (_, images, expected) = golden("deit3");
    let logits = values(other.forward(images, None));
    assert!(logits.iter().all(|value| value.is_finite()));
    assert!(logits.iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-2), "the attention differs");
}

#[test]
fn another_class_count_keeps_the_models_own_head() {
    let source = open("plain.safetensors");
    let config = ModelConfig { classes: Some(3), ..recognised(&source).config };
    let architecture = config.resolve().expect("a possible model");
    let fresh = architecture.init(&mut rng(4), &Device::flex());
    let before = export(&fresh);
    let options = LoadOptions { expect: vec!["head.*".into()], ..LoadOptions::default() };

    let error = load(&source, &architecture, &options, &Device::flex()).expect_err("nothing gives the head its values");
    assert!(error.to_string().contains("head.weight [3, 32] is missing"), "{error}");
    let error = load_into(fresh.clone(), &source, &architecture, &LoadOptions::default()).expect_err("not said");
    assert!(error.to_string().contains("expect `head.*`"), "{error}");

    let (model, report) = load_into(fresh, &source, &architecture, &options).expect("the head was expected");
    assert_eq!(report.missing, ["head.weight", "head.bias"]);
    for (after, before) in export(&model).into_iter().zip(before) {
        let kept = after.name.starts_with("head.") || after.values.iter().all(|value| *value == 0.0);
        assert_eq!(after == before, kept, "{}", after.name);
    }
}

#[test]
fn colour_weights_load_into_a_grey_model_as_their_sum() {
    let source = open("plain.safetensors");
    let config = ModelConfig { channels: 1, ..recognised(&source).config };
    let architecture = config.resolve().expect("a possible model");
    let (model, report) = load(&source, &architecture, &LoadOptions::default(), &Device::flex()).expect("channels are summed");
    assert_eq!(report.reshaped[0].how, "the sum over 3 channels");
    let grey = export(&model).into_iter().find(|tensor| tensor.name == "patch_embed.proj.weight").expect("it is there").values;
    let colour = source.read("patch_embed.proj.weight").expect("it is there");
    for (index, value) in grey.iter().enumerate() {
        let (filter, pixel) = (index / 64, index % 64);
        let sum: f32 = (0..3).map(|channel| colour[(filter * 3 + channel) * 64 + pixel]).sum();
        assert_eq!(*value, sum);
    }
}

/// Tensors in memory as a safetensors file.
fn write(path: &Path, tensors: &[NamedTensor]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, tensor.shape.clone(), bytes);
        (tensor.name.as_str(), view.expect("shape and values agree"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a writable file");
}

fn plain_tensors() -> (Architecture, Vec<NamedTensor>) {
    let source = open("plain.safetensors");
    let architecture = recognised(&source).config.resolve().expect("a possible model");
    let (model, _) = load(&source, &architecture, &LoadOptions::default(), &Device::flex()).expect("it fits");
    (architecture, export(&model))
}

#[test]
fn everything_that_does_not_fit_is_one_line_each() {
    let (architecture, mut tensors) = plain_tensors();
    tensors.retain(|tensor| tensor.name != "blocks.1.attn.proj.bias");
    for tensor in &mut tensors {
        match tensor.name.as_str() {
            "blocks.0.mlp.fc1.weight" => tensor.name = "blocks.0.mlp.fc_1.weight".into(),
            "head.weight" => {
                tensor.shape = vec![4, 32];
                tensor.values.truncate(4 * 32);
            }
            _ => {}
        }
    }
    tensors.push(NamedTensor { name: "head_extra.weight".into(), shape: vec![2], values: vec![1.0; 2] });
    let path = scratch("misfits").join("misfits.safetensors");
    write(&path, &tensors);
    let source = Source::open(&path, &OpenOptions::default()).expect("a sound file");
    let error = load(&source, &architecture, &LoadOptions::default(), &Device::flex()).expect_err("it does not fit");
    let LoadError::Fit(fit) = &error else { panic!("{error}") };
    assert_eq!(fit.problems.len(), 4, "{error}");
    assert_eq!(error.to_string().lines().count(), 5, "{error}");
    assert!(matches!(&fit.problems[0], Problem::Renamed { expected, found, .. }
        if expected == "blocks.0.mlp.fc1.weight" && found == "blocks.0.mlp.fc_1.weight"));
    assert!(matches!(&fit.problems[1], Problem::Missing { name, nearest, .. }
        if name == "blocks.1.attn.proj.bias" && nearest.iter().any(|name| name.contains("attn.proj"))));
    assert!(matches!(&fit.problems[2], Problem::Shape { name, found, expected, .. }
        if name == "head.weight" && found == &[4, 32] && expected == &[5, 32]));
    assert!(matches!(&fit.problems[3], Problem::Unused { name, nearest, .. }
        if name == "head_extra.weight" && nearest[0] == "head.weight"));

    // Named as expected, all of them load but what is missing, which a network at hand supplies.
    let expect = ["blocks.0.mlp.fc*", "blocks.1.attn.proj.bias", "head*"].map(str::to_owned).to_vec();
    let options = LoadOptions { expect, ..LoadOptions::default() };
    let model = architecture.init(&mut rng(1), &Device::flex());
    let (_, report) = load_into(model, &source, &architecture, &options).expect("all is expected");
    assert_eq!(report.missing, ["blocks.0.mlp.fc1.weight", "blocks.1.attn.proj.bias", "head.weight"]);
    assert_eq!(report.unused, ["blocks.0.mlp.fc_1.weight", "head_extra.weight"]);
}

#[test]
fn other_patches_and_prefixes_are_explained() {
    let source = open("plain.safetensors");
    let found = recognised(&source).config;
    let explain = |config: ModelConfig| {
        let architecture = config.resolve().expect("a possible model");
        load(&source, &architecture, &LoadOptions::default(), &Device::flex()).expect_err("it does not fit").to_string()
    };
    let text = explain(ModelConfig { patch_size: Some(16), ..found.clone() });
    assert!(text.contains("patches are not resampled: set patch_size = 8"), "{text}");
    let text = explain(ModelConfig { no_embed_class: Some(true), ..found.clone() });
    assert!(text.contains("17 places are 1 before a square grid, and the model has 0"), "{text}");
    let text = explain(ModelConfig { distilled: Some(true), ..found });
    assert!(text.contains("dist_token [1, 1, 32] is missing"), "{text}");
}

#[test]
fn damaged_files_are_refused() {
    let directory = scratch("damaged");
    let whole = std::fs::read(fixture("plain.safetensors")).expect("the fixture");
    for (name, bytes) in [
        ("empty.safetensors", &whole[..0]),
        ("short.safetensors", &whole[..whole.len() - 10]),
        ("header.safetensors", &whole[..100]),
        ("text.pth", &b"no weights at all"[..]),
    ] {
        let path = directory.join(name);
        std::fs::write(&path, bytes).expect("a writable file");
        let error = Source::open(&path, &OpenOptions::default()).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    }
    let zip = std::fs::read(fixture("plain_module.pth")).expect("the fixture");
    let path = directory.join("short.pth");
    std::fs::write(&path, &zip[..zip.len() / 2]).expect("a writable file");
    assert!(Source::open(&path, &OpenOptions::default()).is_err());
    let absent = Source::open(&directory.join("absent.pth"), &OpenOptions::default()).expect_err("no such file");
    assert!(absent.message.contains("cannot open"), "{absent}");
    let several = Source::open(&directory, &OpenOptions::default()).expect_err("several files");
    assert!(several.message.contains("several files of weights"), "{several}");

    let index = directory.join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map": {"a": "../elsewhere.safetensors"}}"#).expect("a writable file");
    let error = Source::open(&index, &OpenOptions::default()).expect_err("a path that leads elsewhere");
    assert!(error.message.contains("no file beside it"), "{error}");
    std::fs::remove_file(index).expect("it was written");
}

#[test]
fn conversion_there_and_back_is_byte_equal() {
    let directory = scratch("convert");
    for name in ["plain", "distilled"] {
        let source = open(&format!("{name}.safetensors"));
        let architecture = recognised(&source).config.resolve().expect("a possible model");
        let (timm, hf, back) = (
            directory.join(format!("{name}.timm.safetensors")),
            directory.join(format!("{name}.hf.safetensors")),
            directory.join(format!("{name}.back.safetensors")),
        );
        let options = LoadOptions::default();
        let write = |source: &Source, layout, path: &Path| {
            let export = Export::new(&architecture, layout).expect("a layout that holds it");
            convert(source, &architecture, &options, &export, path).unwrap_or_else(|error| panic!("{error}"));
        };
        write(&source, Layout::Timm, &timm);
        write(&source, Layout::HuggingFace, &hf);
        let there = Source::open(&hf, &OpenOptions::default()).expect("a sound file");
        write(&there, Layout::Timm, &back);
        assert_eq!(std::fs::read(&timm).expect("written"), std::fs::read(&back).expect("written"), "{name}");

        let found = recognise(&there, &Hints { heads: Some(2), ..Hints::default() }).expect("our own file");
        assert_eq!(found.layout, Layout::HuggingFace);
        assert!(found.notes.iter().any(|note| note.contains("layer_norm_eps")), "{:?}", found.notes);
        let (model, _) = load(&source, &architecture, &options, &Device::flex()).expect("it fits");
        let (again, _) = load(&there, &architecture, &options, &Device::flex()).expect("it fits");
        assert_eq!(export(&model), export(&again));
    }
}

#[test]
fn export_of_a_network_is_its_conversion() {
    let (architecture, tensors) = plain_tensors();
    let values = |name: &str| -> Result<Vec<f32>, String> {
        tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.values.clone()).ok_or_else(|| name.to_owned())
    };
    let export = Export::new(&architecture, Layout::HuggingFace).expect("a plain model");
    let theirs = export.collect(values).expect("all are there");
    let key = theirs.iter().find(|tensor| tensor.name == "vit.encoder.layer.1.attention.attention.key.weight").expect("a key");
    assert_eq!(key.shape, [32, 32]);
    assert_eq!(key.values, values("blocks.1.attn.qkv.weight").expect("it is there")[1024..2048]);
    let config = export.config.expect("Hugging Face's");
    assert_eq!(config["architectures"][0], "ViTForImageClassification");
    assert_eq!((&config["image_size"], &config["layer_norm_eps"]), (&serde_json::json!(32), &serde_json::json!(1e-6)));
    assert_eq!(config["id2label"].as_object().map(serde_json::Map::len), Some(5));
}

#[test]
fn what_python_cannot_hold_is_all_said() {
    let config: ModelConfig = toml::from_str(
        "preset = \"deit3_small_patch16_224\"\nregisters = 4\n[attention]\noverrides = [{ kind = \"hydra\", place = \"back\", count = 2 }]",
    )
    .expect("a readable config");
    let architecture = config.resolve().expect("a possible model");
    let error = Export::new(&architecture, Layout::HuggingFace).expect_err("Hugging Face's ViT is plain").to_string();
    for reason in ["there are registers", "no position embedding", "LayerScale", "layers 10 (hydra/cosine), 11 (hydra/cosine)"] {
        assert!(error.contains(reason), "{error}");
    }
    let export = Export::new(&architecture, Layout::Timm).expect("timm's names hold it");
    assert!(export.notes[0].contains("10 (hydra/cosine)"), "{:?}", export.notes);
}

#[test]
fn presets_that_fit_are_named_and_differences_told() {
    let config = ModelConfig { preset: Some(Preset::find("deit_tiny_patch16_224").expect("timm's")), ..ModelConfig::default() };
    let architecture = config.resolve().expect("a preset is possible");
    let tensors = export(&architecture.init(&mut rng(3), &Device::flex()));
    let path = scratch("fits").join("tiny.safetensors");
    write(&path, &tensors);
    let source = Source::open(&path, &OpenOptions::default()).expect("a sound file");
    let found = recognise(&source, &Hints::default()).expect("a known model");
    let names: Vec<String> = found.fits.iter().map(|preset| preset.name()).collect();
    assert_eq!(names, ["deit_tiny_patch16_224", "vit_tiny_patch16_224"]);
    assert_eq!((found.preset, found.config.heads), (None, Some(3)));
    assert_eq!(found.config.attention.kind, AttentionKind::Softmax);

    let preset = Some(Preset::find("deit_small_distilled_patch16_224").expect("timm's"));
    let found = recognise(&source, &Hints { preset, ..Hints::default() }).expect("the file is right");
    let notes = found.notes.join("\n");
    assert!(notes.contains("width is 192 in the file and 384 in deit_small_distilled_patch16_224"), "{notes}");
    assert!(notes.contains("distilled is false in the file"), "{notes}");
    assert_eq!(found.config.resolve().expect("possible").heads, 3);
}
