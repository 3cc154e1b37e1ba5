//! What the fused operations are held to their plain forms on, on whatever device.

use super::branch::Branch;
use super::fused::{Flat, dense, input, shaped};
use burn::tensor::Tensor;
use manyheads_model::Kernel;
use manyheads_model::ops::{self, Loss};

/// Holds a fused form to a plain one: both, the inputs, and what they are for people.
pub type Agree<'a> = &'a dyn Fn(Flat<'_>, Flat<'_>, &[Vec<f32>], &str);

/// Batches, tokens and widths.
pub type Shapes<'a> = &'a [[usize; 3]];

pub fn layer_norm(shapes: Shapes<'_>, agree: Agree<'_>) {
    // A single feature has no deviation: its norm is the shift, and its gradient a difference of equal numbers.
    for [batch, tokens, width] in shapes.iter().copied().filter(|shape| shape[2] > 1) {
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

pub fn gelu(shapes: Shapes<'_>, agree: Agree<'_>) {
    for [batch, tokens, width] in shapes.iter().copied() {
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

pub fn hydra_attention(kernel: Kernel, shapes: Shapes<'_>, agree: Agree<'_>) {
    for [batch, tokens, width] in shapes.iter().copied() {
        for scale in [1.0, 1e4] {
            // With large features the softmax of the features is a choice of one, and a rounding error of e^x a relative one of x.
            if scale > 1.0 && kernel == Kernel::Softmax {
                continue;
            }
            let shape = [batch, tokens, 3 * width];
            let inputs = [input(1, batch * tokens, 3 * width, scale)];
            let form =
                |f: fn(Tensor<3>, Kernel) -> Tensor<3>| move |x: &[Tensor<1>]| f(shaped(&x[0], shape), kernel).reshape([-1]);
            let what = format!("{kernel:?}, {shape:?} of {scale}");
            agree(&form(ops::hydra_attention), &form(ops::hydra_attention_plain), &inputs, &what);
        }
    }
}

pub fn residual_branch(shapes: Shapes<'_>, agree: Agree<'_>) {
    for shape in shapes.iter().copied().filter(|shape| shape[2] > 1) {
        for (with_features, with_samples) in [(false, false), (true, true), (false, true), (true, false)] {
            let branch = Branch::new(shape, with_features, with_samples);
            let (fused, plain) = (|x: &[Tensor<1>]| branch.fused(x), |x: &[Tensor<1>]| branch.plain(x));
            agree(&fused, &plain, &branch.inputs(), &format!("{shape:?}, features {with_features}, samples {with_samples}"));
        }
    }
}

/// `sizes`: images and classes.
pub fn losses(sizes: &[(usize, usize)], agree: Agree<'_>) {
    for loss in [Loss::SoftCrossEntropy, Loss::BinaryCrossEntropy] {
        for (batch, classes) in sizes.iter().copied() {
            for scale in [1.0, 1e4] {
                let targets: Vec<f32> = input(7, batch, classes, 1.0).iter().map(|v| v.abs() / classes as f32).collect();
                let form = |f: fn(Tensor<2>, Tensor<2>, Loss) -> Tensor<1>| {
                    let targets = &targets;
                    move |x: &[Tensor<1>]| {
                        let targets = Tensor::<1>::from_data(&targets[..], &x[0].device()).reshape([batch, classes]);
                        f(shaped(&x[0], [batch, classes]), targets, loss)
                    }
                };
                // Without zeros: at 0 the plain binary cross-entropy has a corner in each of two parts, and the slope of neither.
                let inputs = [dense(1, batch, classes, scale)];
                let what = format!("{loss:?}, {batch} x {classes} of {scale}");
                agree(&form(ops::loss_sum), &form(ops::loss_sum_plain), &inputs, &what);
            }
        }
    }
}
