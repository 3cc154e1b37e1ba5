//! The whole network: against float64, its start, and the laws it keeps.
#![allow(missing_docs)]

mod common;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, FloatDType, Tensor, module};
use common::{assert_close, assert_finite, reference, rng, tensor, unit_values, values};
use manyheads_model::ops::Compute;
use manyheads_model::weights::timm;
use manyheads_model::{Architecture, ModelConfig, Ops, VisionTransformer, parameter_name};
use rand::TryRng;
use std::convert::Infallible;

/// All three attentions, heads of several features, a rectangular image, an MLP that is not 4 times the width.
const MIXED: &str = "
    image_size = [16, 24]
    patch_size = 8
    classes = 5
    width = 24
    depth = 4
    heads = 3
    mlp_ratio = 2.5
    [attention]
    overrides = [
        { kind = \"hydra\", layers = [3] },
        { kind = \"linear\", layers = [1] },
        { kind = \"hydra\", kernel = \"elu1\", layers = [2] },
    ]";

/// Every part beyond a plain network, in combinations, under the mixed plan.
const FAMILY: [&str; 5] = [
    "distilled = true\nlayer_scale = 0.1",
    "no_embed_class = true\nregisters = 2\nlayer_scale = 0.1\nnorm_eps = 1e-3",
    "pool = \"avg\"\nregisters = 1\npatch_bias = false",
    "pool = \"avg\"\nclass_token = false\nfc_norm = false\nqkv_bias = false",
    "distilled = true\nno_embed_class = true\nstochastic_depth_mode = \"constant\"",
];

fn family() -> impl Iterator<Item = Architecture> {
    FAMILY.iter().map(|text| architecture(&format!("{text}\n{MIXED}")))
}

fn architecture(text: &str) -> Architecture {
    toml::from_str::<ModelConfig>(text).expect("a readable config").resolve().expect("a possible architecture")
}

/// A model whose every parameter is random and of a size that matters, norms and biases included.
fn randomised(architecture: &Architecture, device: &Device) -> VisionTransformer {
    let mut rng = rng(10);
    let model = architecture.init(&mut rng, device);
    timm::import(model, &[], |name| {
        let (_, shape) = timm::expected(architecture).into_iter().find(|(expected, _)| expected == name)?;
        let centre = if name.contains("norm") && name.ends_with("weight") { 1.0 } else { 0.0 };
        let values =
            unit_values(&mut rng, shape.iter().product()).into_iter().map(|value| (centre + 0.2 * value) as f32).collect();
        Some(timm::NamedTensor { name: name.to_owned(), shape, values })
    })
    .expect("all tensors are there")
}

fn images(architecture: &Architecture, batch: usize) -> Vec<f64> {
    let [height, width] = architecture.image;
    unit_values(&mut rng(11), batch * architecture.channels * height * width)
}

fn image_shape(architecture: &Architecture, batch: usize) -> [usize; 4] {
    let [height, width] = architecture.image;
    [batch, architecture.channels, height, width]
}

#[test]
fn forward_equals_plain_loops_in_float64() {
    std::iter::once(architecture(MIXED)).chain(family()).for_each(|architecture| forward_equals_plain_loops(&architecture));
}

fn forward_equals_plain_loops(architecture: &Architecture) {
    let device = Device::flex();
    let model = randomised(architecture, &device);
    let batch = 3;
    let pixels = images(architecture, batch);
    let reference = reference::Vit::new(architecture, &timm::export(&model));
    let scales = vec![[1.0; 2]; architecture.depth];

    let mut logits = Vec::new();
    let mut tokens = Vec::new();
    for image in pixels.chunks(pixels.len() / batch) {
        logits.extend(reference.forward(image, &scales));
        tokens.extend(reference.tokens(image, &scales));
    }
    let input = tensor(&pixels, image_shape(architecture, batch), &device);
    assert_close(&values(model.tokens(input.clone())), &tokens, 1e-5, "tokens");
    assert_close(&values(model.forward(input, None)), &logits, 1e-5, "logits");
}

#[test]
fn grey_images_and_no_qkv_bias_equal_plain_loops_too() {
    let device = Device::flex();
    let text = format!("channels = 1\nqkv_bias = false\n{MIXED}");
    let architecture = architecture(&text);
    let model = randomised(&architecture, &device);
    assert!(model.blocks[0].attn.qkv.bias.is_none());
    let pixels = images(&architecture, 1);
    let reference = reference::Vit::new(&architecture, &timm::export(&model));
    let expected = reference.forward(&pixels, &vec![[1.0; 2]; architecture.depth]);
    let input = tensor(&pixels, image_shape(&architecture, 1), &device);
    assert_close(&values(model.forward(input, None)), &expected, 1e-5, "logits");
}

#[test]
fn stochastic_depth_scales_each_branch_of_each_sample() {
    let device = Device::flex();
    let architecture = architecture(MIXED);
    let model = randomised(&architecture, &device);
    let batch = 3;
    let depth = architecture.depth;
    let pixels = images(&architecture, batch);
    // Factors that differ in every place, 0 and 1 among them.
    let factors: Vec<f64> = (0..depth * 2 * batch).map(|index| f64::from(((index * 7) % 5) as f32) / 2.0).collect();
    let logits = model
        .forward(tensor(&pixels, image_shape(&architecture, batch), &device), Some(tensor(&factors, [depth, 2, batch], &device)));

    let reference = reference::Vit::new(&architecture, &timm::export(&model));
    let mut expected = Vec::new();
    for (sample, image) in pixels.chunks(pixels.len() / batch).enumerate() {
        let scales: Vec<[f64; 2]> =
            (0..depth).map(|block| [0, 1].map(|branch| factors[(block * 2 + branch) * batch + sample])).collect();
        expected.extend(reference.forward(image, &scales));
    }
    assert_close(&values(logits), &expected, 1e-5, "logits");
}

/// New parts draw in their place and leave the draws of the others as they were.
#[test]
fn new_parts_are_drawn_as_documented() {
    let draws = |text: &str| timm::export(&architecture(text).init(&mut SplitMix(0), &Device::flex()));
    let plain = draws(MIXED);
    let value = |tensors: &[timm::NamedTensor], name: &str| {
        tensors.iter().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("{name}")).values.clone()
    };
    let distilled = draws(&format!("distilled = true\nlayer_scale = 0.25\n{MIXED}"));
    assert_eq!(value(&distilled, "cls_token"), value(&plain, "cls_token"));
    // The distillation token takes the draws that begin the plain network's position embedding.
    assert_eq!(value(&distilled, "dist_token"), value(&plain, "pos_embed")[..24]);
    assert_eq!(value(&distilled, "blocks.3.ls2.gamma"), [0.25; 24]);
    assert_ne!(value(&distilled, "head_dist.weight"), value(&distilled, "head.weight"));

    let registers = draws(&format!("registers = 2\n{MIXED}"));
    for (register, position) in value(&registers, "reg_token").iter().zip(value(&plain, "pos_embed")) {
        assert!((register / 1e-6 - position / 0.02).abs() < 1e-4, "{register} and {position}");
    }
}

#[test]
fn factors_of_one_change_nothing() {
    let device = Device::flex();
    let architecture = architecture(MIXED);
    let model = randomised(&architecture, &device);
    let input = tensor(&images(&architecture, 2), image_shape(&architecture, 2), &device);
    let ones = Tensor::ones([architecture.depth, 2, 2], &device);
    assert_eq!(values(model.forward(input.clone(), Some(ones))), values(model.forward(input, None)));
}

#[test]
#[should_panic(expected = "[depth, 2, batch]")]
fn factors_of_another_shape_are_refused() {
    let device = Device::flex();
    let architecture = architecture(MIXED);
    let model = architecture.init(&mut rng(0), &device);
    let input = tensor(&images(&architecture, 2), image_shape(&architecture, 2), &device);
    model.forward(input, Some(Tensor::ones([4, 2, 1], &device)));
}

#[test]
#[should_panic(expected = "do not fit a patch embedding of 3 channels and patch 8")]
fn images_of_another_shape_are_refused() {
    let device = Device::flex();
    let model = architecture(MIXED).init(&mut rng(0), &device);
    model.forward(Tensor::zeros([1, 1, 16, 24], &device), None);
}

#[test]
fn a_sample_does_not_see_its_batch() {
    let device = Device::flex();
    let architecture = architecture(MIXED);
    let model = randomised(&architecture, &device);
    let batch = 5;
    let pixels = images(&architecture, batch);
    let together = values(model.forward(tensor(&pixels, image_shape(&architecture, batch), &device), None));
    let alone: Vec<f64> = pixels
        .chunks(pixels.len() / batch)
        .flat_map(|image| values(model.forward(tensor(image, image_shape(&architecture, 1), &device), None)))
        .collect();
    // Products of more rows are summed in other blocks.
    assert_close(&together, &alone, 5e-6, "logits");
}

#[test]
fn the_patch_embedding_is_a_convolution() {
    let device = Device::flex();
    let architecture = architecture(MIXED);
    let model = randomised(&architecture, &device);
    let input: Tensor<4> = tensor(&images(&architecture, 2), image_shape(&architecture, 2), &device);
    let proj = &model.patch_embed.proj;
    let convolved = module::conv2d(
        input.clone(),
        proj.weight.val(),
        proj.bias.as_ref().map(|bias| bias.val()),
        ConvOptions::new([8, 8], [0, 0], [1, 1], 1),
    );
    let [batch, width, rows, columns] = convolved.dims();
    let expected = convolved.reshape([batch, width, rows * columns]).swap_dims(1, 2);
    let actual = model.patch_embed.forward(input.clone(), Compute::of(&input, Ops::Fused, 1e-6));
    assert_eq!(actual.dims(), [2, 6, 24]);
    assert_close(&values(actual), &values(expected), 1e-5, "patches");
}

#[test]
fn the_start_is_a_function_of_generator_and_shapes() {
    let device = Device::flex();
    let architecture = architecture(MIXED);
    let first = timm::export(&architecture.init(&mut rng(42), &device));
    assert_eq!(first, timm::export(&architecture.init(&mut rng(42), &device.clone().autodiff())));
    assert_ne!(first, timm::export(&architecture.init(&mut rng(43), &device)));
}

/// SplitMix64 of 0, 1, 2 …: a stream that a few lines of Python reproduce.
struct SplitMix(u64);

impl TryRng for SplitMix {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        unimplemented!("a value takes one draw of 64 bits")
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Ok(z ^ (z >> 31))
    }

    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Infallible> {
        unimplemented!("a value takes one draw of 64 bits")
    }
}

/// Order, layout and distribution of the draws. Expected values are Python's, from the same stream:
/// `0.02 * statistics.NormalDist().inv_cdf(u)` and `(2 * u - 1) / sqrt(192)` with `u = ((bits >> 12) + 0.5) / 2**52`. A change here
/// changes every seeded run.
#[test]
fn the_start_is_drawn_in_the_documented_order() {
    let tensors = timm::export(&architecture(MIXED).init(&mut SplitMix(0), &Device::flex()));
    for (name, index, expected) in [
        ("cls_token", 0, 0.023_834_026_f32),
        ("pos_embed", 167, -0.016_896_943),
        ("patch_embed.proj.weight", 5, -0.036_304_414),
        ("patch_embed.proj.bias", 23, -0.031_005_355),
        ("blocks.0.attn.qkv.weight", 1, 0.026_507_426),
        ("blocks.3.mlp.fc2.weight", 61, -0.006_078_354),
        ("head.weight", 118, -0.020_823_328),
    ] {
        let tensor = tensors.iter().find(|tensor| tensor.name == name);
        let value = tensor.unwrap_or_else(|| panic!("{name}")).values[index];
        assert_eq!(value, expected, "{name}[{index}]");
    }
}

#[test]
fn the_start_is_deits() {
    let architecture = architecture("preset = \"tiny\"\ndepth = 1");
    let tensors = timm::export(&architecture.init(&mut rng(1), &Device::flex()));
    for tensor in tensors {
        let count = tensor.values.len() as f64;
        let mean = tensor.values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
        let square = tensor.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / count;
        let deviation = (square - mean * mean).max(0.0).sqrt();
        let largest = tensor.values.iter().fold(0.0f32, |max, v| max.max(v.abs()));
        let name = tensor.name.as_str();
        if name.starts_with("patch_embed") {
            let limit = 1.0 / 768f64.sqrt();
            assert!(f64::from(largest) <= limit && f64::from(largest) > 0.95 * limit, "{name}");
            assert!((deviation / (limit / 3f64.sqrt()) - 1.0).abs() < 0.1, "{name}");
        } else if name.contains("norm") && name.ends_with("weight") {
            assert!(tensor.values.iter().all(|v| *v == 1.0), "{name}");
        } else if name.ends_with("bias") {
            assert!(tensor.values.iter().all(|v| *v == 0.0), "{name}");
        } else {
            // Five standard errors of a sample's deviation.
            let tolerance = 5.0 * 0.02 / (2.0 * count).sqrt();
            assert!((deviation - 0.02).abs() < tolerance, "{name}: {deviation}");
            assert!(mean.abs() < 5.0 * 0.02 / count.sqrt(), "{name}: {mean}");
        }
    }
}

/// Names, ids and gradient settings in model order.
#[derive(Default)]
struct Parameters {
    path: Vec<String>,
    found: Vec<(String, u64, bool)>,
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((parameter_name(&self.path), param.id.val(), param.val().is_require_grad()));
    }
}

