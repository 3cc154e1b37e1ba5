//! What `manyheads bench attention` measures: one attention without its projections, beside the machine's own limits.

use std::time::Instant;

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
pub use manyheads_model::{AttentionKind, Kernel, Ops};
use manyheads_model::{LayerAttention, attention};
use serde::Serialize;

use crate::bench::noise;
use crate::bench::peak::{fastest, product_flops_per_second};
use crate::engine::device::DeviceName;
use crate::error::{Error, Result};
use crate::memory::{forget_peak, peak_bytes, resident_bytes};

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Where.
    pub device: DeviceName,
    /// The attention.
    pub kind: AttentionKind,
    /// phi of linear and Hydra attention.
    pub kernel: Kernel,
    /// How it is computed.
    pub ops: Ops,
    /// Queries, keys, values and the result in bf16, not f32.
    pub half: bool,
    /// Images.
    pub batch: usize,
    /// Tokens of an image.
    pub tokens: usize,
    /// Features of a token.
    pub width: usize,
    /// Heads; they divide the width.
    pub heads: usize,
    /// Repetitions before the clock runs.
    pub warmup: usize,
    /// Repetitions measured, at least 1.
    pub repeats: usize,
    /// Whether the caches are filled with other things before each repetition, so that it reads its operands from memory, as in a network
    /// whose activations are larger than the caches.
    pub cold: bool,
}

/// What a measurement says.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Kind and model of the device.
    pub device: String,
    /// `softmax`, `linear` or `hydra`.
    pub kind: AttentionKind,
    /// phi, where the kind has one.
    pub kernel: Option<Kernel>,
    /// `fused` or `plain`.
    pub ops: Ops,
    /// `f32` or `bf16`.
    pub float: &'static str,
    /// Images.
    pub batch: usize,
    /// Tokens of an image.
    pub tokens: usize,
    /// Features of a token.
    pub width: usize,
    /// Heads.
    pub heads: usize,
    /// The forward pass without autodiff.
    pub forward: Pass,
    /// The forward pass and the gradient of queries, keys and values.
    pub forward_backward: Pass,
    /// Bytes a second that a copy of a large tensor reads and writes.
    pub copy_bytes_per_second: f64,
    /// Operations a second of a large product of matrices in the same float type.
    pub matmul_flops_per_second: f64,
}

/// One measurement.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Pass {
    /// Seconds of the median repetition.
    pub seconds: f64,
    /// Seconds of the fastest.
    pub fastest: f64,
    /// Images per second, from the median.
    pub images_per_second: f64,
    /// Tokens per second, from the median.
    pub tokens_per_second: f64,
    /// Memory that the process held at most beyond what it held with the inputs in place; none where the system does not tell, and on a
    /// GPU.
    pub peak_memory_growth_bytes: Option<u64>,
    /// Bytes that must be read and written where every pass over the tokens reads its operands once.
    pub bytes: f64,
    /// Floating-point operations of the definition and its gradient, two to a multiply-accumulate, without what is computed again.
    pub flops: f64,
    /// Those bytes a second, by the fastest repetition, as a share of the copy's.
    pub bandwidth_share: f64,
    /// Those operations a second, by the fastest repetition, as a share of the large product's.
    pub matmul_share: f64,
}

/// Measures one attention.
///
/// # Errors
/// [`Error::Usage`] where sizes do not fit; [`Error::Failed`] where the device cannot be opened or fails.
pub fn attention(options: &Options) -> Result<Report> {
    let Options { kind, kernel, ops, half, batch, tokens, width, heads, .. } = *options;
    let float = if half { FloatDType::BF16 } else { FloatDType::F32 };
    if [batch, tokens, width, heads].contains(&0) || !width.is_multiple_of(heads) {
        return Err(Error::Usage(format!(
            "{batch} images of {tokens} tokens with {heads} heads in {width} features: none may be 0, and the heads must divide the features"
        )));
    }
    let open = options.device.open()?;
    let device = open.device;
    let on_cpu = open.eager;
    if half && !device.supports_dtype(float) {
        return Err(Error::Usage(format!("{} does not compute in bf16: take f32", open.label)));
    }

    let layer = LayerAttention { kind, kernel: (kind != AttentionKind::Softmax).then_some(kernel) };
    let shape = [batch, tokens, 3 * width];
    let values = noise(0, batch * tokens * 3 * width);
    let input = |device: &Device| Tensor::<3>::from_data(TensorData::new(values.clone(), shape), device).cast(float);
    let (plain, tracked) = (input(&device), input(&device.clone().autodiff()).require_grad());
    let sync = || device.sync().map_err(|e| Error::Failed(format!("the device failed: {e}")));
    sync()?;
    let mut evict = evictor(options.cold, &device, on_cpu)?;

    let before = on_cpu.then(resident_bytes).flatten();
    let mut forward = || {
        drop(attention::attend(plain.clone(), heads, layer, ops));
        sync()
    };
    let (forward, forward_growth) = repeat(options, before, &mut forward, &mut evict)?;
    let mut both = || {
        let gradients = attention::attend(tracked.clone(), heads, layer, ops).backward();
        drop(tracked.grad(&gradients).ok_or_else(|| Error::Failed("attention has no gradient".into()))?);
        sync()
    };
    let (both, both_growth) = repeat(options, before, &mut both, &mut evict)?;

    let copy = copy_bytes_per_second(&device, on_cpu)?;
    let matmul = product_flops_per_second(&device, float, SIDE)?;
    let counts = count(options);
    let pass = |seconds: Vec<f64>, growth, (bytes, flops): (f64, f64)| {
        let median = (seconds[(seconds.len() - 1) / 2] + seconds[seconds.len() / 2]) / 2.0;
        Pass {
            seconds: median,
            fastest: seconds[0],
            images_per_second: batch as f64 / median,
            tokens_per_second: (batch * tokens) as f64 / median,
            peak_memory_growth_bytes: growth,
            bytes,
            flops,
            bandwidth_share: bytes / seconds[0] / copy,
            matmul_share: flops / seconds[0] / matmul,
        }
    };
    Ok(Report {
        device: open.label,
        kind,
        kernel: layer.kernel,
        ops,
        float: if half { "bf16" } else { "f32" },
        batch,
        tokens,
        width,
        heads,
        forward: pass(forward, forward_growth, counts[0]),
        forward_backward: pass(both, both_growth, counts[1]),
        copy_bytes_per_second: copy,
        matmul_flops_per_second: matmul,
    })
}

