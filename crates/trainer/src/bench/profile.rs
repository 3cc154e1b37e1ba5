//! What `--profile` says: the seconds of a step by kind of operation.

use manyheads_model::Cost;
use manyheads_model::profile::{Kind, Profile, Seconds};
use serde::Serialize;

/// Where the time of a step goes. Seconds are means over the profiled steps; those of the kinds add up to the step's.
///
/// The device is waited for at the edges of every operation, so that each is charged what it takes: a profiled step is slower than an
/// unprofiled one, least on the CPU, and most where a GPU's operations are small.
#[derive(Debug, Clone, Serialize)]
pub struct StepProfile {
    /// Seconds of a profiled step.
    pub seconds_per_step: f64,
    /// How many times those of an unprofiled one.
    pub slowdown: f64,
    /// Every kind of operation, in the order of a step.
    pub kinds: Vec<KindProfile>,
}

/// One kind of operation.
#[derive(Debug, Clone, Serialize)]
pub struct KindProfile {
    /// Which.
    pub kind: Kind,
    /// Seconds of a step in its forward pass; none where the kind has no passes.
    pub forward_seconds: Option<f64>,
    /// Seconds of a step in its backward pass; none where the kind or the measurement has none.
    pub backward_seconds: Option<f64>,
    /// Both.
    pub seconds: f64,
    /// Its share of the profiled step; the shares add up to 1.
    pub share: f64,
    /// Floating-point operations a second, by the multiply-accumulates of the network's definition; of products and attention alone.
    pub flops_per_second: Option<f64>,
}

impl StepProfile {
    /// The profile of `steps` steps of `batch` images each. `passes`: forward passes that a step counts for, 3 in training, where the
    /// backward pass counts for two; `unprofiled`: seconds of a step without profile.
    pub(super) fn new(profile: &Profile, steps: usize, batch: usize, passes: f64, cost: &Cost, unprofiled: f64) -> Self {
        let total = profile.total();
        let images = passes * batch as f64;
        let kind = |kind: Kind| {
            let Seconds { forward, backward } = profile.of(kind);
            let [forward, backward] = [forward, backward].map(|seconds| seconds / steps as f64);
            let seconds = forward + backward;
            let macs = match kind {
                Kind::MatrixProducts => Some(cost.macs() - cost.macs_attention()),
                Kind::Attention => Some(cost.macs_attention()),
                _ => None,
            };
            KindProfile {
                kind,
                forward_seconds: kind.has_passes().then_some(forward),
                backward_seconds: (kind.has_passes() && passes > 1.0).then_some(backward),
                seconds,
                share: seconds * steps as f64 / total,
                flops_per_second: macs.filter(|_| seconds > 0.0).map(|macs| 2.0 * images * macs as f64 / seconds),
            }
        };
        let seconds_per_step = total / steps as f64;
        Self { seconds_per_step, slowdown: seconds_per_step / unprofiled, kinds: Kind::ALL.map(kind).into() }
    }
}
