//! Mixup and CutMix against timm's, from `mix.txt` made by `scripts/reference/data_augment.py`.

use std::path::Path;

use manyheads_data::mix::{MixDraw, MixKind, targets};
use manyheads_data::transform::resize::Rect;

fn numbers<T: std::str::FromStr>(text: &str) -> Vec<T> {
    text.split(',').map(|v| v.parse().unwrap_or_else(|_| panic!("{v}"))).collect()
}

#[test]
fn batches_are_mixed_as_timm_mixes_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/augment/mix.txt");
    let cases = std::fs::read_to_string(path).unwrap();
    for case in cases.lines() {
        let [batch, classes, smoothing, kind, lambda, shape, labels, images, mixed, expected] =
            case.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let lambda: f64 = lambda.parse().unwrap();
        let draw = match kind {
            "none" => MixDraw::NONE,
            "mixup" => MixDraw { kind: MixKind::Mixup, lambda },
            _ => {
                let [top, bottom, left, right] = numbers(shape).try_into().unwrap();
                let rect = Rect { x: left, y: top, width: right - left, height: bottom - top };
                let share = (rect.width * rect.height) as f64 / 20.0;
                let draw = MixDraw { kind: MixKind::CutMix(rect), lambda: 1.0 - share };
                // The same rectangle from one of the places its middle can have had.
                assert!((0..20).any(|i| MixDraw::cutmix(lambda, [i / 4, i % 4], [5, 4]) == draw), "{shape}");
                draw
            }
        };
        let mut images: Vec<f32> = numbers(images);
        draw.apply(&mut images, [2, 5, 4]);
        let near = |ours: &[f32], theirs: &[f32]| {
            assert_eq!(ours.len(), theirs.len());
            ours.iter().zip(theirs).for_each(|(a, b)| assert!((a - b).abs() <= 2e-7 * b.abs().max(1.0), "{a} {b}: {kind}"));
        };
        near(&images, &numbers::<f32>(mixed));
        let labels: Vec<u32> = numbers(labels);
        assert_eq!(labels.len().to_string(), batch);
        let ours = targets(&labels, classes.parse().unwrap(), smoothing.parse().unwrap(), labels.len(), &[draw]);
        near(&ours, &numbers::<f32>(expected));
    }
    assert_eq!(cases.lines().count(), 5);
}
