//! Holds a fused operation to its plain form, to the slopes of its own values, and to itself on other numbers of threads.

use super::{rng, unit_values};
use burn::tensor::{Device, Tensor};
use rayon::ThreadPoolBuilder;

/// An operation on flat inputs, with a flat result.
pub type Flat<'a> = &'a (dyn Fn(&[Tensor<1>]) -> Tensor<1> + Sync);

/// The value, and the gradients of all inputs of a sum of the value weighted by `weights` (repeated).
pub fn run(op: Flat<'_>, inputs: &[Vec<f32>]) -> Vec<Vec<f32>> {
    run_on(&Device::flex(), op, inputs)
}

/// [`run`] on another device.
pub fn run_on(device: &Device, op: Flat<'_>, inputs: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let inputs: Vec<Tensor<1>> = inputs.iter().map(|input| Tensor::from_data(&input[..], &device).require_grad()).collect();
    let value = op(&inputs);
    let [count] = value.dims();
    // The gradient of a tensor is that of its sum.
    let gradients = (value.clone() * Tensor::from_data(&weights(count)[..], &device)).backward();
    let mut out = vec![values(value.inner())];
    out.extend(inputs.iter().map(|input| values(input.grad(&gradients).expect("every input has a gradient"))));
    out
}

/// The value without autodiff.
pub fn evaluate(op: Flat<'_>, inputs: &[Vec<f32>]) -> Vec<f32> {
    let inputs: Vec<Tensor<1>> = inputs.iter().map(|input| Tensor::from_data(&input[..], &Device::flex())).collect();
    values(op(&inputs))
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("f32")
}

/// Numbers between -1 and 1 without a pattern.
pub fn weights(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 * 0.618_034).fract() - 0.5) * 2.0).collect()
}

/// Equal within `tolerance` of the greater of the expected number and the root mean square of all expected ones.
#[track_caller]
pub fn close(actual: &[f32], expected: &[f32], tolerance: f64, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let square: f64 = expected.iter().map(|v| f64::from(*v).powi(2)).sum();
    let scale = (square / expected.len().max(1) as f64).sqrt();
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let (a, e) = (f64::from(*a), f64::from(*e));
        let bound = tolerance * e.abs().max(scale) + 1e-30;
        assert!((a - e).abs() <= bound, "{what}: number {index} is {a}, expected {e}, of a scale of {scale}");
    }
}

/// Fused and plain agree in value and gradients; so does the value without autodiff; and threads change no bit.
#[track_caller]
pub fn agree(fused: Flat<'_>, plain: Flat<'_>, inputs: &[Vec<f32>], what: &str) {
    let got = run(fused, inputs);
    let expected = run(plain, inputs);
    for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let part = if part == 0 { "the value".into() } else { format!("the gradient of input {part}") };
        close(got, expected, 1e-5, &format!("{what}: {part}"));
    }
    assert_eq!(evaluate(fused, inputs), got[0], "{what}: the value without autodiff");
    for threads in [1, 2, 5] {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        assert!(pool.install(|| run(fused, inputs)) == got, "{what}: {threads} threads change a number");
    }
}

/// The gradients of `op` are the slopes of the weighted sum along random directions.
#[track_caller]
pub fn slopes(op: Flat<'_>, inputs: &[Vec<f32>], what: &str) {
    let all = run(op, inputs);
    let weights = weights(all[0].len());
    let total = |inputs: &[Vec<f32>]| -> f64 {
        evaluate(op, inputs).iter().zip(&weights).map(|(v, w)| f64::from(*v) * f64::from(*w)).sum()
    };
    let mut rng = rng(11);
    for place in 0..inputs.len() {
        let direction = unit_values(&mut rng, inputs[place].len());
        let step = 2e-3;
        let moved = |sign: f64| {
            let mut inputs = inputs.to_vec();
            for (value, slope) in inputs[place].iter_mut().zip(&direction) {
                *value += (sign * step * slope) as f32;
            }
            total(&inputs)
        };
        let slope = (moved(1.0) - moved(-1.0)) / (2.0 * step);
        let expected: f64 = all[place + 1].iter().zip(&direction).map(|(g, d)| f64::from(*g) * d).sum();
        let length = all[place + 1].iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        assert!((slope - expected).abs() < 5e-3 * length + 1e-4, "{what}, input {place}: slope {slope}, gradient {expected}");
    }
}

/// Values of unit scale, times `scale`.
pub fn dense(seed: u64, rows: usize, width: usize, scale: f64) -> Vec<f32> {
    unit_values(&mut rng(seed), rows * width).iter().map(|v| (v * scale) as f32).collect()
}

/// [`dense`], with every seventh row zero.
pub fn input(seed: u64, rows: usize, width: usize, scale: f64) -> Vec<f32> {
    let mut values = dense(seed, rows, width, scale);
    for row in values.chunks_mut(width).skip(3).step_by(7) {
        row.fill(0.0);
    }
    values
}

/// Batches, tokens and widths: single ones, odd ones, and those of DeiT.
pub const SHAPES: [[usize; 3]; 8] =
    [[1, 1, 1], [1, 2, 7], [3, 1, 33], [2, 50, 65], [1, 197, 192], [2, 197, 384], [1, 1025, 100], [5, 9, 3]];

pub fn shaped<const D: usize>(x: &Tensor<1>, shape: [usize; D]) -> Tensor<D> {
    x.clone().reshape(shape)
}
