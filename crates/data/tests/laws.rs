//! What is drawn against what timm and torchvision draw, over 100,000 draws each: frequencies by chi-square, parameters by
//! Kolmogorov and Smirnov's distance, both such that chance alone passes a bound once in a thousand. Seeds are fixed, so that
//! the answer is the same each time. `laws.txt` is made by `scripts/reference/data_augment.py`.

use std::collections::BTreeMap;
use std::path::Path;

use manyheads_data::augment::{AutoAugment, ColorJitter, Fill, Operation, RandomErasing};
use manyheads_data::mix::{Mix, MixKind};
use manyheads_data::{Purpose, RandomResizedCrop, stream};

const DRAWS: u64 = 100_000;

struct Laws(Vec<Vec<String>>);

impl Laws {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/augment/laws.txt");
        let text = std::fs::read_to_string(path).unwrap();
        Self(text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect())
    }

    /// The rest of each line that begins with these words.
    fn of(&self, words: &[&str]) -> Vec<&[String]> {
        let found: Vec<&[String]> = self
            .0
            .iter()
            .filter(|line| line.len() > words.len() && line.iter().zip(words).all(|(a, b)| a == b))
            .map(|line| &line[words.len()..])
            .collect();
        assert!(!found.is_empty(), "{words:?}");
        found
    }

    fn counts(&self, words: &[&str]) -> BTreeMap<String, f64> {
        self.of(words).into_iter().map(|rest| (rest[0].clone(), rest[1].parse().unwrap())).collect()
    }
}

/// Two samples of counts, of which each sum is given by its draws.
fn same_frequencies(what: &str, ours: &BTreeMap<String, f64>, theirs: &BTreeMap<String, f64>) {
    let keys: std::collections::BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let (n, m) = (ours.values().sum::<f64>(), theirs.values().sum::<f64>());
    let (from, to) = ((m / n).sqrt(), (n / m).sqrt());
    let get = |counts: &BTreeMap<String, f64>, key: &String| counts.get(key).copied().unwrap_or(0.0);
    let chi2: f64 = keys
        .iter()
        .map(|key| (get(ours, key) * from - get(theirs, key) * to).powi(2) / (get(ours, key) + get(theirs, key)))
        .sum();
    // The 0.999 quantile by Wilson and Hilferty's formula.
    let degrees = (keys.len() - 1).max(1) as f64;
    let bound = degrees * (1.0 - 2.0 / (9.0 * degrees) + 3.0902 * (2.0 / (9.0 * degrees)).sqrt()).powi(3);
    assert!(chi2 < bound, "{what}: chi-square {chi2} of {degrees} degrees, {ours:?} {theirs:?}");
}

/// Our sample against quantiles of theirs, at equal steps from 0 to 1, of `line`: number and quantiles.
fn same_law(what: &str, ours: &mut [f64], line: &[String]) {
    let number: f64 = line[0].parse().unwrap();
    let quantiles: Vec<f64> = line[1..].iter().map(|v| v.parse().unwrap()).collect();
    ours.sort_by(f64::total_cmp);
    let n = ours.len() as f64;
    let bound = 1.9495 * (1.0 / n + 1.0 / number).sqrt();
    // Values may be whole numbers, where a quantile stands for a range of probabilities; and rounded a little differently.
    let slack = |v: f64| 1e-9 * v.abs().max(1.0);
    for (i, &quantile) in quantiles.iter().enumerate().skip(1).take(quantiles.len() - 2) {
        let p = i as f64 / (quantiles.len() - 1) as f64;
        let below = ours.partition_point(|&v| v < quantile - slack(quantile)) as f64 / n;
        let up_to = ours.partition_point(|&v| v <= quantile + slack(quantile)) as f64 / n;
        assert!(
            below <= p + bound && up_to >= p - bound,
            "{what}: {below} to {up_to} of ours are below {quantile}, where theirs are {p}"
        );
    }
}

/// Name of an operation and its parameter.
fn named(operation: Operation) -> (&'static str, Option<f64>) {
    match operation {
        Operation::AutoContrast => ("AutoContrast", None),
        Operation::Equalize => ("Equalize", None),
        Operation::Invert => ("Invert", None),
        Operation::Rotate(v) => ("Rotate", Some(v)),
        Operation::Posterize(v) => ("Posterize", Some(f64::from(v))),
        Operation::Solarize(v) => ("Solarize", Some(f64::from(v))),
        Operation::SolarizeAdd(v) => ("SolarizeAdd", Some(f64::from(v))),
        Operation::Color(v) => ("Color", Some(v)),
        Operation::Contrast(v) => ("Contrast", Some(v)),
        Operation::Brightness(v) => ("Brightness", Some(v)),
        Operation::Sharpness(v) => ("Sharpness", Some(v)),
        Operation::ShearX(v) => ("ShearX", Some(v)),
        Operation::ShearY(v) => ("ShearY", Some(v)),
        Operation::TranslateX(v) => ("TranslateX", Some(v)),
        Operation::TranslateY(v) => ("TranslateY", Some(v)),
        Operation::GaussianBlur(v) => ("GaussianBlur", Some(v)),
        Operation::Grayscale => ("Grayscale", None),
        Operation::Hue(v) => ("Hue", Some(v)),
    }
}

/// timm's name of an operation to ours.
fn plain(name: &str) -> &str {
    let name = if name == "Desaturate" { "Color" } else { name };
    ["Increasing", "Original", "Rel", "Rand"].iter().fold(name, |name, end| name.strip_suffix(end).unwrap_or(name))
}

