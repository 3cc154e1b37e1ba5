//! Multi-head linear attention in one piece against its plain form, finite differences, and itself on other numbers of threads.

mod common;

use burn::tensor::{Device, Tensor, TensorData};
use common::fused::{agree, dense, input, shaped, slopes, values};
use common::rng;
use manyheads_model::{Kernel, ops};
use rand::Rng;

/// An operation on packed queries, keys and values.
type Packed = fn(Tensor<3>, usize, Kernel) -> Tensor<3>;

fn flat(op: Packed, shape: [usize; 3], heads: usize, kernel: Kernel) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
    move |x: &[Tensor<1>]| op(shaped(&x[0], shape), heads, kernel).reshape([-1])
}

#[track_caller]
fn is_plain(batch: usize, tokens: usize, heads: usize, head_width: usize, kernel: Kernel, scale: f64) {
    let shape = [batch, tokens, 3 * heads * head_width];
    let inputs = [input(1, batch * tokens, shape[2], scale)];
    let fused = flat(ops::linear_attention, shape, heads, kernel);
    let plain = flat(ops::linear_attention_plain, shape, heads, kernel);
    let what = format!("{kernel:?}, {batch} x {tokens} tokens, {heads} heads of {head_width}, values of {scale}");
    agree(&fused, &plain, &inputs, &what);
}

#[test]
fn is_its_plain_form_with_every_kernel() {
    for kernel in Kernel::ALL {
        for scale in [1.0, 1e4] {
            // With large features the softmax of the features is a choice of one, and a rounding error of e^x a relative one of x.
            if scale > 1.0 && kernel == Kernel::Softmax {
                continue;
            }
            is_plain(2, 50, 3, 11, kernel, scale);
            is_plain(1, 197, 12, 4, kernel, scale);
        }
    }
}

/// Single tokens, features and heads, widths between vectors, more tokens than a step of a sum takes and more rows than a task's summary.
#[test]
fn is_its_plain_form_at_every_shape() {
    for [batch, tokens, heads, head_width] in [
        [1, 1, 1, 1],
        [1, 1, 1, 7],
        [2, 5, 12, 1],
        [3, 9, 1, 33],
        [1, 197, 3, 64],
        [1, 1025, 2, 20],
        [2, 130, 1, 100],
        [1, 40, 1, 201],
    ] {
        for kernel in [Kernel::Cosine, Kernel::Relu] {
            is_plain(batch, tokens, heads, head_width, kernel, 1.0);
        }
    }
    let mut rng = rng(22);
    let mut below = |limit: u32| 1 + (rng.next_u32() % limit) as usize;
    for _ in 0..16 {
        is_plain(below(3), below(300), below(6), below(40), Kernel::Elu1, 1.0);
    }
}

#[test]
fn its_gradient_is_its_slope() {
    for kernel in Kernel::ALL {
        // Small ones: among many features some lie so near a kernel's corner that a step crosses it.
        for [batch, tokens, heads, head_width] in [[2, 5, 2, 4], [1, 9, 3, 3]] {
            let shape = [batch, tokens, 3 * heads * head_width];
            let inputs = [dense(3, batch * tokens, shape[2], 1.0)];
            slopes(&flat(ops::linear_attention, shape, heads, kernel), &inputs, &format!("{kernel:?}, {shape:?}"));
        }
    }
}

#[test]
fn no_images_give_none() {
    let empty = Tensor::<3>::from_data(TensorData::new(Vec::<f32>::new(), [0, 4, 12]), &Device::flex());
    let mixed = ops::linear_attention(empty, 2, Kernel::Cosine);
    assert_eq!(mixed.dims(), [0, 4, 4]);
    assert!(values(mixed).is_empty());
}
