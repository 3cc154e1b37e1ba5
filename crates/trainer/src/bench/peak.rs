//! How many operations a second a device reaches at best: what its vendor publishes where its name is known, otherwise a large product of
//! matrices.

use std::fmt;
use std::time::{Duration, Instant};

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::noise;
use crate::engine::device::OpenDevice;
use crate::error::{Error, Result};

/// How a device multiplies matrices of a float type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// f32 as it is.
    F32,
    /// f32 whose operands are rounded to 10 bits of fraction, on the tensor cores of NVIDIA's GPUs.
    Tf32,
    /// bfloat16 with sums in f32.
    Bf16,
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Tf32 => "TF32",
            Self::Bf16 => "bf16",
        })
    }
}

/// Where a peak comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The vendor's data sheet: dense, at boost clock. No program reaches it.
    Published,
    /// The fastest of several large products of matrices on this device, by the same backend.
    Measured,
}

/// The most operations a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// Floating-point operations, two to a multiply-accumulate.
    pub flops_per_second: f64,
    /// Published or measured.
    pub source: Source,
    /// Of what.
    pub what: String,
}

/// A GPU, the words of its name, and its vendor's peaks in TFLOP/s: bf16 and TF32 on tensor cores, f32.
struct Gpu(&'static [&'static str], [f64; 3]);

/// Dense peaks by NVIDIA's data sheets; of GeForce by the appendices of the architectures' white papers, bf16 with sums in f32. The first
/// entry whose words are all in the device's name is taken.
const GPUS: [Gpu; 18] = [
    Gpu(&["GH200"], [989.5, 494.7, 66.9]),
    Gpu(&["H200", "NVL"], [835.5, 417.5, 60.0]),
    Gpu(&["H200"], [989.5, 494.7, 66.9]),
    Gpu(&["H100", "NVL"], [835.5, 417.5, 60.0]),
    Gpu(&["H100", "PCIe"], [756.5, 378.0, 51.2]),
    Gpu(&["H100"], [989.5, 494.7, 66.9]),
    Gpu(&["A100"], [312.0, 156.0, 19.5]),
    Gpu(&["A30"], [165.0, 82.0, 10.3]),
    Gpu(&["A40"], [149.7, 74.8, 37.4]),
    Gpu(&["A10"], [125.0, 62.5, 31.2]),
    Gpu(&["L40S"], [362.05, 183.0, 91.6]),
    Gpu(&["L40"], [181.05, 90.5, 90.5]),
    Gpu(&["L4"], [121.0, 60.0, 30.3]),
    Gpu(&["RTX", "5090"], [209.5, 104.8, 104.8]),
    Gpu(&["RTX", "4090"], [165.2, 82.6, 82.6]),
    Gpu(&["RTX", "4080"], [97.5, 48.7, 48.7]),
    Gpu(&["RTX", "3090"], [71.0, 35.6, 35.6]),
    Gpu(&["RTX", "3090", "Ti"], [80.0, 40.0, 40.0]),
];

/// Words of a name that say it is another, smaller part than the table's.
const OTHER: [&str; 7] = ["Laptop", "Mobile", "Max", "D", "MIG", "SUPER", "Ti"];

/// The published peak of a device by its name; none where it is not known.
pub fn published(name: &str, arithmetic: Arithmetic) -> Option<Peak> {
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let has = |word: &&str| words.iter().any(|other| other.eq_ignore_ascii_case(word));
    // The longest entry that fits, so that `3090 Ti` is not taken for a 3090 with an odd word.
    let Gpu(entry, [bf16, tf32, f32]) = GPUS.iter().filter(|gpu| gpu.0.iter().all(has)).max_by_key(|gpu| gpu.0.len())?;
    if OTHER.iter().any(|word| has(word) && !entry.contains(word)) {
        return None;
    }
    let tera = match arithmetic {
        Arithmetic::F32 => f32,
        Arithmetic::Tf32 => tf32,
        Arithmetic::Bf16 => bf16,
    };
    Some(Peak {
        flops_per_second: tera * 1e12,
        source: Source::Published,
        what: format!("{}, {arithmetic}, dense", entry.join(" ")),
    })
}

