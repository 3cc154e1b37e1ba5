//! The fused operations against their plain forms, finite differences, and themselves on other numbers of threads.

mod common;

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use common::cases;
use common::fused::{SHAPES, agree, close, dense, input, shaped, slopes, values};
use common::{network, rng, unit_values};
use manyheads_model::ops::{self, AdamW};
use manyheads_model::{Kernel, Ops};
use rand::Rng;
use rayon::ThreadPoolBuilder;

#[test]
fn layer_norm_is_its_plain_form() {
    cases::layer_norm(&SHAPES, &agree);
    let op = |x: &[Tensor<1>]| ops::layer_norm(shaped(&x[0], [3, 5]), x[1].clone(), x[2].clone(), 1e-6).reshape([-1]);
    slopes(&op, &[dense(1, 3, 5, 1.0), dense(2, 1, 5, 1.0), dense(3, 1, 5, 1.0)], "layer norm");
}

#[test]
fn gelu_is_its_plain_form() {
    cases::gelu(&SHAPES, &agree);
    let op = |x: &[Tensor<1>]| ops::gelu(shaped(&x[0], [1, 4, 9]), x[1].clone()).reshape([-1]);
    slopes(&op, &[dense(1, 4, 9, 1.0), dense(2, 1, 9, 1.0)], "GELU");
}

#[test]
fn linear_layers_are_their_plain_form() {
    for [batch, tokens, into] in SHAPES {
        for out in [1, 10, 3 * into] {
            let shape = [batch, tokens, into];
            let inputs = [input(1, batch * tokens, into, 1.0), input(2, into, out, 0.1), input(3, 1, out, 1.0)];
            let form = |f: fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>| {
                move |x: &[Tensor<1>]| f(shaped(&x[0], shape), shaped(&x[1], [into, out]), Some(x[2].clone())).reshape([-1])
            };
            agree(&form(ops::linear), &form(ops::linear_plain), &inputs, &format!("{shape:?} to {out}"));
            let form = |f: fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>| {
                // The patch embedding's weights are the transposed view of a convolution's.
                move |x: &[Tensor<1>]| f(shaped(&x[0], shape), shaped(&x[1], [out, into]).transpose(), None).reshape([-1])
            };
            agree(&form(ops::linear), &form(ops::linear_plain), &inputs[..2], &format!("{shape:?} to {out}, transposed"));
        }
    }
    let op = |x: &[Tensor<1>]| ops::linear(shaped(&x[0], [4, 6]), shaped(&x[1], [6, 5]), Some(x[2].clone())).reshape([-1]);
    slopes(&op, &[dense(1, 4, 6, 1.0), dense(2, 6, 5, 1.0), dense(3, 1, 5, 1.0)], "linear");
}

#[test]
fn hydra_attention_is_its_plain_form() {
    for kernel in Kernel::ALL {
        cases::hydra_attention(kernel, &SHAPES, &agree);
        let op = |x: &[Tensor<1>]| ops::hydra_attention(shaped(&x[0], [2, 5, 12]), kernel).reshape([-1]);
        slopes(&op, &[dense(1, 10, 12, 1.0)], &format!("{kernel:?}"));
    }
}

#[test]
fn a_residual_branch_is_its_plain_form() {
    cases::residual_branch(&SHAPES, &agree);
}

#[test]
fn a_step_of_adamw_is_its_plain_form() {
    let mut rng = rng(5);
    for count in [1, 7, 1000, 16_384, 16_385, 100_000] {
        let state: Vec<Vec<f32>> = (0..4).map(|_| unit_values(&mut rng, count).iter().map(|v| *v as f32).collect()).collect();
        let numbers = AdamW {
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            learning_rate: 1e-3 * f64::from(rng.next_u32() % 100),
            weight_decay: 0.05,
            correction1: 1.0 - 0.9f64.powi(3),
            correction2: (1.0 - 0.999f64.powi(3)).sqrt(),
        };
        let step = |f: fn(AdamW, Tensor<1>, Tensor<1>, Tensor<1>, Tensor<1>) -> [Tensor<1>; 3]| {
            let tensor = |place: usize| Tensor::<1>::from_data(&state[place][..], &Device::flex());
            f(numbers, tensor(0), tensor(1), tensor(2), tensor(3).abs()).map(values)
        };
        let (fused, plain) = (step(ops::adamw_step), step(ops::adamw_step_plain));
        for (fused, plain) in fused.iter().zip(&plain) {
            close(fused, plain, 1e-5, &format!("{count} values"));
        }
        let pool = ThreadPoolBuilder::new().num_threads(5).build().expect("threads");
        assert!(pool.install(|| step(ops::adamw_step)) == fused, "threads change a number");

        let x = Tensor::<1>::from_data(TensorData::new(state[0].clone(), [count]), &Device::flex());
        let expected: f64 = state[0].iter().map(|v| f64::from(*v).powi(2)).sum();
        let got = f64::from(values(ops::sum_of_squares(x.clone()))[0]);
        assert!((got / expected - 1.0).abs() < 1e-6, "{count}: {got} is not {expected}");
        // Shared memory is not written to.
        assert_eq!(values(x), state[0]);
    }
}

#[test]
fn patches_are_their_plain_form() {
    for (shape, patch) in [([1, 1, 2, 2], 1), ([2, 3, 32, 48], 16), ([1, 3, 224, 224], 16), ([3, 1, 28, 28], 7)] {
        let form = |f: fn(Tensor<4>, usize) -> Tensor<3>| move |x: &[Tensor<1>]| f(shaped(&x[0], shape), patch).reshape([-1]);
        let inputs = [input(1, 1, shape.iter().product(), 1.0)];
        agree(&form(ops::patches), &form(ops::patches_plain), &inputs, &format!("{shape:?} by {patch}"));
    }
}

#[test]
fn losses_are_their_plain_form() {
    cases::losses(&[(1, 2), (3, 10), (8, 1000)], &agree);
}

#[test]
fn a_network_computes_the_same_in_both_forms() {
    let run = |ops: Ops, float: FloatDType| network::run(&Device::flex(), ops, float);
    let plain = run(Ops::Plain, FloatDType::F32);
    for (part, (fused, plain)) in run(Ops::Fused, FloatDType::F32).iter().zip(&plain).enumerate() {
        close(fused, plain, 2e-5, &format!("part {part}"));
    }
    let half = run(Ops::Plain, FloatDType::BF16);
    for (part, (fused, plain)) in run(Ops::Fused, FloatDType::BF16).iter().zip(&half).enumerate() {
        // Both round, the plain form its scores and weights of attention too; what they have in common is the size of the error.
        close(fused, plain, 5e-2, &format!("part {part} in bf16"));
    }
}
