//! timm's names for policies: `rand-m9-mstd0.5-inc1`, `original-mstd0.5`, `3a`.

use std::fmt;
use std::str::FromStr;

use rand_chacha::rand_core::Rng;

use super::Operation;
use super::kind::SCALE;
use super::policy::{
    INCREASING, ORIGINAL, ORIGINAL_R, PLAIN, Policy, RandAugment, Spread, THREE, THREE_AUGMENT, V0, V0R, WEIGHTED, WEIGHTED_THREE,
};
use crate::error::DataError;

/// An augmentation policy, named as in timm.
///
/// - `rand`, with any of: `m9` magnitude (10), `n2` operations an image (2), `p0.5` probability of each (0.5), `mstd0.5` normal
///   scatter of the magnitude (0; above 100: uniform from 0 to the magnitude), `mmax30` bound of magnitudes (10), `inc1` the
///   set whose strength grows with the magnitude (0), `tweights`, `t3a`, `t3aw` another set of operations.
/// - `original`, `originalr`, `v0`, `v0r`, `3a`, with `mstd0.5` or nothing.
///
/// Where timm passes over a part that it does not know, here it is an error.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoAugment {
    text: String,
    form: Form,
}

#[derive(Clone, Debug, PartialEq)]
enum Form {
    Rand(RandAugment),
    Policy(Policy),
}

impl AutoAugment {
    /// Draws the operations for an image of `size`, [height, width], and appends them to `out`: see [`RandAugment::draw`] and
    /// [`Policy::draw`] for the words drawn.
    pub fn draw(&self, size: [usize; 2], rng: &mut impl Rng, out: &mut Vec<Operation>) {
        match &self.form {
            Form::Rand(rand) => rand.draw(size, rng, out),
            Form::Policy(policy) => policy.draw(size, rng, out),
        }
    }
}

impl fmt::Display for AutoAugment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for AutoAugment {
    type Err = DataError;

    /// # Errors
    /// [`DataError::Config`] for `auto_augment`, naming the part that is wrong.
    fn from_str(text: &str) -> Result<Self, DataError> {
        let form = parse(text).map_err(|reason| DataError::config("auto_augment", format!("{text:?}: {reason}")))?;
        Ok(Self { text: text.to_owned(), form })
    }
}

fn parse(text: &str) -> Result<Form, String> {
    let mut parts = text.split('-');
    let name = parts.next().unwrap_or_default();
    let parts: Vec<&str> = parts.collect();
    let steps: &[_] = match name {
        "rand" => return parse_rand(&parts).map(Form::Rand),
        "original" => &ORIGINAL,
        "originalr" => &ORIGINAL_R,
        "v0" => &V0,
        "v0r" => &V0R,
        "3a" => &THREE_AUGMENT,
        "augmix" => return Err("AugMix is not supported. Use rand, original, originalr, v0, v0r or 3a".to_owned()),
        _ => return Err(format!("no policy is called {name:?}. There are rand, original, originalr, v0, v0r and 3a")),
    };
    let mut spread = Spread::None;
    let mut seen = Vec::new();
    for part in parts {
        let (key, value) = key_and_value(part, &mut seen)?;
        match key {
            "mstd" => spread = deviation(part, value, false)?,
            _ => return Err(format!("no part {part:?} after {name}; only mstd and a number, such as mstd0.5")),
        }
    }
    Ok(Form::Policy(Policy { steps, spread }))
}

fn parse_rand(parts: &[&str]) -> Result<RandAugment, String> {
    let mut rand = RandAugment {
        magnitude: SCALE,
        spread: Spread::None,
        most: SCALE,
        layers: 2,
        probability: 0.5,
        kinds: &PLAIN,
        weights: None,
    };
    let mut increasing = false;
    let mut set = None;
    let mut seen = Vec::new();
    for part in parts {
        if let Some(name) = part.strip_prefix('t') {
            if set.replace(name).is_some() {
                return Err("two sets of operations (t)".to_owned());
            }
            continue;
        }
        let (key, value) = key_and_value(part, &mut seen)?;
        match key {
            "m" => rand.magnitude = f64::from(whole(part, value)?),
            "n" => rand.layers = whole(part, value)? as usize,
            "inc" => increasing = whole(part, value)? != 0,
            "mmax" => rand.most = Some(whole(part, value)?).filter(|&m| m > 0).map_or(SCALE, f64::from),
            "mstd" => rand.spread = deviation(part, value, true)?,
            "p" => {
                rand.probability = number(part, value)?;
                if rand.probability > 1.0 {
                    return Err(format!("{part:?}: a probability is 0 to 1"));
                }
            }
            _ => {
                return Err(format!(
                    "no part is called {part:?}. There are m, n, p, mstd, mmax and inc, each with a number, and tweights, t3a, t3aw"
                ));
            }
        }
    }
    match set {
        None if increasing => rand.kinds = &INCREASING,
        None => {}
        Some("weights") => (rand.kinds, rand.weights) = (&WEIGHTED.0[..], Some(&WEIGHTED.1[..])),
        Some("3aw") => (rand.kinds, rand.weights) = (&WEIGHTED_THREE.0[..], Some(&WEIGHTED_THREE.1[..])),
        Some("3a") => rand.kinds = &THREE,
        Some(other) => return Err(format!("no set of operations is called {other:?}. There are tweights, t3a and t3aw")),
    }
    if rand.layers == 0 || rand.layers > 64 {
        return Err(format!("n{}: 1 to 64 operations an image are possible", rand.layers));
    }
    if rand.weights.is_some() && rand.layers > rand.kinds.len() {
        return Err(format!("n{}: the weighted set has {} operations, each used once", rand.layers, rand.kinds.len()));
    }
    if rand.magnitude > 100.0 || rand.most > 100.0 {
        return Err("magnitudes are at most 100, and usually at most 10".to_owned());
    }
    Ok(rand)
}