/// Bytes and operations of the forward pass, and of forward and backward.
///
/// Softmax attention reads queries, keys and values and writes the result; its backward pass reads them, the result and its gradient and
/// writes three gradients. Linear and Hydra attention must have the token sum before they can use it: forward they read keys and values,
/// then queries; backward they read everything and the gradient twice, and write three gradients.
fn count(options: &Options) -> [(f64, f64); 2] {
    let Options { kind, half, batch, tokens, width, heads, .. } = *options;
    let size = if half { 2.0 } else { 4.0 };
    let matrix = (batch * tokens * width) as f64;
    let products = match kind {
        AttentionKind::Softmax => 2.0 * tokens as f64,
        AttentionKind::Linear => 2.0 * (width / heads) as f64,
        AttentionKind::Hydra => 2.0,
    };
    let forward = (4.0 * matrix * size, 2.0 * products * matrix);
    let backward = match kind {
        AttentionKind::Softmax => 8.0,
        AttentionKind::Linear | AttentionKind::Hydra => 11.0,
    };
    [forward, (forward.0 + backward * matrix * size, 3.0 * forward.1)]
}

/// Seconds of each repetition, in order of size, and how far the process grew beyond `before` at most.
fn repeat(
    options: &Options,
    before: Option<u64>,
    work: &mut dyn FnMut() -> Result<()>,
    evict: &mut dyn FnMut() -> Result<()>,
) -> Result<(Vec<f64>, Option<u64>)> {
    let marked = before.filter(|_| forget_peak());
    for _ in 0..options.warmup.max(1) {
        work()?;
    }
    let growth = marked.and_then(|before| Some(peak_bytes()?.saturating_sub(before)));
    let mut seconds = Vec::with_capacity(options.repeats);
    for _ in 0..options.repeats.max(1) {
        evict()?;
        let start = Instant::now();
        work()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok((seconds, growth))
}

/// What fills the caches with other things, where it is asked for.
fn evictor(cold: bool, device: &Device, on_cpu: bool) -> Result<impl FnMut() -> Result<()>> {
    let mut host = vec![1.0_f32; if cold && on_cpu { 2 * COPIED } else { 0 }];
    let there = (cold && !on_cpu).then(|| Tensor::<1>::ones([COPIED], device));
    let device = device.clone();
    let sync = move || device.sync().map_err(|e| Error::Failed(format!("the device failed: {e}")));
    sync()?;
    Ok(move || {
        host.iter_mut().for_each(|value| *value += 1.0);
        std::hint::black_box(&mut host);
        if let Some(tensor) = &there {
            drop(tensor.clone().mul_scalar(0.5));
        }
        sync()
    })
}

/// Values of the tensor whose copy is measured: more than any cache holds.
const COPIED: usize = 32 << 20;

/// Side of the matrices whose product is measured.
const SIDE: usize = 1536;

fn copy_bytes_per_second(device: &Device, on_cpu: bool) -> Result<f64> {
    let seconds = if on_cpu {
        let from = noise(0, COPIED);
        let mut to = vec![0.0_f32; COPIED];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = COPIED.div_ceil(threads);
        fastest(|| {
            std::thread::scope(|scope| {
                for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                    scope.spawn(|| to.copy_from_slice(from));
                }
            });
            std::hint::black_box(&mut to);
            Ok(())
        })?
    } else {
        let x = Tensor::<1>::ones([COPIED], device);
        fastest(|| {
            drop(x.clone().mul_scalar(0.5));
            device.sync().map_err(|e| Error::Failed(format!("the device failed: {e}")))
        })?
    };
    Ok(2.0 * (COPIED * size_of::<f32>()) as f64 / seconds)
}
