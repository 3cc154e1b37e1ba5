//! A sample from encoded bytes, which decodes only a part, against the same from the whole image: every value equal.

use std::path::Path;

use manyheads_data::augment::{ColorJitter, RandomErasing, apply};
use manyheads_data::random::below;
use manyheads_data::transform::resize::{Rect, View, resize};
use manyheads_data::transform::{CropDraw, CropMode, TrainCrop};
use manyheads_data::{
    EvalTransform, Interpolation, Output, Purpose, RandomResizedCrop, Scratch, TrainTransform, Transform, decode_rgb, stream,
};

fn fixtures(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
}

/// Every subsampling, coding and odd size, with many small crops: at all edges, of a pixel, and of everything.
#[test]
fn parts_are_those_of_the_whole() {
    let mut scratch = Scratch::default();
    let mut files = fixtures("subsampling");
    assert_eq!(files.len(), 27);
    files.extend(fixtures("modes").into_iter().filter(|(name, _)| !name.ends_with(".rgb.png")));
    for (number, (name, bytes)) in files.iter().enumerate() {
        let whole = decode_rgb(bytes, name).unwrap();
        for case in 0..60u64 {
            let mut rng = stream(number as u64, Purpose::Augment, 1, case);
            let size = [1 + below(&mut rng, 30) as usize, 1 + below(&mut rng, 30) as usize];
            let channels = if case % 5 == 0 { 1 } else { 3 };
            let (mean, std) = (vec![0.5; channels], vec![0.25; channels]);
            let crop = match case % 3 {
                0 => TrainCrop::RandomResized(RandomResizedCrop { scale: [0.002, 0.3], ratio: [0.2, 5.0] }),
                1 => TrainCrop::RandomResized(RandomResizedCrop::default()),
                _ => TrainCrop::Squash,
            };
            let transform = match case % 4 {
                0 => {
                    let crop_mode = [CropMode::Center, CropMode::Squash, CropMode::Border][case as usize / 4 % 3];
                    let crop_pct = [0.3, 0.875, 1.0, 1.5][case as usize / 12 % 4];
                    Transform::Eval(EvalTransform { size, channels, crop_pct, crop_mode, mean, std, ..Default::default() })
                }
                1 => Transform::Train(TrainTransform {
                    size: [20, 20],
                    channels,
                    crop: TrainCrop::Simple,
                    mean,
                    std,
                    ..Default::default()
                }),
                _ => Transform::Train(TrainTransform { size, channels, crop, mean, std, ..Default::default() }),
            };
            let len = transform.sample_shape().iter().product();
            let (mut part, mut all) = (vec![0.0; len], vec![1.0; len]);
            let rng = || stream(5, Purpose::Augment, number as u64, case);
            transform.load(bytes, &mut rng(), &mut scratch, Output::F32(&mut part)).unwrap();
            transform.apply(&whole, &mut rng(), &mut all).unwrap();
            assert_eq!(part, all, "{name}: case {case}");

            // The other output has the values before normalisation.
            let mut values = vec![0; len];
            transform
                .load(bytes, &mut rng(), &mut scratch, Output::U8 { values: &mut values, patches: &mut Vec::new() })
                .unwrap();
            assert!(values.iter().zip(&part).all(|(&v, &f)| (f32::from(v) / 255.0 - 0.5) / 0.25 == f), "{name}: case {case}");
        }
    }
}

/// A cut file is an error also where the crop ends above the cut.
#[test]
fn a_cut_below_the_crop_is_seen() {
    let (_, bytes) = fixtures("subsampling").into_iter().find(|(name, _)| name.starts_with("420_baseline")).unwrap();
    // A crop of the upper left corner, by a seed found to give one.
    let crop = TrainCrop::RandomResized(RandomResizedCrop { scale: [0.01, 0.02], ratio: [1.0, 1.0] });
    let transform = TrainTransform { size: [4, 4], crop, ..Default::default() };
    let whole = decode_rgb(&bytes, "").unwrap();
    let seed = (0..1000)
        .find(|&seed| {
            let drawn = transform.draw(whole.width, whole.height, &mut stream(seed, Purpose::Augment, 0, 0)).crop;
            matches!(drawn, CropDraw::Rect(rect) if rect.y + rect.height < whole.height / 4)
        })
        .unwrap();
    let transform = Transform::Train(transform);
    let load = |bytes: &[u8]| {
        let mut out = [0.0; 48];
        transform.load(bytes, &mut stream(seed, Purpose::Augment, 0, 0), &mut Scratch::default(), Output::F32(&mut out))
    };
    load(&bytes).unwrap();
    let message = load(&bytes[..bytes.len() * 3 / 4]).unwrap_err().to_string();
    assert!(message.contains("its end marker is missing"), "{message}");
}

/// The whole training transform against its parts, one after the other: crop and resize, flips, operations, normalisation,
/// erasing.
#[test]
fn the_order_of_a_training_sample() {
    let (_, bytes) = fixtures("subsampling").into_iter().find(|(name, _)| name.starts_with("420_baseline_83")).unwrap();
    let whole = decode_rgb(&bytes, "").unwrap();
    let transform = TrainTransform {
        size: [32, 24],
        vertical_flip: 0.5,
        auto_augment: Some("rand-m9-mstd0.5-inc1-n3".parse().unwrap()),
        color_jitter: Some(ColorJitter { hue: 0.1, ..ColorJitter::uniform(0.3) }),
        grayscale: 0.2,
        solarize: 0.2,
        gaussian_blur: 0.3,
        random_erasing: Some(RandomErasing { probability: 0.7, count: 2, ..RandomErasing::default() }),
        ..TrainTransform::default()
    };
    let mut erased = 0;
    for case in 0..200 {
        let rng = || stream(6, Purpose::Augment, 0, case);
        let mut out = vec![0.0; 3 * 32 * 24];
        let load = Transform::Train(transform.clone());
        load.load(&bytes, &mut rng(), &mut Scratch::default(), Output::F32(&mut out)).unwrap();

        let mut rng = rng();
        let draw = transform.draw(whole.width, whole.height, &mut rng);
        let CropDraw::Rect(rect) = draw.crop else { panic!() };
        let all = Rect { x: 0, y: 0, width: 24, height: 32 };
        let mut image = resize(View::new(&whole).crop(rect), [32, 24], Interpolation::Bicubic, None, all);
        if draw.horizontal_flip {
            image.data.chunks_exact_mut(24 * 3).for_each(|row| {
                let pixels: Vec<u8> = row.rchunks_exact(3).flatten().copied().collect();
                row.copy_from_slice(&pixels);
            });
        }
        if draw.vertical_flip {
            image.data = image.data.rchunks_exact(24 * 3).flatten().copied().collect();
        }
        let image = apply(&image, &draw.operations, [124, 116, 104], Interpolation::Bicubic);
        let mut expected = vec![0.0; 3 * 32 * 24];
        for (i, value) in expected.iter_mut().enumerate() {
            let (channel, place) = (i / (32 * 24), i % (32 * 24));
            let pixel = f32::from(image.data[place * 3 + channel]);
            *value = (pixel / 255.0 - transform.mean[channel]) / transform.std[channel];
        }
        let erasing = transform.random_erasing.unwrap();
        erasing.apply(&draw.erased, [32, 24], &mut rng, &mut expected);
        assert_eq!(out, expected, "case {case}: {draw:?}");
        erased += usize::from(!draw.erased.0.is_empty());
    }
    assert!((100..180).contains(&erased), "{erased}");
}