/// The peak of a device: [`published`], otherwise measured.
///
/// # Errors
/// Where the device fails.
pub fn of(open: &OpenDevice, arithmetic: Arithmetic) -> Result<Peak> {
    published(&open.label, arithmetic).map_or_else(|| measured(&open.device, arithmetic), Ok)
}

/// Floats in which a device holds the operands.
fn float(arithmetic: Arithmetic) -> FloatDType {
    match arithmetic {
        Arithmetic::F32 | Arithmetic::Tf32 => FloatDType::F32,
        Arithmetic::Bf16 => FloatDType::BF16,
    }
}

/// Products of growing matrices, until one takes long enough; the fastest counts.
fn measured(device: &Device, arithmetic: Arithmetic) -> Result<Peak> {
    /// Seconds after which no larger product is tried: it would take eight times as long, several times over.
    const ENOUGH: f64 = 0.05;
    let mut best = (0.0, 0);
    for side in [256, 512, 1024, 2048, 4096, 8192] {
        let flops = product_flops_per_second(device, float(arithmetic), side)?;
        if flops > best.0 {
            best = (flops, side);
        }
        if product_flops(side) / flops > ENOUGH {
            break;
        }
    }
    let (flops_per_second, side) = best;
    Ok(Peak {
        flops_per_second,
        source: Source::Measured,
        what: format!("a product of matrices of {side} x {side} in {arithmetic}"),
    })
}

/// How a device multiplies f32 matrices: told from the rounding of a product as large as real layers take, or of a smaller one where the
/// device is slow.
///
/// # Errors
/// Where the device fails.
pub fn arithmetic_of_f32(device: &Device) -> Result<Arithmetic> {
    /// Operations a second with which the larger product takes a tenth of a second at most.
    const FAST: f64 = 2e10;
    let [small, large] = [256, 1024];
    let fast = product_flops_per_second(device, FloatDType::F32, small)? > FAST;
    let side = if fast { large } else { small };
    told_by_rounding(side, |a, b| {
        let matrix = |values: &[f32]| Tensor::<2>::from_data(TensorData::new(values.to_vec(), [side, side]), device);
        let data = matrix(a).matmul(matrix(b)).try_into_data().map_err(|e| Error::Failed(format!("the device failed: {e}")))?;
        data.try_into_vec().map_err(|e| Error::Failed(format!("a product cannot be read back: {e}")))
    })
}

/// How `multiply` computes, which makes the product of two matrices of `side` x `side`, row by row.
fn told_by_rounding(side: usize, multiply: impl FnOnce(&[f32], &[f32]) -> Result<Vec<f32>>) -> Result<Arithmetic> {
    /// Rows that are computed again on the host.
    const ROWS: usize = 4;
    let (a, b) = (noise(1, side * side), noise(2, side * side));
    let got = multiply(&a, &b)?;
    let mut expected = vec![0.0_f64; ROWS * side];
    for (row, out) in a.chunks(side).zip(expected.chunks_mut(side)) {
        for (value, row) in row.iter().zip(b.chunks(side)) {
            for (out, other) in out.iter_mut().zip(row) {
                *out += f64::from(*value) * f64::from(*other);
            }
        }
    }
    let difference: f64 = got.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    let size: f64 = expected.iter().map(|value| value.powi(2)).sum();
    // f32 rounds to 6e-8 and sums of a thousand to some 1e-6; TF32 rounds to 5e-4.
    Ok(if (difference / size).sqrt() < 2e-5 { Arithmetic::F32 } else { Arithmetic::Tf32 })
}

fn product_flops(side: usize) -> f64 {
    2.0 * (side as f64).powi(3)
}

