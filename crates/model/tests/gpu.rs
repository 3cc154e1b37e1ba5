//! The fused operations on a GPU against their plain forms on the CPU: on the first CUDA device where there is one and the tests are built for
//! it, otherwise on wgpu's. A machine without any adapter fails here: `mesa-vulkan-drivers` brings a software one.
#![cfg(feature = "wgpu")]

mod common;

use burn::tensor::{Device, DeviceKind, FloatDType, Tensor, TensorData};
#[cfg(feature = "cuda")]
use common::branch::Branch;
use common::cases;
use common::fused::{Flat, close, dense, input, run, run_on, shaped, values};
use common::network;
use cubecl::config::autotune::{AutotuneConfig, AutotuneLevel};
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
#[cfg(feature = "cuda")]
use manyheads_model::ops::Loss;
use manyheads_model::ops::{self, AdamW, ByteImages};
use manyheads_model::{Kernel, Ops};

/// The fused form on the GPU has the values and gradients of the plain form on the CPU.
#[track_caller]
fn agree(fused: Flat<'_>, plain: Flat<'_>, inputs: &[Vec<f32>], what: &str) {
    equals(fused, &run(plain, inputs), inputs, what);
}

/// The fused form on the GPU has these values and gradients, and gives the same bits again.
#[track_caller]
fn equals(fused: Flat<'_>, expected: &[Vec<f32>], inputs: &[Vec<f32>], what: &str) {
    let got = run_on(&gpu(), fused, inputs);
    for (part, (got, expected)) in got.iter().zip(expected).enumerate() {
        let part = if part == 0 { "the value".into() } else { format!("the gradient of input {part}") };
        close(got, expected, 1e-5, &format!("{what}: {part}"));
    }
    assert!(run_on(&gpu(), fused, inputs) == got, "{what}: not the same bits again");
}

fn gpu() -> Device {
    // Seeking the fastest kernels takes minutes on a software adapter and changes no result beyond rounding.
    let autotune = AutotuneConfig { level: AutotuneLevel::Minimal, disable_cache: true, ..AutotuneConfig::default() };
    CubeClRuntimeConfig::try_set(CubeClRuntimeConfig { autotune, ..CubeClRuntimeConfig::default() });
    #[cfg(feature = "cuda")]
    if let Some(device) = cuda() {
        return device;
    }
    Device::wgpu(DeviceKind::DefaultDevice)
}

#[cfg(feature = "cuda")]
fn cuda() -> Option<Device> {
    // Without NVIDIA's driver the enumeration panics in the loader of libcuda.
    let devices = std::panic::catch_unwind(|| Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec());
    devices.unwrap_or_default().into_iter().next()
}

/// Batches, tokens and widths: single ones, odd ones, and more than a piece of a sum and a pass of a workgroup take.
const SHAPES: [[usize; 3]; 6] = [[1, 1, 1], [3, 2, 7], [2, 50, 65], [1, 197, 192], [2, 33, 1100], [1, 1025, 48]];

#[test]
fn hydra_attention_is_its_plain_form() {
    for kernel in Kernel::ALL {
        let shapes = if kernel == Kernel::Cosine { &SHAPES[..] } else { &SHAPES[1..3] };
        cases::hydra_attention(kernel, shapes, &agree);
    }
}

#[test]
fn layer_norm_is_its_plain_form() {
    cases::layer_norm(&SHAPES, &agree);
}

#[test]
fn gelu_is_its_plain_form() {
    cases::gelu(&SHAPES, &agree);
}

#[test]
fn a_residual_branch_is_its_plain_form() {
    cases::residual_branch(&SHAPES, &agree);
}

/// Heads of one feature and of 130 are no business of tiles; others are, with rows and columns left over or none.
#[test]
fn softmax_attention_is_its_plain_form() {
    for [batch, tokens, heads, head_width] in [
        [1, 1, 1, 4],
        [2, 33, 3, 12],
        [1, 70, 2, 64],
        [1, 40, 1, 128],
        [1, 17, 2, 80],
        [2, 5, 4, 1],
        [1, 6, 1, 130],
        [1, 197, 12, 16],
        [1, 1025, 3, 32],
    ] {
        let scales = if head_width == 12 { &[1.0, 1e4][..] } else { &[1.0] };
        for scale in scales.iter().copied() {
            let shape = [batch, tokens, 3 * heads * head_width];
            let form = |f: fn(Tensor<3>, usize) -> Tensor<3>| move |x: &[Tensor<1>]| f(shaped(&x[0], shape), heads).reshape([-1]);
            let inputs = [input(1, batch * tokens, shape[2], scale)];
            let what = format!("{shape:?} of {heads} heads, of {scale}");
            agree(&form(ops::softmax_attention), &form(ops::softmax_attention_plain), &inputs, &what);
        }
    }
}

