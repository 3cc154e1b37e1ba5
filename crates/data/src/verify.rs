//! Checking a dataset: every image decoded, in parallel, and what is odd about it counted.

use std::collections::HashMap;
use std::ops::ControlFlow::{Break, Continue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::decode::{decode_rgb, panic_message};
use crate::error::DataError;
use crate::ordered::{in_order, threads};
use crate::source::Source;

/// Longest side above which an image is counted as huge, in pixels.
const HUGE: usize = 5000;
/// Shortest side below which an image is counted as tiny, in pixels.
const TINY: usize = 16;
/// Aspect ratio above which an image is counted as a sliver.
const SLIVER: usize = 8;

/// How a dataset is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Threads; 0: all cores.
    pub threads: usize,
    /// Whether images with the same bytes are looked for, by SHA-256.
    pub duplicates: bool,
}

/// How far the check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Images done.
    pub images: usize,
    /// Images in all.
    pub of: usize,
    /// Broken ones among those done.
    pub broken: usize,
}

/// An image that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BrokenImage {
    /// Its index in the source.
    pub item: usize,
    /// Its name.
    pub name: String,
    /// What is wrong with it, and what to do.
    pub reason: String,
}

/// Images with the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DuplicateImages {
    /// Names of the images.
    pub names: Vec<String>,
    /// Whether they have different labels: at most one of them can be right.
    pub across_classes: bool,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Images in all.
    pub images: usize,
    /// Images that decode.
    pub ok: usize,
    /// Images that do not, in the source's order.
    pub broken: Vec<BrokenImage>,
    /// How many sound images have a property that is rare, by its description.
    pub odd: Vec<(String, usize)>,
    /// Images with the same bytes, if they were looked for.
    pub duplicates: Vec<DuplicateImages>,
    /// Name and number of images of each class, broken ones included.
    pub classes: Vec<(String, usize)>,
    /// What the source tells of itself.
    pub notices: Vec<String>,
    /// Bytes of all images that could be read.
    pub bytes: u64,
    /// Images checked in a second of wall time.
    pub images_per_second: f64,
}

impl VerifyReport {
    /// Whether every image decodes.
    pub fn is_sound(&self) -> bool {
        self.broken.is_empty()
    }
}

/// What one image gave.
struct Checked {
    result: Result<Vec<&'static str>, String>,
    bytes: usize,
    digest: Option<[u8; 32]>,
}

/// Decodes every image of a source as training does, and says which are broken and what is odd.
///
/// The result does not depend on the number of threads. `progress` is called in the caller's thread after each image.
///
/// # Errors
/// [`DataError::Cancelled`] once `stop` is set; [`DataError::Config`] for too many threads; [`DataError::Thread`]. Broken images are no error of the check; see [`VerifyReport::broken`].
pub fn verify(
    source: &dyn Source,
    options: &VerifyOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(VerifyProgress),
) -> Result<VerifyReport, DataError> {
    let start = Instant::now();
    let of = source.len();
    let workers = threads(options.threads)?;
    let mut broken: Vec<BrokenImage> = Vec::new();
    let mut odd: HashMap<&'static str, usize> = HashMap::new();
    let mut seen: HashMap<[u8; 32], Vec<u32>> = HashMap::new();
    let mut classes: Vec<(String, usize)> = source.classes().iter().map(|class| (class.clone(), 0)).collect();
    let mut bytes = 0;
    let work = |buffer: &mut Vec<u8>, item: usize| check(source, item, buffer, options.duplicates);
    let done = in_order(0..of, workers, 64 * workers, Vec::new, work, |item, checked: Checked| {
        if stop.load(Ordering::Relaxed) {
            let detail = format!("{item} of {of} images were checked, {} of them broken", broken.len());
            return Break(DataError::Cancelled { what: "checking the images", detail });
        }
        classes[source.label(item)].1 += 1;
        bytes += checked.bytes as u64;
        match checked.result {
            Ok(properties) => properties.into_iter().for_each(|property| *odd.entry(property).or_default() += 1),
            Err(reason) => broken.push(BrokenImage { item, name: source.name(item), reason }),
        }
        if let Some(digest) = checked.digest {
            seen.entry(digest).or_default().push(item as u32);
        }
        progress(VerifyProgress { images: item + 1, of, broken: broken.len() });
        Continue(())
    })?;
    if let Some(error) = done.break_value() {
        return Err(error);
    }
    let mut odd: Vec<(String, usize)> = odd.into_iter().map(|(property, count)| (property.to_owned(), count)).collect();
    odd.sort_unstable();
    let mut same: Vec<Vec<u32>> = seen.into_values().filter(|items| items.len() > 1).collect();
    same.sort_unstable();
    let group = |items: Vec<u32>| DuplicateImages {
        names: items.iter().map(|&item| source.name(item as usize)).collect(),
        across_classes: items.iter().any(|&item| source.label(item as usize) != source.label(items[0] as usize)),
    };
    Ok(VerifyReport {
        images: of,
        ok: of - broken.len(),
        broken,
        odd,
        duplicates: same.into_iter().map(group).collect(),
        classes,
        notices: source.notices().to_vec(),
        bytes,
        images_per_second: of as f64 / start.elapsed().as_secs_f64().max(1e-9),
    })
}

