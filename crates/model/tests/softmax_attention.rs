//! Softmax attention in tiles against its plain form, finite differences, and itself on other numbers of threads.

mod common;

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use common::fused::{agree, close, input, run, shaped, slopes, values};
use common::rng;
use manyheads_model::ops;
use rand::Rng;

/// An operation on packed queries, keys and values.
type Packed = fn(Tensor<3>, usize) -> Tensor<3>;

fn flat(op: Packed, shape: [usize; 3], heads: usize) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
    move |x: &[Tensor<1>]| op(shaped(&x[0], shape), heads).reshape([-1])
}

/// Batch, tokens, heads and head width: single ones, odd ones, those of DeiT, more keys than a block holds, and rows enough to be divided.
const SHAPES: [[usize; 4]; 14] = [
    [1, 1, 1, 1],
    [2, 1, 3, 5],
    [1, 2, 1, 7],
    [3, 5, 12, 1],
    [2, 50, 3, 11],
    [1, 49, 1, 33],
    [1, 197, 3, 64],
    [2, 197, 3, 16],
    [1, 130, 12, 20],
    [1, 260, 2, 130],
    [1, 577, 1, 64],
    [1, 513, 2, 3],
    [1, 700, 1, 24],
    [1, 1025, 1, 48],
];

#[test]
fn is_its_plain_form() {
    for [batch, tokens, heads, head_width] in SHAPES {
        for scale in [1.0, 1e4] {
            let shape = [batch, tokens, 3 * heads * head_width];
            let what = format!("{batch} x {tokens} tokens, {heads} heads of {head_width}, values of {scale}");
            let inputs = [input(1, batch * tokens, shape[2], scale)];
            let (fused, plain) = (flat(ops::softmax_attention, shape, heads), flat(ops::softmax_attention_plain, shape, heads));
            agree(&fused, &plain, &inputs, &what);
        }
    }
}

#[test]
fn is_its_plain_form_for_shapes_by_chance() {
    let mut rng = rng(21);
    let mut below = |limit: u32| 1 + (rng.next_u32() % limit) as usize;
    for _ in 0..24 {
        let [batch, tokens, heads, head_width] = [below(3), below(300), below(6), below(70)];
        let shape = [batch, tokens, 3 * heads * head_width];
        let inputs = [input(2, batch * tokens, shape[2], 1.0)];
        let (fused, plain) = (flat(ops::softmax_attention, shape, heads), flat(ops::softmax_attention_plain, shape, heads));
        agree(&fused, &plain, &inputs, &format!("{shape:?} of {heads} heads"));
    }
}

#[test]
fn its_gradient_is_its_slope() {
    for [batch, tokens, heads, head_width] in [[2, 5, 2, 4], [1, 30, 3, 5], [1, 600, 1, 2]] {
        let shape = [batch, tokens, 3 * heads * head_width];
        slopes(&flat(ops::softmax_attention, shape, heads), &[input(3, batch * tokens, shape[2], 1.0)], &format!("{shape:?}"));
    }
}

#[test]
fn bf16_is_f32_within_its_digits() {
    for [batch, tokens, heads, head_width] in [[2, 197, 3, 64], [1, 300, 2, 130], [1, 9, 1, 3]] {
        let shape = [batch, tokens, 3 * heads * head_width];
        let inputs = [input(4, batch * tokens, shape[2], 1.0)];
        let inputs = [round(&inputs[0])];
        let half = |x: &[Tensor<1>]| {
            let qkv = shaped(&x[0], shape).cast(FloatDType::BF16);
            ops::softmax_attention(qkv, heads).cast(FloatDType::F32).reshape([-1])
        };
        let got = run(&half, &inputs);
        let expected = run(&flat(ops::softmax_attention_plain, shape, heads), &inputs);
        for (got, expected) in got.iter().zip(&expected) {
            let what = format!("{shape:?} in bf16");
            let size = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
            let error = size(&mut got.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
            assert!(error <= 1e-2 * size(&mut expected.iter().map(|x| f64::from(*x))), "{what}: off by {error} in all");
            close(got, expected, 3e-2, &what);
        }
    }
}

/// To the nearest values of bf16, so that a cast loses nothing.
fn round(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| burn::tensor::bf16::from_f32(*x).to_f32()).collect()
}

/// Where numbers are not finite, fused and plain are so in the same places, and equal elsewhere.
#[test]
fn infinities_and_nan_spread_as_in_the_plain_form() {
    let (tokens, heads, head_width) = (20, 2, 4);
    let shape = [1, tokens, 3 * heads * head_width];
    let [query, key, value] = [0, 1, 2].map(|third| third * heads * head_width);
    for (place, number) in [
        (query, f32::NAN),
        (key, f32::NAN),
        (value, f32::NAN),
        (query, f32::INFINITY),
        (key, f32::INFINITY),
        (key, f32::NEG_INFINITY),
        (value, f32::INFINITY),
        (query, 1e30),
        (key, -3e38),
    ] {
        let mut x = input(5, tokens, shape[2], 1.0);
        x[7 * shape[2] + place] = number;
        let mix = |op: Packed| values(op(Tensor::from_data(TensorData::new(x.clone(), shape), &Device::flex()), heads));
        let (fused, plain) = (mix(ops::softmax_attention), mix(ops::softmax_attention_plain));
        for (index, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
            let equal =
                fused == plain || fused.is_nan() && plain.is_nan() || (fused - plain).abs() <= 1e-5 * plain.abs().max(1.0);
            assert!(equal, "{number} at {place}: number {index} is {fused}, expected {plain}");
        }
    }
}

#[test]
fn strided_operands_are_read_in_order() {
    let (tokens, heads, head_width) = (9, 2, 3);
    let width = 3 * heads * head_width;
    let device = Device::flex();
    let x = Tensor::<3>::from_data(TensorData::new(input(6, tokens, width, 1.0), [1, tokens, width]), &device);
    let transposed = x.clone().swap_dims(1, 2).reshape([1, width, tokens]).swap_dims(1, 2);
    let (a, b) = (ops::softmax_attention(x, heads), ops::softmax_attention(transposed, heads));
    assert_eq!(values(a), values(b));
}

#[test]
fn no_images_give_none() {
    let empty = Tensor::<3>::from_data(TensorData::new(Vec::<f32>::new(), [0, 4, 12]), &Device::flex());
    assert_eq!(ops::softmax_attention(empty, 2).dims(), [0, 4, 4]);
}
