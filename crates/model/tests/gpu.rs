//! The fused operations on wgpu against their plain forms on the CPU. A machine without any adapter fails here: `mesa-vulkan-drivers` brings
//! a software one.
#![cfg(feature = "wgpu")]

mod common;

use burn::tensor::{Device, Tensor};
use common::branch::Branch;
use common::fused::{Flat, close, input, run, run_on, shaped};
use manyheads_model::{Kernel, ops};

/// The fused form on wgpu has the values and gradients of the plain form on the CPU.
#[track_caller]
fn agree(fused: Flat<'_>, plain: Flat<'_>, inputs: &[Vec<f32>], what: &str) {
    let got = run_on(&wgpu(), fused, inputs);
    for (part, (got, expected)) in got.iter().zip(&run(plain, inputs)).enumerate() {
        let part = if part == 0 { "the value".into() } else { format!("the gradient of input {part}") };
        close(got, expected, 1e-5, &format!("{what}: {part}"));
    }
    assert!(run_on(&wgpu(), fused, inputs) == got, "{what}: not the same bits again");
}

fn wgpu() -> Device {
    Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)
}

/// Batches, tokens and widths: single ones, odd ones, and more than a piece of a sum and a pass of a workgroup take.
const SHAPES: [[usize; 3]; 5] = [[1, 1, 1], [3, 2, 7], [2, 50, 65], [1, 197, 192], [2, 33, 1100]];

#[test]
fn hydra_attention_is_its_plain_form() {
    for kernel in Kernel::ALL {
        let shapes = if kernel == Kernel::Cosine { &SHAPES[..] } else { &SHAPES[1..3] };
        for [batch, tokens, width] in shapes.iter().copied() {
            for scale in [1.0, 1e4] {
                // With large features the softmax of the features is a choice of one, and a rounding error of e^x a relative one of x.
                if scale > 1.0 && kernel == Kernel::Softmax {
                    continue;
                }
                let shape = [batch, tokens, 3 * width];
                let form =
                    |f: fn(Tensor<3>, Kernel) -> Tensor<3>| move |x: &[Tensor<1>]| f(shaped(&x[0], shape), kernel).reshape([-1]);
                let inputs = [input(1, batch * tokens, 3 * width, scale)];
                let what = format!("{kernel:?}, {shape:?} of {scale}");
                agree(&form(ops::hydra_attention), &form(ops::hydra_attention_plain), &inputs, &what);
            }
        }
    }
}

#[test]
fn layer_norm_is_its_plain_form() {
    // A single feature has no deviation: its norm is the shift, and its gradient a difference of equal numbers.
    for [batch, tokens, width] in SHAPES.into_iter().filter(|shape| shape[2] > 1) {
        for scale in [1.0, 1e4] {
            let shape = [batch, tokens, width];
            let inputs = [input(1, batch * tokens, width, scale), input(2, 1, width, 1.0), input(3, 1, width, 1.0)];
            let form = |f: fn(Tensor<3>, Tensor<1>, Tensor<1>, f64) -> Tensor<3>| {
                move |x: &[Tensor<1>]| f(shaped(&x[0], shape), x[1].clone(), x[2].clone(), 1e-6).reshape([-1])
            };
            agree(&form(ops::layer_norm), &form(ops::layer_norm_plain), &inputs, &format!("{shape:?} of {scale}"));
        }
    }
}

#[test]
fn gelu_is_its_plain_form() {
    for [batch, tokens, width] in SHAPES {
        for scale in [1.0, 1e4] {
            let shape = [batch, tokens, width];
            let inputs = [input(1, batch * tokens, width, scale), input(2, 1, width, 1.0)];
            let form = |f: fn(Tensor<3>, Tensor<1>) -> Tensor<3>| {
                move |x: &[Tensor<1>]| f(shaped(&x[0], shape), x[1].clone()).reshape([-1])
            };
            agree(&form(ops::gelu), &form(ops::gelu_plain), &inputs, &format!("{shape:?} of {scale}"));
        }
    }
}

#[test]
fn a_residual_branch_is_its_plain_form() {
    for [batch, tokens, width] in SHAPES.into_iter().filter(|shape| shape[2] > 1) {
        for (with_features, with_samples) in [(false, false), (true, true), (false, true)] {
            let shape = [batch, tokens, width];
            let branch = Branch::new(shape, with_features, with_samples);
            let (fused, plain) = (|x: &[Tensor<1>]| branch.fused(x), |x: &[Tensor<1>]| branch.plain(x));
            agree(&fused, &plain, &branch.inputs(), &format!("{shape:?}, features {with_features}, samples {with_samples}"));
        }
    }
}
