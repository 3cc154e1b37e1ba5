//! TensorBoard's `Event` messages (`tensorboard/compat/proto/{event,summary,histogram,tensor}.proto`), written by hand: eight message types
//! of a form that has not changed since 2016 need neither a protobuf compiler nor a library.
//!
//! The summaries are of the kinds that PyTorch's `SummaryWriter` uses, which every reader of such files understands.

use super::histogram::Histogram;
use super::page::Page;

/// A protobuf message being written.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, wire: u64) {
        self.varint(field << 3 | wire);
    }

    fn int(mut self, field: u64, value: u64) -> Self {
        self.key(field, 0);
        self.varint(value);
        self
    }

    fn double(mut self, field: u64, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u64, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn message(self, field: u64, value: &Message) -> Self {
        self.bytes(field, &value.0)
    }

    fn doubles(self, field: u64, values: &[f64]) -> Self {
        let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(field, &packed)
    }
}

// Numbers of the fields that are read back.
const STEP: u64 = 2;
const SUMMARY: u64 = 5;
const VALUE: u64 = 1;
const SIMPLE_VALUE: u64 = 2;
const IMAGE: u64 = 4;
const HISTOGRAM: u64 = 5;
const TENSOR: u64 = 8;
const STRING_VALUES: u64 = 8;

/// The first record of a file.
pub(super) fn version(time: f64) -> Vec<u8> {
    Message::default().double(1, time).bytes(3, b"brain.Event:2").0
}

fn event(time: f64, step: u64, values: impl Iterator<Item = Message>) -> Vec<u8> {
    let summary = values.fold(Message::default(), |summary, value| summary.message(VALUE, &value));
    Message::default().double(1, time).int(STEP, step).message(SUMMARY, &summary).0
}

fn value(tag: &str) -> Message {
    Message::default().bytes(1, tag.as_bytes())
}

/// Numbers of one step. They are rounded to f32, as TensorBoard's scalars are.
pub(super) fn scalars<'a>(time: f64, step: u64, scalars: impl Iterator<Item = (&'a str, f64)>) -> Vec<u8> {
    event(time, step, scalars.map(|(tag, number)| value(tag).float(SIMPLE_VALUE, number as f32)))
}

/// Distributions at one step.
pub(super) fn histograms(time: f64, step: u64, histograms: impl Iterator<Item = (String, Histogram)>) -> Vec<u8> {
    let message = |(tag, histogram): (String, Histogram)| {
        let Histogram { min, max, count, sum, sum_of_squares, limits, counts } = histogram;
        let numbers = Message::default().double(1, min).double(2, max).double(3, count).double(4, sum).double(5, sum_of_squares);
        value(&tag).message(HISTOGRAM, &numbers.doubles(6, &limits).doubles(7, &counts))
    };
    event(time, step, histograms.map(message))
}

/// A picture at step 0.
pub(super) fn image(time: f64, tag: &str, page: &Page) -> Vec<u8> {
    let Page { width, height, png } = page;
    // 3: RGB.
    let image = Message::default().int(1, *height as u64).int(2, *width as u64).int(3, 3).bytes(4, png);
    event(time, 0, std::iter::once(value(tag).message(IMAGE, &image)))
}

/// A text in Markdown at step 0.
pub(super) fn text(time: f64, tag: &str, markdown: &str) -> Vec<u8> {
    // 7: strings. One without any dimension, which TensorBoard shows as a text and not as a table.
    let tensor = Message::default().int(1, 7).message(2, &Message::default()).bytes(STRING_VALUES, markdown.as_bytes());
    let plugin = Message::default().message(1, &Message::default().bytes(1, b"text"));
    event(time, 0, std::iter::once(value(tag).message(TENSOR, &tensor).message(9, &plugin)))
}

/// What a stored event holds, as far as reading one back needs.
#[derive(Debug, PartialEq)]
pub(super) enum Holds<'a> {
    /// The version of the file.
    Version,
    /// Distributions at a step.
    Histograms(u64),
    /// A picture.
    Image,
    /// A text.
    Text(&'a [u8]),
    /// Numbers.
    Scalars,
}

/// Reads what an event holds; `None` where it is none that this program writes.
pub(super) fn holds(event: &[u8]) -> Option<Holds<'_>> {
    let mut step = 0;
    for (field, content) in Fields(event) {
        match (field, content) {
            (3, Content::Bytes(_)) => return Some(Holds::Version),
            (STEP, Content::Number(number)) => step = number,
            (SUMMARY, Content::Bytes(summary)) => {
                let (_, first) = Fields(summary).next()?;
                for (field, content) in Fields(first.bytes()?) {
                    match (field, content) {
                        (SIMPLE_VALUE, _) => return Some(Holds::Scalars),
                        (HISTOGRAM, _) => return Some(Holds::Histograms(step)),
                        (IMAGE, _) => return Some(Holds::Image),
                        (TENSOR, Content::Bytes(tensor)) => {
                            let text = Fields(tensor).find(|(field, _)| *field == STRING_VALUES)?.1;
                            return text.bytes().map(Holds::Text);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    None
}

/// The fields of a message, up to one that is damaged.
struct Fields<'a>(&'a [u8]);

#[derive(Debug, Clone, Copy)]
enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Content<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) => None,
        }
    }
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Content<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.varint()?;
        let content = match key & 7 {
            0 => Content::Number(self.varint()?),
            1 => Content::Bytes(self.take(8)?),
            2 => {
                let length = self.varint()?;
                Content::Bytes(self.take(length)?)
            }
            5 => Content::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((key >> 3, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that TensorBoard's own protobuf classes (tensorboard 2.21) write for the same event.
    #[test]
    fn a_scalar_is_encoded_as_tensorboard_encodes_it() {
        let bytes = scalars(1.5, 300, [("train/loss", 0.25)].into_iter());
        let expected = [
            0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x10, 0xac, 0x02, 0x2a, 0x13, 0x0a, 0x11, 0x0a, 0x0a, b't', b'r', b'a', b'i',
            b'n', b'/', b'l', b'o', b's', b's', 0x15, 0, 0, 0x80, 0x3e,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn what_is_written_is_recognised() {
        let page = Page { width: 1, height: 1, png: vec![1, 2, 3] };
        let histogram = Histogram::of(&[1.0, 2.0]);
        assert_eq!(holds(&version(1.0)), Some(Holds::Version));
        assert_eq!(holds(&scalars(1.0, 7, [("a", 0.1), ("b", 0.2)].into_iter())), Some(Holds::Scalars));
        assert_eq!(holds(&histograms(1.0, 1 << 40, [("w".into(), histogram)].into_iter())), Some(Holds::Histograms(1 << 40)));
        assert_eq!(holds(&image(1.0, "samples", &page)), Some(Holds::Image));
        assert_eq!(holds(&text(1.0, "config", "a = 1")), Some(Holds::Text(b"a = 1")));
        assert_eq!(holds(b""), None);
        // Damage is no panic.
        let whole = text(1.0, "config", "a = 1");
        for length in 0..whole.len() {
            assert_eq!(holds(&whole[..length]), None);
        }
    }
}