fn check(source: &dyn Source, item: usize, buffer: &mut Vec<u8>, hash: bool) -> Checked {
    let mut checked = Checked { result: Ok(Vec::new()), bytes: 0, digest: None };
    let looked = catch_unwind(AssertUnwindSafe(|| {
        let bytes = source.read_into(item, buffer).map_err(|e| match e {
            DataError::BadImage { reason, .. } => reason,
            DataError::Io { source, .. } => source.to_string(),
            other => other.to_string(),
        })?;
        checked.bytes = bytes.len();
        checked.digest = (hash && !bytes.is_empty()).then(|| Sha256::digest(bytes).into());
        let pixels = decode_rgb(bytes, "").map_err(|e| match e {
            DataError::BadImage { reason, .. } => reason,
            other => other.to_string(),
        })?;
        let path = source.relative_path(item);
        let mut odd = format(bytes, &path);
        let (short, long) = (pixels.width.min(pixels.height), pixels.width.max(pixels.height));
        for (is, property) in [
            (long > HUGE, "a side longer than 5000 pixels"),
            (short < TINY, "a side shorter than 16 pixels"),
            (long > SLIVER * short, "more than 8 times as long as wide"),
        ] {
            if is {
                odd.push(property);
            }
        }
        Ok(odd)
    }));
    checked.result = looked.unwrap_or_else(|panic| Err(format!("the check failed: {}", panic_message(&*panic))));
    checked
}

/// What is rare about an encoded image, by its header.
fn format(bytes: &[u8], path: &[u8]) -> Vec<&'static str> {
    let mut odd = Vec::new();
    let extension = path.rsplit(|&b| b == b'.').next().unwrap_or_default().to_ascii_lowercase();
    let named = |names: &[&str]| names.iter().any(|name| name.as_bytes() == extension);
    if bytes.starts_with(b"\xff\xd8") {
        if named(&["png", "webp"]) {
            odd.push("a JPEG by content, but not by name");
        }
        match jpeg_frame(bytes) {
            Some((_, 1)) => odd.push("grey JPEG"),
            Some((_, 4)) => odd.push("CMYK or YCCK JPEG"),
            _ => {}
        }
        if matches!(jpeg_frame(bytes), Some((0xc2, _))) {
            odd.push("progressive JPEG");
        }
    } else if bytes.starts_with(b"\x89PNG") {
        if named(&["jpg", "jpeg", "jpe", "webp"]) {
            odd.push("a PNG by content, but not by name");
        }
        // Bit depth and colour type stand in the first chunk.
        match (bytes.get(24), bytes.get(25)) {
            (Some(16), _) => odd.push("PNG of 16 bits a channel"),
            (_, Some(0 | 4)) => odd.push("grey PNG"),
            (_, Some(3)) => odd.push("PNG with a palette"),
            (_, Some(6)) => odd.push("PNG with transparency"),
            _ => {}
        }
    } else if named(&["jpg", "jpeg", "jpe", "png"]) {
        odd.push("a WebP by content, but not by name");
    }
    odd
}

/// Marker and number of components of a JPEG's frame.
fn jpeg_frame(bytes: &[u8]) -> Option<(u8, u8)> {
    let mut at = 2;
    loop {
        let marker = *bytes.get(at + 1)?;
        if bytes[at] != 0xff {
            return None;
        }
        if marker == 0xff {
            at += 1;
            continue;
        }
        // All frames, but not the tables and the arithmetic conditioning that share their range.
        if (0xc0..=0xcf).contains(&marker) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            return Some((marker, *bytes.get(at + 9)?));
        }
        let len = usize::from(*bytes.get(at + 2)?) << 8 | usize::from(*bytes.get(at + 3)?);
        at += 2 + len.max(2);
    }
}
