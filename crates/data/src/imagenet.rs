//! ImageNet-1k: its 1000 classes, the labels of its validation images, and the class lists of its relatives.
//!
//! A class is named by its WordNet id, such as `n01440764`, and labels follow the sorted ids, as in timm and torchvision. The
//! ids of ILSVRC2012's development kit (1 to 1000) are in **another order**: taking them for labels scores about 0.1 %.
//! [`labels_of_ids`] tells both apart by comparing with the known labels of the validation images.
//!
//! `assets/imagenet_classes.tsv` and `assets/imagenet_val_labels.bin` are made by `scripts/reference/imagenet_classes.py`. The
//! names of the classes are WordNet's, © 2006 Princeton University; the notice is [`WORDNET_LICENSE`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use crate::error::DataError;
use crate::source::shards::read_regular;

/// Number of classes.
pub const CLASSES: usize = 1000;
/// Number of training images of ILSVRC2012.
pub const TRAIN_IMAGES: usize = 1_281_167;
/// Number of validation images of ILSVRC2012.
pub const VAL_IMAGES: usize = 50_000;
/// The licence of the class names.
pub const WORDNET_LICENSE: &str = include_str!("../assets/WORDNET-LICENSE");

static TABLE: &str = include_str!("../assets/imagenet_classes.tsv");
static VAL_LABELS: &[u8] = include_bytes!("../assets/imagenet_val_labels.bin");

struct Class {
    wnid: &'static str,
    names: &'static str,
    subsets: &'static str,
}

static PARSED: LazyLock<Vec<Class>> = LazyLock::new(|| {
    let class = |line: &'static str| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().unwrap_or_default();
        Class { wnid: next(), names: next(), subsets: next() }
    };
    TABLE.lines().map(class).collect()
});

/// The 1000 WordNet ids; a label is an index into them.
pub fn wnids() -> &'static [&'static str] {
    static WNIDS: LazyLock<Vec<&str>> = LazyLock::new(|| PARSED.iter().map(|class| class.wnid).collect());
    &WNIDS
}

/// Label of a WordNet id; none if it is not among the 1000.
pub fn index(wnid: &str) -> Option<usize> {
    wnids().binary_search(&wnid).ok()
}

/// Names of a class in WordNet, joined by commas: `"tench, Tinca tinca"` for label 0; none above 999.
pub fn name(label: usize) -> Option<&'static str> {
    PARSED.get(label).map(|class| class.names)
}

/// What to call classes in tables: `"tench, Tinca tinca"` for `"n01440764"`; a class that is no WordNet id of ImageNet's stays as it is.
pub fn names_for(classes: &[String]) -> Vec<String> {
    let shown = |class: &String| index(class).and_then(name).map_or_else(|| class.clone(), str::to_owned);
    classes.iter().map(shown).collect()
}

/// Whether a class is named like a WordNet id of a noun: `n` and eight digits.
pub fn is_wnid(class: &str) -> bool {
    class.len() == 9 && class.starts_with('n') && class[1..].bytes().all(|b| b.is_ascii_digit())
}

/// The 200 labels that ImageNet-A has images of (Hendrycks et al., arXiv:1907.07174), ascending.
pub fn imagenet_a() -> Vec<usize> {
    subset('a')
}

/// The 200 labels that ImageNet-R has images of (Hendrycks et al., arXiv:2006.16241), ascending.
pub fn imagenet_r() -> Vec<usize> {
    subset('r')
}

fn subset(letter: char) -> Vec<usize> {
    (0..PARSED.len()).filter(|&label| PARSED[label].subsets.contains(letter)).collect()
}

/// Place of a validation image of ILSVRC2012 by its file name: 0 for `ILSVRC2012_val_00000001.JPEG`, up to 49,999.
///
/// Folders before the name and the extension do not matter.
pub fn val_index(file: &str) -> Option<usize> {
    let name = file.rsplit(['/', ':']).next()?;
    let digits = name.strip_prefix("ILSVRC2012_val_")?.split('.').next()?;
    let number: usize = (digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())??;
    (1..=VAL_IMAGES).contains(&number).then(|| number - 1)
}

