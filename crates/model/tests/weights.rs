//! Weights in timm's layout: there and back, against timm itself, and what does not fit.
#![allow(missing_docs)]

mod common;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use common::{assert_close, rng, tensor, values};
use manyheads_model::weights::WeightsError;
use manyheads_model::weights::timm::{NamedTensor, expected, export, import};
use manyheads_model::{Architecture, ModelConfig};
use safetensors::{Dtype, SafeTensors};

fn architecture(text: &str) -> Architecture {
    toml::from_str::<ModelConfig>(text).expect("a readable config").resolve().expect("a possible architecture")
}

fn small() -> Architecture {
    architecture("image_size = 16\npatch_size = 8\nclasses = 3\nwidth = 8\ndepth = 2\nheads = 2")
}

fn take(tensors: &[NamedTensor]) -> impl FnMut(&str) -> Option<NamedTensor> {
    |name| tensors.iter().find(|tensor| tensor.name == name).cloned()
}

fn names(tensors: &[NamedTensor]) -> Vec<String> {
    tensors.iter().map(|tensor| tensor.name.clone()).collect()
}

#[test]
fn import_of_export_is_bit_equal() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        let tensors = export(&small().init(&mut rng(1), &device));
        let other = small().init(&mut rng(2), &device);
        let loaded = import(other, &names(&tensors), take(&tensors)).expect("it fits");
        assert_eq!(export(&loaded), tensors);
        assert_eq!(loaded.head.weight.val().is_require_grad(), device.is_autodiff());
    }
}

#[test]
fn import_keeps_ids_and_frozen_parameters() {
    let device = Device::flex().autodiff();
    let mut model = small().init(&mut rng(1), &device);
    let tensors = export(&model);
    let id = model.head.weight.id;
    model.head = model.head.no_grad();
    let loaded = import(model, &[], take(&tensors)).expect("it fits");
    assert_eq!(loaded.head.weight.id, id);
    assert!(!loaded.head.weight.val().is_require_grad());
    assert!(loaded.norm.expect("a norm").gamma.val().is_require_grad());
}

#[test]
fn expected_is_what_export_gives() {
    for text in [
        "image_size = 16\npatch_size = 8\nclasses = 3\nwidth = 8\ndepth = 2\nheads = 2",
        "image_size = [16, 8]\npatch_size = 4\nchannels = 1\nclasses = 3\nwidth = 6\ndepth = 1\nheads = 2\nqkv_bias = false\nmlp_ratio = 3.0",
    ] {
        let architecture = architecture(text);
        let exported: Vec<(String, Vec<usize>)> = export(&architecture.init(&mut rng(1), &Device::flex()))
            .into_iter()
            .map(|tensor| {
                assert_eq!(tensor.values.len(), tensor.shape.iter().product::<usize>());
                (tensor.name, tensor.shape)
            })
            .collect();
        assert_eq!(exported, expected(&architecture));
    }
}

#[test]
fn linear_weights_are_out_by_in() {
    let model = small().init(&mut rng(1), &Device::flex());
    let tensors = export(&model);
    let fc1 = take(&tensors)("blocks.0.mlp.fc1.weight").expect("it is there");
    assert_eq!(fc1.shape, [32, 8]);
    let burn = values(model.blocks[0].mlp.fc1.weight.val());
    for out in 0..32 {
        for into in 0..8 {
            assert_eq!(f64::from(fc1.values[out * 8 + into]), burn[into * 32 + out]);
        }
    }
}

/// scripts/reference/model_fixtures.py made the file.
#[test]
fn timms_weights_give_timms_logits() {
    let bytes = include_bytes!("fixtures/timm_vit.safetensors");
    let file = SafeTensors::deserialize(bytes).expect("a sound fixture");
    let read = |name: &str| {
        let view = file.tensor(name).ok()?;
        assert_eq!(view.dtype(), Dtype::F32);
        let values = view.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
        Some(NamedTensor { name: name.to_owned(), shape: view.shape().to_vec(), values: values.collect() })
    };
    let available: Vec<String> = file
        .names()
        .into_iter()
        .filter(|name| !name.starts_with("input.") && !name.starts_with("output."))
        .map(str::to_owned)
        .collect();

    let architecture =
        architecture("image_size = 32\npatch_size = 8\nclasses = 5\nwidth = 32\ndepth = 3\nheads = 2\nmlp_ratio = 2.0");
    let device = Device::flex();
    let model = architecture.init(&mut rng(1), &device);
    let model = import(model, &available, read).expect("timm's names are ours");

    let floats = |name: &str| -> Vec<f64> {
        let tensor = read(name).expect(name);
        tensor.values.into_iter().map(f64::from).collect()
    };
    let images: Tensor<4> = tensor(&floats("input.images"), [3, 3, 32, 32], &device);
    assert_close(&values(model.tokens(images.clone())), &floats("output.tokens"), 1e-5, "tokens");
    assert_close(&values(model.forward(images, None)), &floats("output.logits"), 1e-5, "logits");
}