fn parameters(model: &VisionTransformer) -> Vec<(String, u64, bool)> {
    let mut parameters = Parameters::default();
    model.visit(&mut parameters);
    parameters.found
}

#[test]
fn parameters_have_timms_names_and_lasting_ids() {
    let device = Device::flex();
    let architecture = architecture(MIXED);
    let found = parameters(&architecture.init(&mut rng(1), &device));
    let names: Vec<&String> = found.iter().map(|(name, ..)| name).collect();
    let expected = timm::expected(&architecture);
    assert_eq!(names, expected.iter().map(|(name, _)| name).collect::<Vec<_>>());

    let again = parameters(&architecture.init(&mut rng(2), &device));
    assert_eq!(found, again);
    let mut ids: Vec<u64> = found.iter().map(|(_, id, _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), found.len());
}

#[test]
fn every_parameter_gets_a_gradient_on_an_autodiff_device() {
    std::iter::once(architecture(MIXED)).chain(family()).for_each(|architecture| every_parameter_gets_a_gradient(&architecture));
}

fn every_parameter_gets_a_gradient(architecture: &Architecture) {
    let device = Device::flex().autodiff();
    let model = randomised(architecture, &device);
    assert!(parameters(&model).iter().all(|(_, _, tracked)| *tracked));

    let input = tensor(&images(architecture, 2), image_shape(architecture, 2), &device);
    let scales = Tensor::ones([architecture.depth, 2, 2], &device) * 1.5;
    let logits = model.forward(input, Some(scales));
    let weighting = tensor(&unit_values(&mut rng(3), 10), [2, 5], &device);
    let gradients = (logits * weighting).sum().backward();

    struct Check<'a> {
        gradients: &'a burn::tensor::Gradients,
        path: Vec<String>,
    }
    impl ModuleVisitor for Check<'_> {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let name = parameter_name(&self.path);
            let gradient = param.val().grad(self.gradients);
            let gradient = values(gradient.unwrap_or_else(|| panic!("{name} has no gradient")));
            assert_finite(&gradient, &name);
            assert!(gradient.iter().any(|value| *value != 0.0), "{name}");
        }
    }
    model.visit(&mut Check { gradients: &gradients, path: Vec::new() });
}

