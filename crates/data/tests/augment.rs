//! Operations against timm's on Pillow images, from files made by `scripts/reference/data_augment.py`.

use std::path::{Path, PathBuf};

use manyheads_data::augment::{Kind, Operation, apply};
use manyheads_data::{Interpolation, Pixels, Purpose, decode_rgb, stream};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/augment")
}

fn image(number: &str) -> Pixels {
    decode_rgb(&std::fs::read(fixtures().join(format!("{number}.png"))).unwrap(), number).unwrap()
}

fn operation(name: &str, parameter: f64) -> Operation {
    match name {
        "auto_contrast" => Operation::AutoContrast,
        "equalize" => Operation::Equalize,
        "invert" => Operation::Invert,
        "rotate" => Operation::Rotate(parameter),
        "shear_x" => Operation::ShearX(parameter),
        "shear_y" => Operation::ShearY(parameter),
        "translate_x" => Operation::TranslateX(parameter),
        "translate_y" => Operation::TranslateY(parameter),
        "posterize" => Operation::Posterize(parameter as u8),
        "solarize" => Operation::Solarize(parameter as u16),
        "solarize_add" => Operation::SolarizeAdd(parameter as u8),
        "color" => Operation::Color(parameter),
        "contrast" => Operation::Contrast(parameter),
        "brightness" => Operation::Brightness(parameter),
        "sharpness" => Operation::Sharpness(parameter),
        "gaussian_blur" => Operation::GaussianBlur(parameter),
        "grayscale" => Operation::Grayscale,
        "hue" => Operation::Hue(parameter),
        other => panic!("{other}"),
    }
}

/// All operations at all magnitudes, on six images: every value equal.
#[test]
fn operations_are_pillows_bit_for_bit() {
    let cases = std::fs::read_to_string(fixtures().join("operations.txt")).unwrap();
    let mut wrong = std::collections::BTreeMap::<&str, Vec<&str>>::new();
    let mut seen = 0;
    for case in cases.lines() {
        let [number, name, parameter, filter, expected] = case.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let filter = if filter == "bicubic" { Interpolation::Bicubic } else { Interpolation::Bilinear };
        let out = apply(&image(number), &[operation(name, parameter.parse().unwrap())], [124, 116, 104], filter);
        if format!("{:08x}", crc32fast::hash(&out.data)) != expected {
            wrong.entry(name).or_default().push(case);
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(seen, 1032);
}

/// A grey image of one channel and the same image with three equal ones give the same.
#[test]
fn grey_in_one_channel_is_grey_in_three() {
    let rgb = image("3");
    let grey = Pixels { channels: 1, data: rgb.data.chunks_exact(3).map(|p| p[0]).collect(), ..rgb };
    for operation in [Operation::Equalize, Operation::Rotate(17.0), Operation::Contrast(1.7), Operation::Sharpness(0.2)] {
        let (one, three) = (
            apply(&grey, &[operation], [9; 3], Interpolation::Bicubic),
            apply(&rgb, &[operation], [9; 3], Interpolation::Bicubic),
        );
        assert!(three.data.chunks_exact(3).map(|p| p[0]).eq(one.data.iter().copied()), "{operation:?}");
    }
}

/// The parameter that an operation carries.
fn parameter(operation: Operation) -> f64 {
    match operation {
        Operation::Posterize(bits) => f64::from(bits),
        Operation::Solarize(threshold) => f64::from(threshold),
        Operation::SolarizeAdd(add) => f64::from(add),
        Operation::Rotate(v)
        | Operation::Color(v)
        | Operation::Contrast(v)
        | Operation::Brightness(v)
        | Operation::Sharpness(v)
        | Operation::ShearX(v)
        | Operation::ShearY(v)
        | Operation::TranslateX(v)
        | Operation::TranslateY(v)
        | Operation::GaussianBlur(v)
        | Operation::Hue(v) => v,
        _ => 0.0,
    }
}

fn kind(name: &str) -> Kind {
    const KINDS: [Kind; 21] = [
        Kind::Rotate,
        Kind::Posterize,
        Kind::PosterizeIncreasing,
        Kind::PosterizeOriginal,
        Kind::Solarize,
        Kind::SolarizeIncreasing,
        Kind::SolarizeAdd,
        Kind::Color,
        Kind::ColorIncreasing,
        Kind::Contrast,
        Kind::ContrastIncreasing,
        Kind::Brightness,
        Kind::BrightnessIncreasing,
        Kind::Sharpness,
        Kind::SharpnessIncreasing,
        Kind::ShearX,
        Kind::ShearY,
        Kind::TranslateXRel,
        Kind::TranslateYRel,
        Kind::Desaturate,
        Kind::GaussianBlur,
    ];
    *KINDS.iter().find(|kind| format!("{kind:?}") == name).unwrap_or_else(|| panic!("{name}"))
}

/// Magnitudes mean what they mean to timm, with either sign.
#[test]
fn magnitudes_are_timms() {
    let cases = std::fs::read_to_string(fixtures().join("arguments.txt")).unwrap();
    for case in cases.lines() {
        let words: Vec<&str> = case.split(' ').collect();
        let magnitude: f64 = words[1].parse().unwrap();
        let mut expected: Vec<f64> = words[2..].iter().map(|v| v.parse().unwrap()).collect();
        if words[0] == "Desaturate" {
            // timm's operation turns the argument round.
            expected.iter_mut().for_each(|v| *v = (1.0 - *v).clamp(0.0, 1.0));
        }
        let mut found = std::collections::BTreeSet::new();
        for index in 0..64 {
            // A side of 1 pixel makes a translation a share.
            let drawn = parameter(kind(words[0]).at(magnitude, [1, 1], &mut stream(1, Purpose::Augment, 0, index)));
            assert!(expected.iter().any(|v| (v - drawn).abs() < 1e-12), "{case}: {drawn}");
            found.insert((drawn * 1e9).round() as i64);
        }
        let expected: std::collections::BTreeSet<i64> = expected.iter().map(|v| (v * 1e9).round() as i64).collect();
        assert_eq!(found, expected, "{case}");
    }
    assert_eq!(cases.lines().count(), 168);
}