fn refuse(available: &[String], fetch: impl FnMut(&str) -> Option<NamedTensor>) -> WeightsError {
    let model = small().init(&mut rng(1), &Device::flex());
    import(model, available, fetch).expect_err("it does not fit")
}

#[test]
fn missing_tensors_are_all_listed_with_the_nearest_name() {
    let mut tensors = export(&small().init(&mut rng(1), &Device::flex()));
    for tensor in &mut tensors {
        match tensor.name.as_str() {
            "head.weight" => tensor.name = "heads.weight".into(),
            "blocks.1.mlp.fc2.bias" => tensor.name = "blocks.1.mlp.fc_2.bias".into(),
            _ => {}
        }
    }
    let error = refuse(&names(&tensors), take(&tensors));
    let missing: Vec<(&str, Option<&str>)> =
        error.missing.iter().map(|tensor| (tensor.name.as_str(), tensor.nearest.as_deref())).collect();
    assert_eq!(missing, [("blocks.1.mlp.fc2.bias", Some("blocks.1.mlp.fc_2.bias")), ("head.weight", Some("heads.weight")),]);
    assert_eq!(error.missing[1].shape, [3, 8]);
    assert_eq!(error.unexpected, ["blocks.1.mlp.fc_2.bias", "heads.weight"]);
    let text = error.to_string();
    assert!(text.contains("2 missing"), "{text}");
    assert!(text.contains("missing head.weight [3, 8] (did you mean heads.weight?)"), "{text}");
}

#[test]
fn misshapen_tensors_are_all_listed_with_both_shapes() {
    let tensors = export(
        &architecture("image_size = 24\npatch_size = 8\nclasses = 7\nwidth = 8\ndepth = 2\nheads = 2")
            .init(&mut rng(1), &Device::flex()),
    );
    let error = refuse(&names(&tensors), take(&tensors));
    let found: Vec<&str> = error.misshapen.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(found, ["pos_embed", "head.weight", "head.bias"]);
    assert!(error.missing.is_empty() && error.unexpected.is_empty());
    let text = error.to_string();
    assert!(text.contains("pos_embed has shape [1, 10, 8], the model needs [1, 5, 8]"), "{text}");
    assert!(text.contains("set by classes and width"), "{text}");
}

/// A square weight in the wrong layout cannot be told by its shape; others can.
#[test]
fn weights_that_are_in_by_out_are_refused() {
    let mut tensors = export(&small().init(&mut rng(1), &Device::flex()));
    for tensor in &mut tensors {
        if tensor.name == "head.weight" {
            tensor.shape.reverse();
        }
    }
    let error = refuse(&[], take(&tensors));
    assert_eq!(error.misshapen.len(), 1);
    assert_eq!(error.misshapen[0].found, [8, 3]);
}

#[test]
fn tensors_of_too_few_values_are_refused() {
    let mut tensors = export(&small().init(&mut rng(1), &Device::flex()));
    tensors[0].values.pop();
    let error = refuse(&[], take(&tensors));
    assert_eq!(error.malformed.len(), 1);
    assert!(error.to_string().contains("cls_token says shape [1, 1, 8] and holds 7 values"), "{error}");
}

#[test]
fn tensors_without_a_place_are_refused() {
    let tensors = export(&small().init(&mut rng(1), &Device::flex()));
    let mut available = names(&tensors);
    available.push("dist_token".into());
    let error = refuse(&available, take(&tensors));
    assert_eq!(error.unexpected, ["dist_token"]);
    assert!(error.to_string().contains("unexpected dist_token"), "{error}");
}
