//! What is in single images.

use std::path::{Path, PathBuf};

use burn::tensor::{FloatDType, Tensor, TensorData};
use manyheads_data::{Purpose, decode_rgb, imagenet, stream};

use crate::config::Loaded;
use crate::dataset::eval_transform;
use crate::engine::device::{self, DeviceName};
use crate::engine::protocol::Protocol;
use crate::error::{Error, Result};
use crate::log::progress::Console;
use crate::network::{Naming, Selection};

/// Images to look at, and the network to do so.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Image files.
    pub images: &'a [PathBuf],
    /// A weights file, a folder that holds one, or the folder of a run.
    pub weights: &'a Path,
    /// How to read the weights.
    pub naming: Naming<'a>,
    /// The network's configuration.
    pub config: Option<&'a Path>,
    /// Settings that win over the configuration.
    pub sets: &'a [String],
    /// The device, where it is not the configuration's.
    pub device: Option<DeviceName>,
}

/// A class with its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Best {
    /// The network's class.
    pub index: usize,
    /// What it is called.
    pub name: String,
    /// Its share of the softmax.
    pub probability: f64,
}

/// What the network says of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The image.
    pub path: PathBuf,
    /// The five best classes, best first.
    pub top5: Vec<Best>,
    /// The network's output for every class.
    pub logits: Vec<f32>,
}

/// Looks at each image in turn and hands the result to `each`.
///
/// # Errors
/// Where the weights do not fit, an image cannot be read or decoded, or `each` fails.
pub fn run(request: &Request<'_>, each: &mut dyn FnMut(Prediction) -> Result<()>) -> Result<()> {
    let console = Console::default();
    let note = &mut |text: &str| console.say(format!("note: {text}"));
    let selection = Selection::of(request.weights, request.config, request.naming, request.sets)?;
    let loaded = selection.configuration(false, note)?;
    let open = device::open(&loaded.config, request.device)?;
    open.computes(loaded.config.eval.precision, "eval.precision")?;
    if let Some(notice) = &open.notice {
        note(notice);
    }
    let network = selection.open(loaded, &open.device, note)?;
    let loaded = &network.loaded;
    let names = class_names(&network.names, &network.labels, loaded.architecture.classes);
    note(&preparation(loaded));
    let transform = eval_transform(&loaded.config, &loaded.architecture);
    transform.validate()?;
    let [channels, height, width] = transform.sample_shape();
    let compute = loaded.config.eval.precision.float();
    for path in request.images {
        let bytes = crate::files::read(path)?;
        let pixels = decode_rgb(&bytes, &path.to_string_lossy())?;
        let mut values = vec![0.0; channels * height * width];
        // The evaluation transform draws nothing.
        transform.apply(&pixels, &mut stream(0, Purpose::Augment, 0, 0), &mut values)?;
        let image = Tensor::<4>::from_data(TensorData::new(values, [1, channels, height, width]), &open.device);
        let failed = |e: String| Error::Failed(format!("{}: the device failed: {e}", path.display()));
        let logits: Vec<f32> = network
            .model
            .forward(image.cast(compute), None)
            .cast(FloatDType::F32)
            .try_into_data()
            .map_err(|e| failed(e.to_string()))?
            .try_into_vec()
            .map_err(|e| failed(e.to_string()))?;
        if !logits.iter().all(|value| value.is_finite()) {
            return Err(Error::Failed(format!(
                "the model's output for {} is not finite: the weights or the image's pixels are broken",
                path.display()
            )));
        }
        let plain = Protocol::default();
        let best = plain.best(&logits, 5);
        let probabilities = plain.probabilities(&logits, &best);
        let top5 = best
            .iter()
            .zip(probabilities)
            .map(|((index, _), probability)| Best { index: *index, name: names[*index].clone(), probability })
            .collect();
        each(Prediction { path: path.clone(), top5, logits })?;
    }
    Ok(())
}

/// What people call the network's classes: the file's labels, the names its training had, ImageNet's for 1,000 unnamed classes, else
/// numbers.
pub(crate) fn class_names(names: &[String], labels: &[String], classes: usize) -> Vec<String> {
    if labels.len() == classes {
        return labels.to_vec();
    }
    if names.len() == classes {
        return imagenet::names_for(names);
    }
    (0..classes)
        .map(|class| match imagenet::name(class) {
            Some(name) if classes == imagenet::wnids().len() => name.to_owned(),
            _ => format!("class {class}"),
        })
        .collect()
}

/// How images are prepared, in a line.
pub(crate) fn preparation(loaded: &Loaded) -> String {
    let (eval, data) = (&loaded.config.eval, &loaded.config.data);
    let [height, width] = loaded.architecture.image;
    let word = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    format!(
        "images are resized to {height} × {width} by {}, crop {} {}, mean {:?}, deviation {:?}",
        word(&eval.interpolation()),
        word(&eval.crop_mode()),
        eval.crop_pct(),
        data.mean(),
        data.std()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_called_by_their_own_names_then_imagenets_then_numbers() {
        let own = ["cat", "n01440764"].map(String::from);
        assert_eq!(class_names(&own, &[], 2), ["cat", "tench, Tinca tinca"]);
        assert_eq!(class_names(&own, &["Cat", "Fish"].map(String::from), 2), ["Cat", "Fish"]);
        assert_eq!(class_names(&[], &[], 1000)[0], "tench, Tinca tinca");
        assert_eq!(class_names(&[], &[], 3), ["class 0", "class 1", "class 2"]);
    }
}