#[test]
fn policies_draw_as_timms() {
    let laws = Laws::read();
    for (number, config) in
        ["rand-m9-mstd0.5-inc1", "rand-m7-n3-mstd101-p0.7", "rand-tweights-m9-mstd0.5", "v0-mstd0.5", "original", "3a"]
            .into_iter()
            .enumerate()
    {
        let policy: AutoAugment = config.parse().unwrap();
        let (mut counts, mut lengths) = (BTreeMap::<String, f64>::new(), BTreeMap::<String, f64>::new());
        let mut values = BTreeMap::<&str, Vec<f64>>::new();
        let mut operations = Vec::new();
        for index in 0..DRAWS {
            operations.clear();
            // A side of 1 pixel makes translations shares.
            policy.draw([1, 1], &mut stream(number as u64, Purpose::Augment, 0, index), &mut operations);
            *lengths.entry(operations.len().to_string()).or_default() += 1.0;
            for &operation in &operations {
                let (name, value) = named(operation);
                *counts.entry(name.to_owned()).or_default() += 1.0;
                values.entry(name).or_default().extend(value);
            }
        }
        let mut theirs = BTreeMap::<String, f64>::new();
        for (name, count) in laws.counts(&["count", config]) {
            *theirs.entry(plain(&name).to_owned()).or_default() += count;
        }
        same_frequencies(config, &counts, &theirs);
        same_frequencies(config, &lengths, &laws.counts(&["length", config]));
        for line in laws.of(&["values", config]) {
            same_law(&format!("{config}, {}", line[0]), values.get_mut(plain(&line[0])).unwrap(), &line[1..]);
        }
    }
}

#[test]
fn crops_are_drawn_as_timms() {
    let laws = Laws::read();
    let crop = RandomResizedCrop::default();
    let crops: Vec<_> = (0..DRAWS).map(|i| crop.draw(500, 375, &mut stream(20, Purpose::Augment, 0, i))).collect();
    let check = |name: &str, value: &dyn Fn(&manyheads_data::transform::resize::Rect) -> f64| {
        same_law(name, &mut crops.iter().map(value).collect::<Vec<f64>>(), laws.of(&["crop", name])[0]);
    };
    check("area", &|r| (r.width * r.height) as f64 / (500.0 * 375.0));
    check("ratio", &|r| (r.width as f64 / r.height as f64).ln());
    check("row", &|r| r.y as f64);
    check("column", &|r| r.x as f64);
}

#[test]
fn jitter_is_drawn_as_torchvisions() {
    let laws = Laws::read();
    let jitter = ColorJitter { brightness: 0.4, contrast: 0.3, saturation: 0.2, hue: 0.1 };
    let mut orders = BTreeMap::<String, f64>::new();
    let mut values = BTreeMap::<&str, Vec<f64>>::new();
    for index in 0..DRAWS {
        let mut operations = Vec::new();
        jitter.draw(&mut stream(21, Purpose::Augment, 0, index), &mut operations);
        let mut order = String::new();
        for operation in operations {
            let (digit, name, value) = match operation {
                Operation::Brightness(v) => ('0', "brightness", v),
                Operation::Contrast(v) => ('1', "contrast", v),
                Operation::Color(v) => ('2', "saturation", v),
                Operation::Hue(v) => ('3', "hue", v),
                other => panic!("{other:?}"),
            };
            order.push(digit);
            values.entry(name).or_default().push(value);
        }
        *orders.entry(order).or_default() += 1.0;
    }
    assert_eq!(orders.len(), 24);
    same_frequencies("order", &orders, &laws.counts(&["order"]));
    for (name, values) in &mut values {
        same_law(name, values, laws.of(&["jitter", name])[0]);
    }
}

#[test]
fn erasing_is_drawn_as_timms() {
    let laws = Laws::read();
    for count in [1usize, 3] {
        let erasing = RandomErasing { count, fill: Fill::Const, ..RandomErasing::default() };
        let text = count.to_string();
        let mut numbers = BTreeMap::<String, f64>::new();
        let mut boxes = Vec::new();
        for index in 0..DRAWS {
            let erased = erasing.draw([224, 224], &mut stream(22, Purpose::Augment, count as u64, index));
            *numbers.entry(erased.0.len().to_string()).or_default() += 1.0;
            boxes.extend(erased.0);
        }
        same_frequencies("boxes", &numbers, &laws.counts(&["boxes", &text]));
        let check = |name: &str, value: &dyn Fn(&manyheads_data::transform::resize::Rect) -> f64| {
            same_law(name, &mut boxes.iter().map(value).collect::<Vec<f64>>(), laws.of(&["erased", &text, name])[0]);
        };
        check("area", &|r| (r.width * r.height) as f64 / (224.0 * 224.0));
        check("aspect", &|r| (r.height as f64 / r.width as f64).ln());
        check("row", &|r| r.y as f64);
        check("column", &|r| r.x as f64);
    }
}

#[test]
fn mixes_are_drawn_as_timms() {
    let laws = Laws::read();
    let mix = Mix { probability: 0.9, ..Mix::default() };
    let mut kinds = BTreeMap::<String, f64>::new();
    let (mut mixed, mut cut) = (Vec::new(), Vec::new());
    for group in 0..DRAWS {
        let draw = mix.draw(23, 0, group, [224, 224]);
        let kind = match draw.kind {
            MixKind::None => "none",
            MixKind::Mixup => {
                mixed.push(draw.lambda);
                "mixup"
            }
            MixKind::CutMix(_) => {
                cut.push(draw.lambda);
                "cutmix"
            }
        };
        *kinds.entry(kind.to_owned()).or_default() += 1.0;
    }
    same_frequencies("mix", &kinds, &laws.counts(&["mix"]));
    same_law("mixup", &mut mixed, laws.of(&["lambda", "mixup"])[0]);
    same_law("cutmix", &mut cut, laws.of(&["lambda", "cutmix"])[0]);
}