/// Cuts a part before its first digit.
fn key_and_value<'a>(part: &'a str, seen: &mut Vec<&'a str>) -> Result<(&'a str, &'a str), String> {
    let at = part.find(|c: char| c.is_ascii_digit()).unwrap_or(part.len());
    let (key, value) = part.split_at(at);
    if seen.contains(&key) && !key.is_empty() {
        return Err(format!("two parts are called {key:?}"));
    }
    seen.push(key);
    Ok((key, value))
}

fn whole(part: &str, value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{part:?} needs a whole number at its end"))
}

fn number(part: &str, value: &str) -> Result<f64, String> {
    let number: f64 = value.parse().map_err(|_| format!("{part:?} needs a number at its end"))?;
    if number.is_finite() { Ok(number) } else { Err(format!("{part:?} is too large")) }
}

/// RandAugment, not the policies, takes a deviation above 100 to mean a uniform magnitude.
fn deviation(part: &str, value: &str, rand: bool) -> Result<Spread, String> {
    let deviation = number(part, value)?;
    Ok(match deviation {
        _ if deviation == 0.0 => Spread::None,
        _ if rand && deviation > 100.0 => Spread::Uniform,
        _ => Spread::Normal(deviation),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rand(text: &str) -> RandAugment {
        match text.parse::<AutoAugment>().unwrap().form {
            Form::Rand(rand) => rand,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn deits_string() {
        let deit = rand("rand-m9-mstd0.5-inc1");
        assert_eq!((deit.magnitude, deit.spread, deit.most), (9.0, Spread::Normal(0.5), 10.0));
        assert_eq!((deit.layers, deit.probability, deit.kinds), (2, 0.5, &INCREASING[..]));
        assert_eq!("rand-m9-mstd0.5-inc1".parse::<AutoAugment>().unwrap().to_string(), "rand-m9-mstd0.5-inc1");
    }

    #[test]
    fn every_part_counts() {
        assert_eq!(rand("rand").kinds, &PLAIN[..]);
        assert_eq!(rand("rand-inc0").kinds, &PLAIN[..]);
        assert_eq!(rand("rand-n3-p0.25").layers, 3);
        assert_eq!(rand("rand-n3-p0.25").probability, 0.25);
        assert_eq!(rand("rand-m7-mstd101").spread, Spread::Uniform);
        assert_eq!(rand("rand-m20-mmax30").most, 30.0);
        assert_eq!(rand("rand-tweights").weights, Some(&WEIGHTED.1[..]));
        assert_eq!(rand("rand-t3aw-n3").kinds, &WEIGHTED_THREE.0[..]);
        for name in ["original", "originalr", "v0", "v0r", "3a", "v0-mstd0.5"] {
            assert!(matches!(name.parse::<AutoAugment>().unwrap().form, Form::Policy(_)), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("rand-m9-w0", "\"w0\""),
            ("rand-m9-mstd", "\"mstd\" needs a number"),
            ("rand-m9.5", "\"m9.5\" needs a whole number"),
            ("rand-m9-m8", "two parts are called \"m\""),
            ("rand-tfoo", "\"foo\""),
            ("rand-p1.5", "probability"),
            ("rand--m9", "\"\""),
            ("rand-n0", "n0"),
            ("rand-tweights-n16", "15 operations"),
            ("rand-m9-mstd0.5-inc", "\"inc\" needs a whole number"),
            ("augmix-m3", "AugMix is not supported"),
            ("random", "no policy is called \"random\""),
            ("v0-m9", "no part \"m9\""),
            ("", "no policy is called \"\""),
        ] {
            let message = text.parse::<AutoAugment>().unwrap_err().to_string();
            assert!(message.starts_with("auto_augment: ") && message.contains(named), "{text}: {message}");
        }
    }
}