/// What rounds the operands is left out of the comparison: both see the same numbers. SPIR-V and CUDA have f16, bf16 is the driver's affair.
#[test]
fn softmax_attention_in_half_precision_is_f32_within_its_digits() {
    let half = [FloatDType::F16, FloatDType::BF16].into_iter().filter(|float| gpu().supports_dtype(*float));
    let half: Vec<_> = half.collect();
    println!("{half:?}");
    assert!(!half.is_empty() || !cfg!(any(feature = "vulkan", feature = "cuda")), "a device of SPIR-V or CUDA has f16");
    for float in half {
        let round = |x: Tensor<1>| x.cast(float).cast(FloatDType::F32);
        for [batch, tokens, heads, head_width] in [[2, 33, 3, 12], [1, 197, 3, 64]] {
            let shape = [batch, tokens, 3 * heads * head_width];
            let inputs = [values(round(Tensor::from_data(&input(1, batch * tokens, shape[2], 1.0)[..], &Device::flex())))];
            let fused = |x: &[Tensor<1>]| {
                ops::softmax_attention(shaped::<3>(&x[0], shape).cast(float), heads).cast(FloatDType::F32).reshape([-1])
            };
            let plain = run(&|x| ops::softmax_attention_plain(shaped(&x[0], shape), heads).reshape([-1]), &inputs);
            for (got, expected) in run_on(&gpu(), &fused, &inputs).iter().zip(&plain) {
                close(got, expected, 1e-2, &format!("{shape:?} of {heads} heads in {float:?}"));
            }
        }
    }
}

/// One head, a few, and heads of one feature; widths that vectors and bindings fit and others.
#[test]
fn linear_attention_is_its_plain_form() {
    for [batch, tokens, heads, head_width] in [
        [1, 1, 1, 4],
        [2, 33, 3, 12],
        [3, 2, 1, 7],
        [1, 70, 3, 64],
        [2, 5, 4, 1],
        [1, 50, 5, 13],
        [2, 197, 12, 16],
        [1, 1025, 3, 32],
    ] {
        let kernels = if head_width == 12 { &Kernel::ALL[..] } else { &[Kernel::Cosine] };
        for (kernel, scale) in kernels.iter().flat_map(|kernel| [(*kernel, 1.0), (*kernel, 1e4)]) {
            // With large features the softmax of the features is a choice of one, and a rounding error of e^x a relative one of x.
            if scale > 1.0 && (kernel == Kernel::Softmax || head_width != 12) {
                continue;
            }
            let shape = [batch, tokens, 3 * heads * head_width];
            let form = |f: fn(Tensor<3>, usize, Kernel) -> Tensor<3>| {
                move |x: &[Tensor<1>]| f(shaped(&x[0], shape), heads, kernel).reshape([-1])
            };
            let inputs = [input(1, batch * tokens, shape[2], scale)];
            let what = format!("{kernel:?}, {shape:?} of {heads} heads, of {scale}");
            // Its products are Burn's, whose long sums round otherwise than the CPU's: 1e-5 lies between the plain forms of the two.
            let plain = run_on(&gpu(), &form(ops::linear_attention_plain), &inputs);
            for (plain, expected) in plain.iter().zip(&run(&form(ops::linear_attention_plain), &inputs)) {
                close(plain, expected, 5e-5, &what);
            }
            equals(&form(ops::linear_attention), &plain, &inputs, &what);
        }
    }
}

