//! Every attention against its formula in float64, values and gradients, and at the edges of f32.
#![allow(missing_docs)]

mod common;

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};
use common::{assert_close, assert_finite, reference, rng, tensor, unit_values, values};
use manyheads_model::attention::{hydra, linear, softmax};
use manyheads_model::ops::Compute;
use manyheads_model::{Architecture, AttentionConfig, AttentionKind, Kernel, LayerAttention, ModelConfig, Ops};

const WIDTH: usize = 192;
const HEADS: [usize; 4] = [1, 3, 12, 192];
const TOKENS: usize = 17;

fn layers() -> Vec<LayerAttention> {
    let softmax = LayerAttention { kind: AttentionKind::Softmax, kernel: None };
    let with_kernel = |kind| Kernel::ALL.map(|kernel| LayerAttention { kind, kernel: Some(kernel) });
    [softmax].into_iter().chain(with_kernel(AttentionKind::Linear)).chain(with_kernel(AttentionKind::Hydra)).collect()
}

/// Hydra attention has no heads, so one case is enough.
fn cases() -> impl Iterator<Item = (LayerAttention, usize)> {
    layers().into_iter().flat_map(|layer| {
        HEADS.into_iter().filter(move |heads| layer.kind != AttentionKind::Hydra || *heads == 1).map(move |heads| (layer, heads))
    })
}

fn attend(layer: LayerAttention, [q, k, v]: [Tensor<3>; 3], heads: usize) -> Tensor<3> {
    match (layer.kind, layer.kernel) {
        (AttentionKind::Linear, Some(kernel)) => linear::attention(q, k, v, heads, kernel),
        (AttentionKind::Hydra, Some(kernel)) => hydra::attention(q, k, v, kernel),
        _ => softmax::attention(q, k, v, heads),
    }
}

#[test]
fn values_equal_plain_loops_in_float64() {
    let device = Device::flex();
    let batch = 2;
    let mut rng = rng(1);
    let inputs = [(); 3].map(|()| unit_values(&mut rng, batch * TOKENS * WIDTH));
    for (layer, heads) in cases() {
        let tensors = inputs.each_ref().map(|input| tensor(input, [batch, TOKENS, WIDTH], &device));
        let actual = values(attend(layer, tensors, heads));

        let mut expected = Vec::new();
        for image in 0..batch {
            let [q, k, v] = inputs.each_ref().map(|input| &input[image * TOKENS * WIDTH..(image + 1) * TOKENS * WIDTH]);
            expected.extend(reference::attention(layer, q, k, v, WIDTH, heads));
        }
        // 1e-5 absolute, or relative above 1. Two kinds of output are measured against their largest value instead: those that stay
        // below 1, for which an absolute bound would say little; and sums of thousands of products without a bound, up to 3000 in
        // size, whose rounding in f32 shows in the small values they cancel to (up to 2.7e-5 there, 1e-6 of the largest).
        let largest = expected.iter().fold(0.0, |max: f64, v| max.max(v.abs()));
        let unbounded = heads <= 3
            && matches!(
                (layer.kind, layer.kernel),
                (AttentionKind::Linear, Some(Kernel::Tanh | Kernel::Elu1 | Kernel::Identity))
            );
        let unit = if unbounded || largest < 1.0 { largest } else { 1.0 };
        let scaled = |values: &[f64]| values.iter().map(|v| v / unit).collect::<Vec<_>>();
        assert_close(&scaled(&actual), &scaled(&expected), 1e-5, &format!("{layer} with {heads} heads"));
    }
}