/// The derivative of the loss along the gradient, in float64 by central differences, is the gradient's squared norm.
#[test]
fn parameter_gradients_equal_central_differences_in_float64() {
    std::iter::once(architecture(MIXED))
        .chain(family())
        .for_each(|architecture| gradients_equal_central_differences(&architecture));
}

fn gradients_equal_central_differences(architecture: &Architecture) {
    let device = Device::flex().autodiff();
    let model = randomised(architecture, &device);
    let pixels = images(architecture, 1);
    let weighting = unit_values(&mut rng(3), 5);
    let scales = vec![[1.5, 0.5]; architecture.depth];
    let flat: Vec<f64> = scales.iter().flatten().copied().collect();

    let logits = model.forward(
        tensor(&pixels, image_shape(architecture, 1), &device),
        Some(tensor(&flat, [architecture.depth, 2, 1], &device)),
    );
    let gradients = (logits * tensor(&weighting, [1, 5], &device)).sum().backward();

    struct Collect<'a> {
        gradients: &'a burn::tensor::Gradients,
        found: Vec<Vec<f64>>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(self.gradients).expect("a gradient");
            let gradient = if D == 2 { gradient.transpose() } else { gradient };
            self.found.push(values(gradient));
        }
    }
    let mut collect = Collect { gradients: &gradients, found: Vec::new() };
    model.visit(&mut collect);

    let tensors = timm::export(&model);
    for (which, gradient) in collect.found.iter().enumerate() {
        let name = &tensors[which].name;
        let largest = (0..gradient.len())
            .max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs()))
            .expect("parameters are not empty");
        for index in [largest, gradient.len() / 2] {
            let loss = |shift: f64| -> f64 {
                let mut reference = reference::Vit::new(architecture, &tensors);
                reference.shift(name, index, shift);
                let logits = reference.forward(&pixels, &scales);
                logits.iter().zip(&weighting).map(|(a, b)| a * b).sum()
            };
            let step = 1e-5;
            let expected = (loss(step) - loss(-step)) / (2.0 * step);
            let error = (gradient[index] - expected).abs() / gradient[largest].abs().max(1e-3);
            assert!(error < 2e-5, "{name}[{index}]: {} instead of {expected}", gradient[index]);
        }
    }
}