/// Lines of whole words and others, one channel and three, and a last word that is not full.
#[test]
fn patches_of_bytes_are_their_plain_form() {
    for (shape, patch) in
        [([2, 3, 32, 48], 16), ([1, 3, 224, 224], 16), ([3, 1, 28, 28], 7), ([1, 3, 9, 15], 3), ([2, 3, 12, 12], 6)]
    {
        let [_, channels, ..] = shape;
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..count.next_multiple_of(4)).map(|place| (place * 37 % 256) as u8).collect();
        let words: Vec<i32> = bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
        let statistics = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]].map(|values| values[..channels].to_vec()).concat();
        let images = |device: &Device| ByteImages {
            words: Tensor::from_data(TensorData::new(words.clone(), [words.len()]), device),
            shape,
            normalisation: Tensor::from_data(TensorData::new(statistics.clone(), [2, channels]), device),
        };
        let plain = ops::byte_patches_plain(images(&Device::flex()), patch, FloatDType::F32);
        let expected: Vec<f32> = bytes[..count].iter().map(|byte| f32::from(*byte) / 255.0).collect();
        let normalised = images(&Device::flex()).normalised();
        let [.., height, width] = shape;
        let plane = |place: usize| place / (height * width) % channels;
        let expected: Vec<f32> = expected
            .iter()
            .enumerate()
            .map(|(place, v)| (v - statistics[plane(place)]) / statistics[channels + plane(place)])
            .collect();
        close(&values(normalised), &expected, 1e-6, "normalised");
        let fused = ops::byte_patches(images(&gpu()), patch, FloatDType::F32);
        assert_eq!(fused.dims(), plain.dims());
        close(&values(fused), &values(plain.clone()), 1e-6, &format!("{shape:?} by {patch}"));
        if gpu().supports_dtype(FloatDType::F16) {
            let half = ops::byte_patches(images(&gpu()), patch, FloatDType::F16).cast(FloatDType::F32);
            close(&values(half), &values(plain), 1e-3, &format!("{shape:?} by {patch} in f16"));
        }
    }
}

#[test]
fn losses_are_their_plain_form() {
    cases::losses(&[(1, 2), (37, 10), (3, 1000)], &agree);
}

#[test]
fn a_step_of_adamw_is_its_plain_form() {
    for count in [1, 7, 1000, 70_001] {
        let state: Vec<Vec<f32>> = (0..4).map(|part| dense(part, 1, count, 1.0)).collect();
        let numbers = AdamW {
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            learning_rate: 1e-2,
            weight_decay: 0.05,
            correction1: 1.0 - 0.9f64.powi(3),
            correction2: (1.0 - 0.999f64.powi(3)).sqrt(),
        };
        let step = |device: Device, f: fn(AdamW, Tensor<1>, Tensor<1>, Tensor<1>, Tensor<1>) -> [Tensor<1>; 3]| {
            let parts = [0, 1, 2, 3].map(|part| Tensor::<1>::from_data(&state[part][..], &device));
            let [values_, gradient, first, second] = parts.clone();
            let stepped = f(numbers, values_, gradient, first, second.abs()).map(values);
            // What others still refer to is not written to.
            for (part, tensor) in parts.into_iter().enumerate() {
                assert_eq!(values(tensor), state[part]);
            }
            stepped
        };
        let plain = step(Device::flex(), ops::adamw_step_plain);
        for (fused, plain) in step(gpu(), ops::adamw_step).iter().zip(&plain) {
            close(fused, plain, 1e-5, &format!("{count} values"));
        }
        let expected: f64 = state[0].iter().map(|v| f64::from(*v).powi(2)).sum();
        let got = f64::from(values(ops::sum_of_squares(Tensor::from_data(&state[0][..], &gpu())))[0]);
        assert!((got / expected - 1.0).abs() < 1e-6, "{count}: {got} is not {expected}");
    }
}

#[test]
fn strided_operands_are_read_in_order() {
    let (tokens, width) = (9, 36);
    let x = Tensor::<3>::from_data(TensorData::new(input(6, tokens, width, 1.0), [1, tokens, width]), &gpu());
    let transposed = x.clone().swap_dims(1, 2).reshape([1, width, tokens]).swap_dims(1, 2);
    let linear = |x| ops::linear_attention(x, 3, Kernel::Cosine);
    for op in [|x| ops::softmax_attention(x, 3), |x| ops::hydra_attention(x, Kernel::Cosine), linear] {
        assert_eq!(values(op(x.clone())), values(op(transposed.clone())));
    }
}