#[test]
fn gradients_equal_central_differences_in_float64() {
    let device = Device::flex().autodiff();
    let tokens = 5;
    let mut rng = rng(2);
    let inputs = [(); 3].map(|()| unit_values(&mut rng, tokens * WIDTH));
    // The scalar to differentiate: a fixed weighting of the outputs.
    let weights = unit_values(&mut rng, tokens * WIDTH);
    for (layer, heads) in cases() {
        let tensors = inputs.each_ref().map(|input| tensor(input, [1, tokens, WIDTH], &device).require_grad());
        let output = attend(layer, tensors.clone(), heads);
        let loss = (output * tensor(&weights, [1, tokens, WIDTH], &device)).sum();
        let gradients = loss.backward();

        let loss = |inputs: &[Vec<f64>; 3]| -> f64 {
            let [q, k, v] = inputs;
            reference::attention(layer, q, k, v, WIDTH, heads).iter().zip(&weights).map(|(output, weight)| output * weight).sum()
        };
        for (which, name) in ["q", "k", "v"].into_iter().enumerate() {
            let gradient = values(tensors[which].grad(&gradients).expect("a gradient"));
            // Every 31st coordinate meets every token and, over the heads, every position within a head.
            let coordinates: Vec<usize> = (0..tokens * WIDTH).step_by(31).collect();
            let step = 1e-5;
            let expected: Vec<f64> = coordinates
                .iter()
                .map(|&coordinate| {
                    let mut shifted = inputs.clone();
                    shifted[which][coordinate] += step;
                    let above = loss(&shifted);
                    shifted[which][coordinate] -= 2.0 * step;
                    (above - loss(&shifted)) / (2.0 * step)
                })
                .collect();
            let actual: Vec<f64> = coordinates.iter().map(|&c| gradient[c]).collect();
            let largest = expected.iter().fold(1e-3, |max: f64, v| max.max(v.abs()));
            let scaled = |values: &[f64]| values.iter().map(|v| v / largest).collect::<Vec<_>>();
            assert_close(&scaled(&actual), &scaled(&expected), 2e-5, &format!("d loss / d {name} of {layer} with {heads} heads"));
        }
    }
}

#[test]
fn zero_and_huge_tokens_give_finite_values_and_gradients() {
    let device = Device::flex().autodiff();
    let tokens = 5;
    let size = tokens * WIDTH;
    let mut rng = rng(3);
    let unit = unit_values(&mut rng, size);
    let huge: Vec<f64> = unit.iter().map(|v| 1e4 * v.signum()).collect();
    let one_zero: Vec<f64> = unit.iter().enumerate().map(|(index, v)| if index < WIDTH { 0.0 } else { *v }).collect();
    for (layer, heads) in cases() {
        for (name, input) in [
            ("zero", &vec![0.0; size]),
            ("one token zero", &one_zero),
            ("1e4", &vec![1e4; size]),
            ("-1e4", &vec![-1e4; size]),
            ("±1e4", &huge),
        ] {
            let what = format!("{name} tokens through {layer} with {heads} heads");
            let tensors = [(); 3].map(|()| tensor(input, [1, tokens, WIDTH], &device).require_grad());
            let output = attend(layer, tensors.clone(), heads);
            assert_finite(&values(output.clone()), &what);
            let gradients = output.sum().backward();
            for input in tensors {
                let gradient = values(input.grad(&gradients).expect("a gradient"));
                assert_finite(&gradient, &format!("gradient of {what}"));
            }
        }
    }
}

fn one_layer(layer: LayerAttention, heads: usize) -> Architecture {
    ModelConfig {
        image_size: Some(manyheads_model::ImageSize::Square(32)),
        classes: Some(2),
        width: Some(WIDTH),
        depth: Some(1),
        heads: Some(heads),
        attention: AttentionConfig { kind: layer.kind, kernel: layer.kernel, overrides: Vec::new() },
        ..ModelConfig::default()
    }
    .resolve()
    .expect("a possible architecture")
}

/// Values of all features, types of the products, and forms of the operations.
fn sizes() -> impl Iterator<Item = (f64, FloatDType, Ops)> {
    let floats = [(FloatDType::F32, Ops::Fused), (FloatDType::BF16, Ops::Fused), (FloatDType::BF16, Ops::Plain)];
    [0.0, 1e4, -1e4].into_iter().flat_map(move |size| floats.map(|(float, ops)| (size, float, ops)))
}

