//! Pixels against Pillow's, from files made by `scripts/reference/data_fixtures.py`.

use std::path::{Path, PathBuf};

use manyheads_data::transform::preview;
use manyheads_data::transform::resize::{Rect, View, resize};
use manyheads_data::{CropMode, EvalTransform, Interpolation, Output, Pixels, Purpose, Scratch, Transform, decode_rgb, stream};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn load(path: &str) -> Pixels {
    decode_rgb(&std::fs::read(fixtures().join(path)).unwrap(), path).unwrap()
}

fn grey(image: &Pixels) -> Pixels {
    Pixels { channels: 1, data: image.data.iter().step_by(3).copied().collect(), ..*image }
}

/// Largest difference, and the mean of all.
fn difference(a: &Pixels, b: &Pixels) -> (u8, f64) {
    assert_eq!((a.width, a.height, a.channels), (b.width, b.height, b.channels));
    let all = a.data.iter().zip(&b.data).map(|(x, y)| x.abs_diff(*y));
    (all.clone().max().unwrap(), all.map(f64::from).sum::<f64>() / a.data.len() as f64)
}

#[test]
fn every_mode_becomes_the_rgb_that_pillow_makes() {
    let mut seen = 0;
    for entry in std::fs::read_dir(fixtures().join("modes")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".rgb.png") {
            continue;
        }
        seen += 1;
        let ours = load(&format!("modes/{name}"));
        let theirs = load(&format!("modes/{name}.rgb.png"));
        let (worst, mean) = difference(&ours, &theirs);
        println!("{name}: worst {worst}, mean {mean:.3}");
        // JPEG decoders may round differently; lossless formats and WebP may not.
        let (worst_allowed, mean_allowed) = (0, 0.0);
        assert!(worst <= worst_allowed && mean <= mean_allowed, "{name}: worst {worst}, mean {mean}");
    }
    assert_eq!(seen, 24);
}

#[test]
fn resize_is_pillows_bit_for_bit() {
    let cases = std::fs::read_to_string(fixtures().join("resize.txt")).unwrap();
    let mut seen = 0;
    for case in cases.lines() {
        let [source, channels, filter, width, height, region, expected] = case.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let mut image = load(source);
        let mut expected = load(expected);
        if channels == "1" {
            // Through the transform's own conversion to grey.
            let rows: Vec<u8> = image
                .data
                .chunks_exact(3)
                .map(|p| ((u32::from(p[0]) * 19595 + u32::from(p[1]) * 38470 + u32::from(p[2]) * 7471 + 0x8000) >> 16) as u8)
                .collect();
            image = Pixels { channels: 1, data: rows, ..image };
            expected = grey(&expected);
        }
        let filter = if filter == "bilinear" { Interpolation::Bilinear } else { Interpolation::Bicubic };
        let (width, height): (usize, usize) = (width.parse().unwrap(), height.parse().unwrap());
        let region: Option<[f32; 4]> =
            (region != "-").then(|| region.split(',').map(|v| v.parse().unwrap()).collect::<Vec<f32>>().try_into().unwrap());
        let window = Rect { x: 0, y: 0, width, height };
        let ours = resize(View::new(&image), [height, width], filter, region, window);
        assert_eq!(difference(&ours, &expected), (0, 0.0), "{case}");
        seen += 1;
    }
    assert_eq!(seen, 64);
}

#[test]
fn evaluation_is_timms_pixel_for_pixel() {
    let cases = std::fs::read_to_string(fixtures().join("eval.txt")).unwrap();
    let mut seen = 0;
    for case in cases.lines() {
        let [source, height, width, crop_pct, expected] = case.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let mean = vec![0.485, 0.456, 0.406];
        let std = vec![0.229, 0.224, 0.225];
        let size: [usize; 2] = [height.parse().unwrap(), width.parse().unwrap()];
        let transform = Transform::Eval(EvalTransform {
            size,
            channels: 3,
            crop_pct: crop_pct.parse().unwrap(),
            interpolation: Interpolation::Bicubic,
            mean: mean.clone(),
            std: std.clone(),
            ..EvalTransform::default()
        });
        let (image, expected) = (load(source), load(expected));
        let mut rng = stream(0, Purpose::Augment, 0, 0);
        let ours = preview(&transform, &image, &mut rng);
        assert_eq!(difference(&ours, &expected), (0, 0.0), "{case}");

        let area = size[0] * size[1];
        let mut out = vec![0.0; 3 * area];
        transform.apply(&image, &mut rng, &mut out).unwrap();
        for (i, &value) in out.iter().enumerate() {
            let (channel, place) = (i / area, i % area);
            let pixel = f32::from(expected.data[place * 3 + channel]);
            assert_eq!(value, (pixel / 255.0 - mean[channel]) / std[channel]);
        }
        seen += 1;
    }
    assert_eq!(seen, 10);
}

/// Every subsampling and coding decodes to Pillow's values.
#[test]
fn every_subsampling_is_pillows() {
    let cases = std::fs::read_to_string(fixtures().join("subsampling.txt")).unwrap();
    for case in cases.lines() {
        let (name, expected) = case.split_once(' ').unwrap();
        let pixels = load(&format!("subsampling/{name}"));
        assert_eq!(format!("{:08x}", crc32fast::hash(&pixels.data)), expected, "{name}");
    }
    assert_eq!(cases.lines().count(), 27);
}

/// From the file's bytes to the values before normalisation, in all crop modes, over images of 1 × 1 to 5000 × 3000 pixels and
/// every kind of file: timm's, each one.
#[test]
fn evaluation_of_odd_images_is_timms() {
    let cases = std::fs::read_to_string(fixtures().join("eval_modes.txt")).unwrap();
    let mut scratch = Scratch::default();
    let mut wrong = Vec::new();
    for case in cases.lines() {
        let [source, height, width, crop_pct, mode, filter, expected] = case.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let transform = Transform::Eval(EvalTransform {
            size: [height.parse().unwrap(), width.parse().unwrap()],
            crop_pct: crop_pct.parse().unwrap(),
            crop_mode: match mode {
                "center" => CropMode::Center,
                "squash" => CropMode::Squash,
                "border" => CropMode::Border,
                other => panic!("{other}"),
            },
            interpolation: if filter == "bilinear" { Interpolation::Bilinear } else { Interpolation::Bicubic },
            ..EvalTransform::default()
        });
        let bytes = std::fs::read(fixtures().join(source)).unwrap();
        let mut values = vec![0; transform.sample_shape().iter().product()];
        let mut rng = stream(0, Purpose::Augment, 0, 0);
        transform.load(&bytes, &mut rng, &mut scratch, Output::U8 { values: &mut values, patches: &mut Vec::new() }).unwrap();
        if format!("{:08x}", crc32fast::hash(&values)) != expected {
            wrong.push(case);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(cases.lines().count(), 285);
}