#[test]
fn no_images_give_none() {
    let empty = Tensor::<3>::from_data(TensorData::new(Vec::<f32>::new(), [0, 4, 12]), &gpu());
    assert_eq!(ops::softmax_attention(empty.clone(), 1).dims(), [0, 4, 4]);
    assert_eq!(ops::hydra_attention(empty.clone(), Kernel::Cosine).dims(), [0, 4, 4]);
    assert_eq!(ops::linear_attention(empty, 2, Kernel::Cosine).dims(), [0, 4, 4]);
}

#[test]
fn a_network_computes_what_the_cpu_does_plainly() {
    let plain = network::run(&Device::flex(), Ops::Plain, FloatDType::F32);
    for (part, (fused, plain)) in network::run(&gpu(), Ops::Fused, FloatDType::F32).iter().zip(&plain).enumerate() {
        close(fused, plain, 2e-5, &format!("part {part}"));
    }
}

/// Every kernel is compiled for CUDA, with the sizes of DeiT-Ti and in vectors of one value, whatever runs it: `scripts/ci/cuda_kernels.sh`
/// puts a library without a device in the driver's place and looks at what it was given.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "computes nothing without a device"]
fn every_kernel_is_compiled_for_cuda() {
    let device = cuda().expect("a CUDA device, or what stands in for one");
    for [batch, tokens, heads, head_width] in [[2, 197, 3, 64], [1, 33, 1, 7]] {
        let width = heads * head_width;
        let rows = [batch, tokens, width];
        let launch = |op: Flat<'_>, inputs: &[Vec<f32>]| {
            run_on(&device, op, inputs);
        };
        let tokens_of = |width: usize| input(1, batch * tokens, width, 1.0);
        let packed = [tokens_of(3 * width)];
        for kernel in Kernel::ALL {
            launch(&|x| ops::hydra_attention(shaped(&x[0], [batch, tokens, 3 * width]), kernel).reshape([-1]), &packed);
            launch(&|x| ops::linear_attention(shaped(&x[0], [batch, tokens, 3 * width]), heads, kernel).reshape([-1]), &packed);
        }
        // Heads of other widths are no kernel of ours.
        let floats = if head_width % 4 == 0 { &[FloatDType::F32, FloatDType::BF16, FloatDType::F16][..] } else { &[] };
        for float in floats.iter().copied() {
            let shape = [batch, tokens, 3 * width];
            let op = |x: &[Tensor<1>]| ops::softmax_attention(shaped(&x[0], shape).cast(float), heads).cast(FloatDType::F32);
            launch(&|x| op(x).reshape([-1]), &packed);
        }
        launch(&|x| ops::gelu(shaped::<3>(&x[0], rows), x[1].clone()).reshape([-1]), &[tokens_of(width), vec![0.0; width]]);
        for (with_features, with_samples) in [(false, false), (true, true), (false, true)] {
            let branch = Branch::new(rows, with_features, with_samples);
            launch(&|x| branch.fused(x), &branch.inputs());
        }
        for (patch, float) in [(16, FloatDType::F32), (16, FloatDType::BF16), (7, FloatDType::F32)] {
            let images = ByteImages {
                words: Tensor::zeros([3 * 28 * patch * patch], &device),
                shape: [1, 3, 7 * patch, 16 * patch],
                normalisation: Tensor::ones([2, 3], &device),
            };
            values(ops::byte_patches(images, patch, float).cast(FloatDType::F32));
        }
        for loss in [Loss::SoftCrossEntropy, Loss::BinaryCrossEntropy] {
            launch(
                &|x| ops::loss_sum(shaped(&x[0], [tokens, width]), shaped(&x[0], [tokens, width]).detach(), loss),
                &[dense(1, tokens, width, 1.0)],
            );
        }
        let numbers = AdamW {
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            learning_rate: 1e-3,
            weight_decay: 0.05,
            correction1: 0.1,
            correction2: 0.1,
        };
        let state = || Tensor::<1>::zeros([width], &device);
        let [stepped, ..] = ops::adamw_step(numbers, state(), state(), state(), state());
        values(stepped);
        values(ops::sum_of_squares(state()));
    }
}
