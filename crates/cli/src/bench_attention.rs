//! `manyheads bench attention`.

use clap::ValueEnum;
use manyheads_trainer::bench_attention::{self, AttentionKind, Kernel, Options, Pass, Report};
use manyheads_trainer::{DeviceName, Error, Result};

use crate::bench_model::{Attention, Ops};
use crate::leave::{Code, SUCCESS};

/// What the measurement takes.
#[derive(clap::Args)]
pub struct Args {
    /// The attention.
    #[arg(long, value_name = "KIND", default_value = "softmax")]
    kind: Attention,
    /// The feature map of linear and Hydra attention: cosine, mean, tanh, sigmoid, relu, softmax, elu1 or identity.
    #[arg(long, value_name = "NAME", default_value = "cosine", value_parser = kernel)]
    kernel: Kernel,
    /// Images.
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Tokens of an image.
    #[arg(long, value_name = "N", default_value_t = 197)]
    tokens: usize,
    /// Features of a token.
    #[arg(long, value_name = "N", default_value_t = 768)]
    width: usize,
    /// Heads.
    #[arg(long, value_name = "N", default_value_t = 12)]
    heads: usize,
    /// Float type of queries, keys and values.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: Dtype,
    /// How it is computed, as run.ops.
    #[arg(long, value_name = "HOW", default_value = "fused")]
    ops: Ops,
    /// auto, cpu, wgpu, wgpu:N, cuda or cuda:N.
    #[arg(long, value_parser = crate::device, default_value = "auto")]
    device: DeviceName,
    /// Repetitions that are measured.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Repetitions before them that are not.
    #[arg(long, value_name = "N", default_value_t = 2)]
    warmup: u32,
    /// Fill the caches with other things before each repetition, so that it reads from memory.
    #[arg(long)]
    cold: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Dtype {
    F32,
    Bf16,
}

fn kernel(name: &str) -> std::result::Result<Kernel, String> {
    Kernel::ALL.into_iter().find(|kernel| kernel.name() == name).ok_or_else(|| {
        let names: Vec<&str> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
        format!("unknown kernel: it is one of {}", names.join(", "))
    })
}

pub fn run(args: Args) -> Result<Code> {
    let report = bench_attention::attention(&Options {
        device: args.device,
        kind: match args.kind {
            Attention::Softmax => AttentionKind::Softmax,
            Attention::Linear => AttentionKind::Linear,
            Attention::Hydra => AttentionKind::Hydra,
        },
        kernel: args.kernel,
        ops: match args.ops {
            Ops::Fused => bench_attention::Ops::Fused,
            Ops::Plain => bench_attention::Ops::Plain,
        },
        half: matches!(args.dtype, Dtype::Bf16),
        batch: args.batch,
        tokens: args.tokens,
        width: args.width,
        heads: args.heads,
        warmup: args.warmup as usize,
        repeats: args.repeats as usize,
        cold: args.cold,
    })?;
    if args.json {
        crate::print(serde_json::to_string(&report).map_err(|e| Error::Failed(format!("cannot print as JSON: {e}")))?)?;
    } else {
        crate::print(text(&report).trim_end())?;
    }
    Ok(SUCCESS)
}

fn text(report: &Report) -> String {
    let Report { batch, tokens, width, heads, .. } = report;
    let kernel = report.kernel.map_or(String::new(), |kernel| format!(" ({})", kernel.name()));
    let mut out = format!(
        "{:?} attention{kernel} on {}: {batch} x {tokens} tokens of {width} features, {heads} heads, {}\n",
        report.kind, report.device, report.float
    );
    out += &format!(
        "{:18}{:>11}{:>12}{:>13}{:>12}{:>11}{:>10}{:>11}\n",
        "", "ms", "images/s", "tokens/s", "memory MB", "GB/s", "GFLOP/s", "of copy, product"
    );
    for (name, pass) in [("forward", &report.forward), ("forward, backward", &report.forward_backward)] {
        out += &line(name, pass);
    }
    out += &format!(
        "a copy: {:.1} GB/s; a large product of matrices: {:.1} GFLOP/s\n",
        report.copy_bytes_per_second / 1e9,
        report.matmul_flops_per_second / 1e9
    );
    out
}

fn line(name: &str, pass: &Pass) -> String {
    let memory = pass.peak_memory_growth_bytes.map_or("–".into(), |bytes| format!("{:.1}", bytes as f64 / 1e6));
    format!(
        "{name:18}{:>11.3}{:>12.1}{:>13.0}{memory:>12}{:>11.2}{:>10.1}{:>8.0} %,{:>3.0} %\n",
        1e3 * pass.seconds,
        pass.images_per_second,
        pass.tokens_per_second,
        pass.bytes / pass.fastest / 1e9,
        pass.flops / pass.fastest / 1e9,
        100.0 * pass.bandwidth_share,
        100.0 * pass.matmul_share
    )
}