/// Label of a validation image of ILSVRC2012 by its place, see [`val_index`].
///
/// # Panics
/// If `index` is not below [`VAL_IMAGES`].
pub fn val_label(index: usize) -> usize {
    usize::from(u16::from_le_bytes([VAL_LABELS[2 * index], VAL_LABELS[2 * index + 1]]))
}

/// What each number in a list of validation labels means as a label.
///
/// `pairs` are (place of the image, number given for it). The numbers may be labels (0 to 999), the development kit's ids (1 to
/// 1000 in its own order), or any other numbering: each number must always come with one class, and each class with one number.
/// None if that does not hold, so that a list of something else is never taken for labels.
pub fn labels_of_ids(pairs: impl IntoIterator<Item = (usize, u64)>) -> Option<HashMap<u64, usize>> {
    let mut label_of: HashMap<u64, usize> = HashMap::new();
    let mut id_of: HashMap<usize, u64> = HashMap::new();
    for (place, id) in pairs {
        if place >= VAL_IMAGES {
            return None;
        }
        let label = val_label(place);
        if *label_of.entry(id).or_insert(label) != label || *id_of.entry(label).or_insert(id) != id {
            return None;
        }
    }
    Some(label_of)
}

/// Reads `real.json`: for each of the 50,000 validation images, in the order of [`val_index`], the labels that are right (Beyer
/// et al., arXiv:2006.07159). An image with none is left out of the score.
///
/// # Errors
/// [`DataError::Io`], or [`DataError::BadLabels`] if the file is no list of 50,000 lists of labels below 1000.
pub fn real_labels(path: impl AsRef<Path>) -> Result<Vec<Vec<u32>>, DataError> {
    let path = path.as_ref();
    let text = read_regular(path).map_err(|e| DataError::io(path.display().to_string(), e))?;
    let bad = |reason: String| DataError::BadLabels { path: path.to_owned(), reason };
    let labels: Vec<Vec<u32>> = serde_json::from_slice(&text).map_err(|e| {
        bad(format!("not a list of lists of labels: {e}. Take real.json from google-research/reassessed-imagenet"))
    })?;
    if labels.len() != VAL_IMAGES {
        return Err(bad(format!("labels of {} images, but there are {VAL_IMAGES}", labels.len())));
    }
    if let Some((place, label)) = labels.iter().enumerate().find_map(|(i, l)| l.iter().find(|&&l| l >= 1000).map(|l| (i, l))) {
        return Err(bad(format!("label {label} of image {}, but labels are 0 to 999", place + 1)));
    }
    Ok(labels)
}