#[test]
fn validation_and_training_keep_the_numbers() {
    let device = Device::flex().autodiff();
    let architecture = architecture(MIXED);
    let model = architecture.init(&mut rng(1), &device);
    let valid = model.valid();
    assert_eq!(timm::export(&model), timm::export(&valid));
    let again = valid.train();
    assert!(parameters(&again).iter().all(|(_, _, tracked)| *tracked));

    let plain = architecture.init(&mut rng(1), &Device::flex());
    assert!(parameters(&plain).iter().all(|(_, _, tracked)| !*tracked));
    assert!(parameters(&plain.train()).iter().all(|(_, _, tracked)| *tracked));
}

#[test]
fn bf16_images_run_with_f32_weights() {
    let device = Device::flex().autodiff();
    let architecture = architecture(MIXED);
    let model = randomised(&architecture, &device);
    let input = tensor(&images(&architecture, 2), image_shape(&architecture, 2), &device);
    let exact = values(model.forward(input.clone(), None));
    let logits = model.forward(input.cast(FloatDType::BF16), None);
    assert_eq!(FloatDType::from(logits.dtype()), FloatDType::F32);
    let scale = exact.iter().fold(0.0, |max: f64, v| max.max(v.abs()));
    for (half, full) in values(logits.clone()).iter().zip(&exact) {
        assert!((half - full).abs() < 0.03 * scale, "{half} instead of {full}");
    }
    let gradients = logits.sum().backward();
    let gradient = model.blocks[0].attn.qkv.weight.val().grad(&gradients);
    let gradient = gradient.expect("a gradient");
    assert_eq!(FloatDType::from(gradient.dtype()), FloatDType::F32);
    assert_finite(&values(gradient), "gradient");
}