/// Operations a second of a product of `side` x `side` matrices; the fastest of several.
///
/// # Errors
/// Where the device fails.
pub(crate) fn product_flops_per_second(device: &Device, float: FloatDType, side: usize) -> Result<f64> {
    let matrix = |seed| Tensor::<2>::from_data(TensorData::new(noise(seed, side * side), [side, side]), device).cast(float);
    let (a, b) = (matrix(1), matrix(2));
    let seconds = fastest(|| {
        drop(a.clone().matmul(b.clone()));
        device.sync().map_err(|e| Error::Failed(format!("the device failed: {e}")))
    })?;
    Ok(product_flops(side) / seconds)
}

/// Seconds of the fastest of several repetitions, the first not counted.
pub(crate) fn fastest(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        work()?;
        least = least.min(start.elapsed());
    }
    Ok(least.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers_are_known_and_smaller_parts_are_not_taken_for_them() {
        for (name, tera) in [
            ("cuda:0 (NVIDIA H200)", 989.5),
            ("cuda:0 (NVIDIA H100 80GB HBM3)", 989.5),
            ("cuda:0 (NVIDIA H100 PCIe)", 756.5),
            ("cuda:1 (NVIDIA GH200 480GB)", 989.5),
            ("cuda:0 (NVIDIA A100-SXM4-80GB)", 312.0),
            ("wgpu:0 (NVIDIA L40S)", 362.05),
            ("cuda:0 (NVIDIA L4)", 121.0),
            ("cuda:0 (NVIDIA GeForce RTX 4090)", 165.2),
            ("cuda:0 (NVIDIA GeForce RTX 3090 Ti)", 80.0),
        ] {
            let peak = published(name, Arithmetic::Bf16).unwrap_or_else(|| panic!("{name}"));
            assert_eq!((peak.flops_per_second, peak.source), (tera * 1e12, Source::Published), "{name}: {}", peak.what);
        }
        for name in [
            "cpu (2 threads)",
            "wgpu:0 (llvmpipe (LLVM 19.1.7, 256 bits))",
            "cuda:0 (NVIDIA GeForce RTX 4090 Laptop GPU)",
            "cuda:0 (NVIDIA GeForce RTX 4090 D)",
            "cuda:0 (NVIDIA A100-SXM4-80GB MIG 1g.10gb)",
            "cuda:0 (NVIDIA GeForce RTX 4080 SUPER)",
        ] {
            assert_eq!(published(name, Arithmetic::F32), None, "{name}");
        }
        let tf32 = published("cuda:0 (NVIDIA H200)", Arithmetic::Tf32).expect("known");
        assert_eq!((tf32.flops_per_second, tf32.what.as_str()), (494.7e12, "H200, TF32, dense"));
    }

    #[test]
    fn tf32_is_told_from_f32() {
        const SIDE: usize = 64;
        for (bits, expected) in [(23, Arithmetic::F32), (10, Arithmetic::Tf32)] {
            let rounded =
                |value: f32| f32::from_bits((value.to_bits() + ((1_u32 << (23 - bits)) >> 1)) & (u32::MAX << (23 - bits)));
            let multiply = |a: &[f32], b: &[f32]| {
                let cell = |row: usize, column: usize| -> f32 {
                    (0..SIDE).map(|i| rounded(a[row * SIDE + i]) * rounded(b[i * SIDE + column])).sum()
                };
                Ok((0..SIDE * SIDE).map(|index| cell(index / SIDE, index % SIDE)).collect())
            };
            assert_eq!(told_by_rounding(SIDE, multiply).expect("a product"), expected);
        }
    }

    #[cfg(feature = "flex")]
    #[test]
    fn the_cpus_f32_is_f32_and_its_peak_is_measured() {
        let device = Device::flex();
        assert_eq!(arithmetic_of_f32(&device).expect("a CPU"), Arithmetic::F32);
        let peak = measured(&device, Arithmetic::F32).expect("a CPU");
        assert!(peak.flops_per_second > 1e8 && peak.source == Source::Measured, "{peak:?}");
    }
}