/// What to tell of a class list that looks like ImageNet's, and of the number of images: nothing for a class list of another kind.
pub(crate) fn notices(classes: &[String], images: usize) -> Vec<String> {
    if classes.is_empty() || !classes.iter().all(|class| is_wnid(class)) {
        return Vec::new();
    }
    let unknown: Vec<&str> = classes.iter().map(String::as_str).filter(|class| index(class).is_none()).collect();
    if !unknown.is_empty() {
        let some: Vec<&str> = unknown.iter().take(3).copied().collect();
        let dots = if unknown.len() > 3 { ", …" } else { "" };
        return vec![format!(
            "{} of {} classes are WordNet ids that ImageNet-1k does not have ({}{dots})",
            unknown.len(),
            classes.len(),
            some.join(", ")
        )];
    }
    if classes.len() < CLASSES {
        return vec![format!(
            "{} of ImageNet's 1000 classes: labels are 0 to {}, not those of models trained on all 1000",
            classes.len(),
            classes.len() - 1
        )];
    }
    match images {
        TRAIN_IMAGES => vec!["ImageNet-1k's 1000 classes and 1,281,167 training images: complete".to_owned()],
        VAL_IMAGES => vec!["ImageNet-1k's 1000 classes and 50,000 validation images: complete".to_owned()],
        _ => vec![format!(
            "ImageNet-1k's 1000 classes, but {images} images, where ILSVRC2012 has 1,281,167 for training and 50,000 for \
             validation: a part of it, or another set with its classes"
        )],
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn classes_are_sorted_and_whole() {
        assert_eq!(wnids().len(), CLASSES);
        assert!(wnids().is_sorted_by(|a, b| a < b) && wnids().iter().all(|wnid| is_wnid(wnid)));
        assert_eq!((name(0), name(999), name(1000)), (Some("tench, Tinca tinca"), name(index("n15075141").unwrap()), None));
        assert_eq!(names_for(&["n01443537".into(), "cat".into()]), ["goldfish, Carassius auratus", "cat"]);
        assert!(PARSED.iter().all(|class| !class.names.is_empty()));
        assert_eq!((imagenet_a().len(), imagenet_r().len()), (200, 200));
        assert_eq!((imagenet_a()[..3].to_vec(), imagenet_r()[..3].to_vec()), (vec![6, 11, 13], vec![1, 2, 4]));
        assert!(WORDNET_LICENSE.contains("Princeton University"));
    }

    /// The first five images: a sea snake, an alp, a Shetland sheepdog, a soup bowl, a cradle.
    #[test]
    fn validation_labels_are_fifty_of_each() {
        assert_eq!([0, 1, 2, 3, 4].map(val_label), [65, 970, 230, 809, 516]);
        let mut counts = [0; CLASSES];
        (0..VAL_IMAGES).for_each(|i| counts[val_label(i)] += 1);
        assert_eq!(counts, [50; CLASSES]);
    }

    #[test]
    fn validation_images_are_known_by_name() {
        assert_eq!(val_index("ILSVRC2012_val_00000001.JPEG"), Some(0));
        assert_eq!(val_index("/data/val.tar:n0/ILSVRC2012_val_00050000.png"), Some(49_999));
        for other in ["ILSVRC2012_val_00050001.JPEG", "ILSVRC2012_val_00000000.JPEG", "ILSVRC2012_val_1.JPEG", "x.jpg", ""] {
            assert_eq!(val_index(other), None, "{other}");
        }
    }

    /// Ids in any one-to-one order are understood; a list with one wrong entry is not.
    #[test]
    fn dynamicvit_17_development_kit_ids_are_no_labels() {
        let id = |label: usize| (label * 7 + 3) as u64 % 1000 + 1;
        let ids: Vec<(usize, u64)> = (0..VAL_IMAGES).map(|i| (i, id(val_label(i)))).collect();
        let labels = labels_of_ids(ids.iter().copied()).unwrap();
        assert_eq!(labels.len(), CLASSES);
        assert!((0..CLASSES).all(|label| labels[&id(label)] == label));
        let mut wrong = ids;
        wrong[100].1 = wrong[101].1;
        assert!(labels_of_ids(wrong).is_none());
    }

    #[test]
    fn class_lists_are_compared_with_imagenets() {
        let all: Vec<String> = wnids().iter().map(|&w| w.to_owned()).collect();
        assert!(notices(&all, VAL_IMAGES)[0].contains("50,000 validation images: complete"));
        assert!(notices(&all, TRAIN_IMAGES)[0].contains("complete"));
        assert!(notices(&all, 49_999)[0].contains("49999 images"));
        assert!(notices(&all[..10], 10)[0].contains("10 of ImageNet's 1000 classes"));
        let mut other = all[..3].to_vec();
        other.push("n99999999".into());
        assert!(notices(&other, 4)[0].contains("n99999999"));
        assert!(notices(&["cat".into(), "n01440764".into()], 2).is_empty());
    }

    #[test]
    fn real_labels_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("real.json");
        let check = |text: String| {
            fs::write(&path, text).unwrap();
            real_labels(&path)
        };
        let lists = |first: &str, n: usize| format!("[{first}{}]", ",[1,999]".repeat(n - 1));
        assert_eq!(check(lists("[]", VAL_IMAGES)).unwrap()[..2], [vec![], vec![1, 999]]);
        for (text, part) in [
            (lists("[1000]", VAL_IMAGES), "label 1000 of image 1"),
            (lists("[]", 3), "labels of 3 images"),
            ("{}".to_owned(), "not a list"),
        ] {
            let message = check(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
