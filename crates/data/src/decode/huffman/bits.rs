//! Bits of a scan, the first one in a byte's highest place (ITU-T T.81, annex F.2.2.5).

/// Copies the entropy-coded bytes from `from` to the next marker, without the zeros stuffed behind bytes of 255, to the front
/// of `out`. Returns how many they are, and where the marker's first byte is, or the file's end.
pub(super) fn unstuff(file: &[u8], from: usize, out: &mut Vec<u8>) -> (usize, usize) {
    /// Bytes copied at once; those behind a byte of 255 are overwritten by what follows it.
    const STEP: usize = 16;
    let most = file.len().saturating_sub(from) + STEP;
    if out.len() < most {
        out.resize(most, 0);
    }
    let (mut at, mut len) = (from, 0);
    loop {
        while let Some((low, high)) = file.get(at..).and_then(<[u8]>::first_chunk::<STEP>).map(halves) {
            out[len..len + 8].copy_from_slice(&low.to_le_bytes());
            out[len + 8..len + STEP].copy_from_slice(&high.to_le_bytes());
            let plain = match (full_bytes(low), full_bytes(high)) {
                (0, 0) => STEP,
                (0, high) => 8 + (high.trailing_zeros() / 8) as usize,
                (low, _) => (low.trailing_zeros() / 8) as usize,
            };
            at += plain;
            len += plain;
            if plain < STEP {
                break;
            }
        }
        while let Some(&byte) = file.get(at).filter(|&&byte| byte != 0xff) {
            out[len] = byte;
            at += 1;
            len += 1;
            if file.len() - at >= STEP {
                break;
            }
        }
        match (file.get(at), file.get(at + 1)) {
            (Some(0xff), Some(0)) => {
                out[len] = 0xff;
                at += 2;
                len += 1;
            }
            (Some(0xff), _) | (None, _) => return (len, at),
            _ => {}
        }
    }
}

fn halves(bytes: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*bytes);
    (both as u64, (both >> 64) as u64)
}

/// Not zero if a byte is 255; the lowest bit set lies in the first such byte.
fn full_bytes(word: u64) -> u64 {
    let zero_where_full = !word;
    zero_where_full.wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_8080
}

/// A place between two bits of an unstuffed segment.
///
/// Behind the segment's end it goes on with zeros; whether too much was taken is asked afterwards, by [`Bits::taken`].
#[derive(Clone, Copy, Default)]
pub(super) struct Bits {
    /// The bits ahead, from the highest place. Those below the first `left` are right or zero.
    buffer: u64,
    left: u32,
    /// The byte that follows the `left` bits.
    at: usize,
}

impl Bits {
    /// Bits there are at least after [`Bits::refill`].
    pub(super) const REFILLED: u32 = 56;

    #[inline(always)]
    pub(super) fn refill(&mut self, segment: &[u8]) {
        let word = match segment.get(self.at..).and_then(<[u8]>::first_chunk) {
            Some(bytes) => u64::from_be_bytes(*bytes),
            None => last_word(segment, self.at),
        };
        self.buffer |= word >> self.left;
        self.at += ((63 - self.left) / 8) as usize;
        self.left |= Self::REFILLED;
    }

    /// The next `count` bits, 1 to [`Bits::REFILLED`].
    #[inline(always)]
    pub(super) fn look(&self, count: u32) -> usize {
        (self.buffer >> (64 - count)) as usize
    }

    /// Goes on by at most the bits that there are.
    #[inline(always)]
    pub(super) fn skip(&mut self, count: u32) {
        self.buffer <<= count & 63;
        self.left = self.left.wrapping_sub(count);
    }

    /// The next `count` bits, 1 to 16, as the number that they code (T.81, figure F.12: EXTEND).
    #[inline(always)]
    pub(super) fn value(&mut self, count: u32) -> i32 {
        let bits = (self.buffer >> (64 - count)) as i32;
        self.skip(count);
        extend(bits, count)
    }

    /// Bits taken since the segment's beginning.
    pub(super) fn taken(&self) -> usize {
        8 * self.at - self.left as usize
    }
}

/// What is left of a segment, then zeros.
#[cold]
fn last_word(segment: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(rest) = segment.get(at..) {
        word.iter_mut().zip(rest).for_each(|(out, &byte)| *out = byte);
    }
    u64::from_be_bytes(word)
}

/// The number that `count` bits, 1 to 16, stand for: those that begin with a zero are negative.
#[inline(always)]
pub(super) fn extend(bits: i32, count: u32) -> i32 {
    if bits < 1 << (count - 1) { bits - (1 << count) + 1 } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte by byte.
    fn plainly(file: &[u8], from: usize) -> (Vec<u8>, usize) {
        let (mut out, mut at) = (Vec::new(), from);
        while let Some(&byte) = file.get(at) {
            match (byte, file.get(at + 1)) {
                (0xff, Some(0)) => at += 2,
                (0xff, _) => break,
                _ => at += 1,
            }
            out.push(byte);
        }
        (out, at)
    }

    #[test]
    fn stuffed_zeros_are_left_out_wherever_they_lie() {
        let mut state = 1u32;
        for case in 0..4000 {
            let bytes: Vec<u8> = (0..case % 70)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    [0, 0, 0xff, 0xfe, 1, 0x7f, 0x80, (state >> 8) as u8][(state >> 28) as usize % 8]
                })
                .collect();
            let mut out = Vec::new();
            for from in [0, (case % 3).min(bytes.len())] {
                let (len, end) = unstuff(&bytes, from, &mut out);
                let (expected, stop) = plainly(&bytes, from);
                assert_eq!((&out[..len], end), (&expected[..], stop), "{bytes:x?} from {from}");
            }
        }
    }

    #[test]
    fn bits_come_in_order_and_zeros_follow() {
        let segment: Vec<u8> = (0..40u8).map(|i| i.wrapping_mul(151) ^ 0x5a).collect();
        let bit = |at: usize| segment.get(at / 8).map_or(0, |byte| usize::from(byte >> (7 - at % 8) & 1));
        let mut bits = Bits::default();
        let mut at = 0;
        for step in (1..=31).cycle().take(40) {
            bits.refill(&segment);
            let expected = (at..at + 16).fold(0, |word, at| word << 1 | bit(at));
            assert_eq!(bits.look(16), expected, "bit {at}");
            bits.skip(step);
            at += step as usize;
            assert_eq!(bits.taken(), at);
        }
    }

    #[test]
    fn extended_values() {
        let table = [(0b0, 1, -1), (0b1, 1, 1), (0b00, 2, -3), (0b01, 2, -2), (0b10, 2, 2), (0b0111, 4, -8), (0x7fff, 15, 32767)];
        for (bits, count, value) in table {
            assert_eq!(extend(bits, count), value);
        }
    }
}
