//! What a measurement of one attention says. One test, so that nothing else in the process takes memory meanwhile.
#![cfg(all(feature = "flex", target_os = "linux"))]

use manyheads_trainer::DeviceName;
use manyheads_trainer::bench_attention::{AttentionKind, Kernel, Ops, Options, attention};

/// A matrix of scores of 6000 tokens would take 144 MB, and its gradient as much again.
#[test]
fn softmax_attention_holds_no_matrix_of_scores() {
    let options = Options {
        device: DeviceName::Cpu,
        kind: AttentionKind::Softmax,
        kernel: Kernel::Cosine,
        ops: Ops::Fused,
        half: false,
        batch: 1,
        tokens: 6000,
        width: 32,
        heads: 2,
        warmup: 1,
        repeats: 1,
        cold: true,
    };
    let report = attention(&options).expect("a CPU");
    for pass in [report.forward, report.forward_backward] {
        assert!(pass.fastest > 0.0 && pass.seconds >= pass.fastest);
        let growth = pass.peak_memory_growth_bytes.expect("Linux tells");
        assert!(growth < 48 << 20, "grew by {growth} bytes");
    }
    // Two products of 6000 x 6000 x 32 forward, and twice as much backward.
    assert_eq!([report.forward.flops, report.forward_backward.flops], [1.0, 3.0].map(|part| part * 4.0 * 6000.0 * 6000.0 * 32.0));

    let unfit = attention(&Options { heads: 3, ..options }).expect_err("3 heads do not divide 32 features");
    assert!(unfit.to_string().contains("3 heads in 32 features"), "{unfit}");
}
