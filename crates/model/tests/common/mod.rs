//! Shared by the tests: numbers to work on, and comparisons that say where they fail.
#![allow(dead_code, missing_docs)]

pub mod branch;
pub mod cases;
pub mod fused;
pub mod network;
pub mod reference;

use burn::tensor::{Device, Tensor, TensorData};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Values of unit scale: the sum of twelve uniform ones, rounded to f32 so that both sides of a comparison start from the same numbers.
pub fn unit_values(rng: &mut ChaCha8Rng, count: usize) -> Vec<f64> {
    (0..count)
        .map(|_| {
            let sum: f64 = (0..12).map(|_| rng.next_u32() as f64 / 2f64.powi(32)).sum();
            ((sum - 6.0) as f32).into()
        })
        .collect()
}

pub fn tensor<const D: usize>(values: &[f64], shape: [usize; D], device: &Device) -> Tensor<D> {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f32>().try_into_vec::<f32>().expect("converted to f32").into_iter().map(f64::from).collect()
}

/// Every value within `tolerance` of the expected one: absolute where the expected value is below 1, relative above.
#[track_caller]
pub fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: number of values");
    let mut worst = (0.0, 0);
    for (index, (a, b)) in actual.iter().zip(expected).enumerate() {
        let error = (a - b).abs() / b.abs().max(1.0);
        assert!(!error.is_nan(), "{what}: value {index} is {a}, expected {b}");
        if error > worst.0 {
            worst = (error, index);
        }
    }
    let (error, index) = worst;
    assert!(error <= tolerance, "{what}: value {index} is {}, expected {}, off by {error:e}", actual[index], expected[index]);
}

#[track_caller]
pub fn assert_finite(values: &[f64], what: &str) {
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        panic!("{what}: value {index} is {}", values[index]);
    }
}
