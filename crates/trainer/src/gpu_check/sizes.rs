//! The networks that are compared and measured.

use manyheads_model::{AttentionKind, Ops};

use super::task::{Agree, Measure, Step};
use crate::config::Precision;

/// The kinds of attention, in the order of the tables.
pub const ATTENTIONS: [AttentionKind; 3] = [AttentionKind::Softmax, AttentionKind::Linear, AttentionKind::Hydra];

/// One network, its name, timm's name of it, the images that it takes at once, their side, and keys of its configuration.
struct Network(&'static str, &'static str, usize, usize, &'static [&'static str]);

/// Networks that are measured on a GPU. Where time runs out it is the last that are missed.
const MEASURED: [Network; 4] = [
    Network("base", "deit_base_patch16_224", 128, 224, &["model.preset=base"]),
    Network("base at 384", "deit_base_patch16_384", 32, 384, &["model.preset=base", "model.image_size=384"]),
    Network("small", "deit_small_patch16_224", 256, 224, &["model.preset=small"]),
    Network("tiny", "deit_tiny_patch16_224", 256, 224, &["model.preset=tiny"]),
];

/// The one that is compared and measured with `--tiny`. It shows that every part works, not how fast a device is; one for both, since a
/// software renderer compiles for a minute what it then computes in a second.
const TINY: [&str; 7] = [
    "model.image_size=24",
    "model.patch_size=8",
    "model.width=42",
    "model.heads=7",
    "model.depth=2",
    "model.classes=10",
    "optimizer.learning_rate=1e-3",
];
const TINY_NAME: &str = "odd, tiny";
const TINY_SIDE: usize = 24;
const TINY_BATCH: usize = 4;

/// Two networks that are compared, their names, their batches, and keys of their configurations: in one no size is a multiple of what
/// kernels like, the other has DeiT-Ti's sizes.
const COMPARED: [(&str, usize, &[&str]); 2] = [
    (
        "odd",
        6,
        &[
            "model.image_size=40",
            "model.patch_size=8",
            "model.width=126",
            "model.heads=7",
            "model.depth=3",
            "model.classes=10",
            "optimizer.learning_rate=1e-3",
        ],
    ),
    ("tiny, 2 layers", 8, &["model.depth=2", "optimizer.learning_rate=1e-3"]),
];

fn owned(sets: &[&str]) -> Vec<String> {
    sets.iter().map(|set| (*set).to_owned()).collect()
}

/// The form of a network's operations as a key of its configuration.
pub fn ops(ops: Ops) -> &'static str {
    match ops {
        Ops::Fused => "run.ops=fused",
        Ops::Plain => "run.ops=plain",
    }
}

/// The comparisons on a device that computes in `precisions` and in the forms `ops`.
pub fn comparisons(tiny: bool, precisions: &[Precision], ops: &[Ops]) -> Vec<Agree> {
    let networks: &[(&str, usize, &[&str])] = if tiny { &[(TINY_NAME, TINY_BATCH, &TINY)] } else { &COMPARED };
    let mut all = Vec::new();
    for (network, batch, sets) in networks {
        for attention in ATTENTIONS {
            for &precision in precisions {
                for &ops in ops {
                    let mut sets = owned(sets);
                    sets.push(format!("train.batch_size={batch}"));
                    all.push(Agree { network: (*network).into(), sets, attention, precision, ops });
                }
            }
        }
    }
    all
}

/// The measurements, those of training first: where time runs out, less is missed.
pub fn measurements(tiny: bool, precision: Precision) -> Vec<Measure> {
    let networks: &[Network] = if tiny { &[Network(TINY_NAME, "", TINY_BATCH, TINY_SIDE, &TINY)] } else { &MEASURED };
    let mut all = Vec::new();
    for step in [Step::Train, Step::Infer] {
        for Network(network, timm, batch, image, sets) in networks {
            for attention in ATTENTIONS {
                all.push(Measure {
                    network: (*network).into(),
                    timm: (*timm).into(),
                    image: *image,
                    sets: owned(sets),
                    attention,
                    step,
                    precision,
                    batch: *batch,
                    seconds: 1.5,
                    ops: Ops::Fused,
                    compile: false,
                });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::configuration;

    #[test]
    fn every_network_can_be_built() {
        for tiny in [true, false] {
            let compared = comparisons(tiny, &[Precision::F32, Precision::Bf16], &[Ops::Plain]);
            assert_eq!(compared.len(), if tiny { 6 } else { 12 });
            let measured = measurements(tiny, Precision::F32);
            assert_eq!(measured.len(), if tiny { 6 } else { 24 });
            for sets in compared.iter().map(|task| &task.sets).chain(measured.iter().map(|task| &task.sets)) {
                configuration(None, "tiny", sets).unwrap_or_else(|e| panic!("{sets:?}: {e}"));
            }
        }
    }
}