#[test]
fn zero_and_huge_tokens_pass_whole_attention_modules() {
    let device = Device::flex().autodiff();
    let tokens = 5;
    for (layer, heads) in cases() {
        let model = one_layer(layer, heads).init(&mut rng(4), &device);
        let attention = &model.blocks[0].attn;
        for (size, float, ops) in sizes() {
            let what = format!("tokens of {size} through the module of {layer} with {heads} heads, {float:?}, {ops:?}");
            let input = tensor(&vec![size; tokens * WIDTH], [1, tokens, WIDTH], &device).require_grad();
            let compute = Compute { float, ..Compute::of(&input, ops, 1e-6) };
            let output = attention.forward(input.clone(), compute);
            assert_finite(&values(output.clone()), &what);
            let gradients = output.sum().backward();
            let gradient = values(input.grad(&gradients).expect("a gradient"));
            assert_finite(&gradient, &format!("gradient of {what}"));
            for parameter in [&attention.qkv.weight, &attention.proj.weight] {
                let gradient = values(parameter.val().grad(&gradients).expect("a gradient"));
                assert_finite(&gradient, &format!("weights' gradient of {what}"));
            }
        }
    }
}

#[test]
fn zero_tokens_give_zero_under_cosine() {
    let device = Device::flex();
    let zeros = [(); 3].map(|()| Tensor::<3>::zeros([1, 4, WIDTH], &device));
    let output = hydra::attention(zeros[0].clone(), zeros[1].clone(), zeros[2].clone(), Kernel::Cosine);
    assert!(values(output).iter().all(|value| *value == 0.0));
}

#[test]
fn linear_attention_with_a_head_per_feature_is_hydra() {
    let device = Device::flex();
    let mut rng = rng(5);
    for kernel in Kernel::ALL {
        let [q, k, v] = [(); 3].map(|()| tensor(&unit_values(&mut rng, TOKENS * WIDTH), [1, TOKENS, WIDTH], &device));
        let many = linear::attention(q.clone(), k.clone(), v.clone(), WIDTH, kernel);
        let hydra = hydra::attention(q, k, v, kernel);
        assert_eq!(values(many), values(hydra), "{}", kernel.name());
    }
}

#[test]
fn every_attention_commutes_with_permuting_tokens() {
    let device = Device::flex();
    let mut rng = rng(6);
    let inputs = [(); 3].map(|()| tensor(&unit_values(&mut rng, 6 * WIDTH), [1, 6, WIDTH], &device));
    for (layer, heads) in cases() {
        let flipped = inputs.each_ref().map(|input| input.clone().flip([1]));
        let plain = attend(layer, inputs.clone(), heads).flip([1]);
        let scale = values(plain.clone()).iter().fold(1.0, |max: f64, v| max.max(v.abs()));
        assert_close(
            &values(attend(layer, flipped, heads) / scale),
            &values(plain / scale),
            1e-6,
            &format!("{layer} with {heads} heads"),
        );
    }
}

#[test]
fn bf16_inputs_sum_in_f32() {
    let device = Device::flex();
    let mut rng = rng(7);
    // 1024 equal terms: a running sum in bf16 would stop growing at 256 of them.
    let tokens = 1024;
    let ones = Tensor::<3>::ones([1, tokens, 8], &device).cast(FloatDType::BF16);
    let output = hydra::attention(ones.clone(), ones.clone(), ones, Kernel::Identity);
    assert!(values(output).iter().all(|value| *value == 1024.0));

    for (layer, heads) in cases() {
        let inputs = [(); 3].map(|()| tensor(&unit_values(&mut rng, TOKENS * WIDTH), [1, TOKENS, WIDTH], &device));
        let halves = inputs.each_ref().map(|input| input.clone().cast(FloatDType::BF16));
        let output = attend(layer, halves, heads);
        assert_eq!(FloatDType::from(output.dtype()), FloatDType::BF16);
        let expected = values(attend(layer, inputs, heads));
        let scale = expected.iter().fold(1.0, |max: f64, v| max.max(v.abs()));
        let error = values(output).iter().zip(&expected).fold(0.0, |max: f64, (a, b)| max.max((a - b).abs() / scale));
        assert!(error < 0.03, "{layer} with {heads} heads: off by {error}");
    }
}

#[test]
fn modules_know_their_layer() {
    for layer in layers() {
        let model = one_layer(layer, 3).init(&mut rng(8), &Device::flex());
        assert_eq!(model.blocks[0].attn.layer(), layer);
        assert_eq!(model.blocks[0].attn.num_params(), 4 * WIDTH * WIDTH + 4 * WIDTH);
    }
}
