//! Fashion-MNIST inside the program, so that a fresh machine without network or dataset trains on real images.
//!
//! A class-balanced, labelled subset of Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017, arXiv:1708.07747): 28×28 grey PNGs of
//! ten kinds of clothing. The split is not the published one, so published test figures compare only roughly. Fashion-MNIST
//! is © 2017 Zalando SE under the MIT licence; the notice is [`LICENSE`].
//!
//! `assets/fashion_mnist.bin` is made by `scripts/make_embedded.py`. All numbers are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `MHEMBED1` |
//! | 4 + 4 | number of training and of validation images, t and v |
//! | 4 | CRC-32 (as zlib) of everything after these 20 bytes |
//! | t + v | label of each image; training images first |
//! | 4 (t + v + 1) | start of each image in the area that follows, and the area's end |
//! | … | PNG files, one after the other |

use std::borrow::Cow;
use std::sync::OnceLock;

use super::Source;
use crate::error::DataError;

static ASSET: &[u8] = include_bytes!("../../assets/fashion_mnist.bin");

/// The licence of the images.
pub const LICENSE: &str = include_str!("../../assets/FASHION-MNIST-LICENSE");

/// Names of the ten classes, by label.
pub const CLASSES: [&str; 10] =
    ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"];

const MAGIC: &[u8; 8] = b"MHEMBED1";
const HEADER: usize = 20;

/// One split of the embedded dataset. Opening costs one checksum of 6 MB per process.
pub struct FashionMnist {
    split: &'static str,
    classes: Vec<String>,
    labels: &'static [u8],
    /// Little-endian starts, one more than labels.
    starts: &'static [u8],
    images: &'static [u8],
}

/// The asset taken apart.
struct Parts {
    train: usize,
    labels: &'static [u8],
    starts: &'static [u8],
    images: &'static [u8],
}

impl FashionMnist {
    /// The training images.
    ///
    /// # Errors
    /// [`DataError::Embedded`] if the program file was damaged.
    pub fn train() -> Result<Self, DataError> {
        let parts = checked()?;
        Ok(Self::split("train", parts, 0, parts.train))
    }

    /// The held-out images; none of them is among the training images.
    ///
    /// # Errors
    /// As [`FashionMnist::train`].
    pub fn val() -> Result<Self, DataError> {
        let parts = checked()?;
        Ok(Self::split("val", parts, parts.train, parts.labels.len()))
    }

    fn split(split: &'static str, parts: &Parts, from: usize, to: usize) -> Self {
        Self {
            split,
            classes: CLASSES.map(str::to_owned).to_vec(),
            labels: &parts.labels[from..to],
            starts: &parts.starts[4 * from..4 * (to + 1)],
            images: parts.images,
        }
    }

    fn start(&self, index: usize) -> usize {
        number(self.starts, 4 * index)
    }
}

fn number(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

fn checked() -> Result<&'static Parts, DataError> {
    static PARTS: OnceLock<Result<Parts, String>> = OnceLock::new();
    let parts = PARTS.get_or_init(|| parse(ASSET));
    parts.as_ref().map_err(|reason| DataError::Embedded { reason: reason.clone() })
}

fn parse(asset: &'static [u8]) -> Result<Parts, String> {
    if asset.len() < HEADER || &asset[..8] != MAGIC {
        return Err("it does not begin with MHEMBED1".to_owned());
    }
    let (train, val) = (number(asset, 8), number(asset, 12));
    let body = &asset[HEADER..];
    let (expected, found) = (number(asset, 16) as u32, crc32(body));
    if expected != found {
        return Err(format!("its checksum is {found:08x}, not {expected:08x}"));
    }
    let count = train.saturating_add(val);
    let fixed = count.saturating_add(count.saturating_add(1).saturating_mul(4));
    if fixed > body.len() {
        return Err(format!("{count} images do not fit into {} bytes", body.len()));
    }
    let (labels, rest) = body.split_at(count);
    let (starts, images) = rest.split_at(4 * (count + 1));
    if let Some(label) = labels.iter().find(|&&label| usize::from(label) >= CLASSES.len()) {
        return Err(format!("label {label} of {} classes", CLASSES.len()));
    }
    let ordered = (0..count).all(|i| number(starts, 4 * i) <= number(starts, 4 * (i + 1)));
    if !ordered || number(starts, 4 * count) != images.len() {
        return Err("its offsets are out of order".to_owned());
    }
    Ok(Parts { train, labels, starts, images })
}

/// CRC-32 with the reflected polynomial 0xEDB88320, as in zlib and PNG.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0u32; 256];
        let mut i = 0;
        while i < 256 {
            let mut value = i as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { (value >> 1) ^ 0xEDB8_8320 } else { value >> 1 };
                bit += 1;
            }
            table[i] = value;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0u32, |crc, &b| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ b)])
}

impl Source for FashionMnist {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> usize {
        usize::from(self.labels[index])
    }

    fn name(&self, index: usize) -> String {
        assert!(index < self.labels.len(), "item {index} of {}", self.labels.len());
        format!("fashion-mnist/{}/{index:05}.png", self.split)
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        assert!(index < self.labels.len(), "item {index} of {}", self.labels.len());
        Ok(Cow::Borrowed(&self.images[self.start(index)..self.start(index + 1)]))
    }

    fn size(&self, index: usize) -> Option<u64> {
        Some((self.start(index + 1) - self.start(index)) as u64)
    }

    fn notices(&self) -> &[String] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32_is_zlibs() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let mut damaged = ASSET.to_vec();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        let reason = parse(damaged.leak()).err().unwrap();
        assert!(reason.contains("checksum"), "{reason}");
        let reason = parse(&ASSET[..100]).err().unwrap();
        assert!(reason.contains("checksum"), "{reason}");
        assert!(parse(b"").is_err());
    }

    #[test]
    fn a_header_that_promises_too_much_is_found() {
        let mut asset = MAGIC.to_vec();
        asset.extend(u32::MAX.to_le_bytes());
        asset.extend(u32::MAX.to_le_bytes());
        asset.extend(crc32(b"").to_le_bytes());
        let reason = parse(asset.leak()).err().unwrap();
        assert!(reason.contains("do not fit"), "{reason}");
    }
}
