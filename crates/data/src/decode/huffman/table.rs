//! Huffman tables made for decoding more than one symbol a look (ITU-T T.81, annexes C and F.2.2.3).

use super::bits::{Bits, extend};

/// A table as a file defines it: how many codes of 1 to 16 bits there are (the first number means nothing), and the symbols in
/// order of their codes.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::decode) struct Definition {
    pub(in crate::decode) counts: [u8; 17],
    pub(in crate::decode) symbols: [u8; 256],
}

/// Codes of any length, one at a time.
struct Codes {
    /// By the next [`Codes::LOOK`] bits: symbol, and above it the code's length, or zero where it is longer.
    short: Box<[u16; 1 << Codes::LOOK]>,
    /// For each length, the first number of 16 bits that is above all codes of the length and shorter ones, put to the left.
    limit: [u32; 17],
    /// For each length, the place of its symbols less its first code.
    offset: [i32; 17],
    symbols: [u8; 256],
}

impl Codes {
    const LOOK: u32 = 10;

    /// None where the codes do not fit in their lengths.
    fn new(definition: &Definition) -> Option<Self> {
        let mut codes =
            Self { short: Box::new([0; 1 << Self::LOOK]), limit: [0; 17], offset: [0; 17], symbols: definition.symbols };
        let (mut code, mut place) = (0u32, 0usize);
        for length in 1..=16u32 {
            let count = usize::from(definition.counts[length as usize]);
            codes.offset[length as usize] = place as i32 - code as i32;
            let symbols = codes.symbols.get(place..place + count)?;
            // No code is all ones.
            if count > 0 && code + count as u32 >= 1 << length {
                return None;
            }
            if length <= Self::LOOK {
                let each = 1 << (Self::LOOK - length);
                let first = (code as usize) * each;
                for (same, &symbol) in codes.short[first..first + count * each].chunks_exact_mut(each).zip(symbols) {
                    same.fill((length as u16) << 8 | u16::from(symbol));
                }
            }
            code += count as u32;
            place += count;
            codes.limit[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Some(codes)
    }

    /// The next symbol and the bits behind it, if its code exists. There must be 16 bits.
    ///
    /// Takes and gives bits by value: the hot loops then keep theirs in registers.
    fn next(&self, mut bits: Bits) -> Option<(u8, Bits)> {
        let entry = self.short[bits.look(Self::LOOK)];
        if entry != 0 {
            bits.skip(u32::from(entry >> 8));
            return Some((entry as u8, bits));
        }
        let ahead = bits.look(16) as u32;
        let length = (Self::LOOK as usize + 1..=16).find(|&length| ahead < self.limit[length])?;
        bits.skip(length as u32);
        let place = (ahead >> (16 - length)) as i32 + self.offset[length];
        Some((self.symbols[(place & 255) as usize], bits))
    }

    /// A symbol of the `have` bits in `bits`: it, and its code's length.
    fn within(&self, bits: usize, have: u32) -> Option<(u8, u32)> {
        let index = if have < Self::LOOK { bits << (Self::LOOK - have) } else { bits >> (have - Self::LOOK) };
        let entry = self.short[index];
        let length = u32::from(entry >> 8);
        (entry != 0 && length <= have).then_some((entry as u8, length))
    }
}

/// Differences of the first coefficient.
pub(super) struct Dc {
    /// By the next [`Dc::LOOK`] bits: the bits of code and value, and above 16 bits the difference; zero where they are more.
    look: Box<[u32; 1 << Dc::LOOK]>,
    codes: Codes,
}

impl Dc {
    const LOOK: u32 = 10;

    pub(super) fn new(definition: &Definition) -> Option<Self> {
        let codes = Codes::new(definition)?;
        let count = definition.counts[1..].iter().map(|&n| usize::from(n)).sum::<usize>();
        if definition.symbols[..count].iter().any(|&size| size > 15) {
            return None;
        }
        let mut look = Box::new([0; 1 << Self::LOOK]);
        for (ahead, entry) in look.iter_mut().enumerate() {
            if let Some((size, length)) = codes.within(ahead, Self::LOOK)
                && let Some(value) = value_within(ahead, Self::LOOK - length, size.into())
            {
                *entry = (length + u32::from(size)) | u32::from(value as u16) << 16;
            }
        }
        Some(Self { look, codes })
    }

    /// The next difference; none if there is no such code. There must be 31 bits.
    #[inline(always)]
    pub(super) fn next(&self, bits: &mut Bits) -> Option<i32> {
        let entry = self.look[bits.look(Self::LOOK)];
        if entry != 0 {
            bits.skip(entry & 0xff);
            return Some(entry as i32 >> 16);
        }
        let (difference, behind) = self.long(*bits)?;
        *bits = behind;
        Some(difference)
    }

    #[inline(never)]
    fn long(&self, bits: Bits) -> Option<(i32, Bits)> {
        let (size, mut bits) = self.codes.next(bits)?;
        let difference = if size == 0 { 0 } else { bits.value(size.into()) };
        Some((difference, bits))
    }
}

/// The value of `size` bits at the top of the lower `have` bits of `bits`, if there are as many.
fn value_within(bits: usize, have: u32, size: u32) -> Option<i32> {
    if size == 0 {
        return Some(0);
    }
    let rest = have.checked_sub(size)?;
    Some(extend((bits >> rest & ((1 << size) - 1)) as i32, size))
}

/// What one look at the bits of a block's later coefficients gives.
pub(super) trait Look: Copy {
    /// Bits looked at.
    const BITS: u32;
    /// Bits to skip.
    fn length(self) -> u32;
    /// Coefficients gone past, the end of the block counted as one; where the look is not enough, more than a block has.
    fn advance(self) -> usize;
    /// Whether the block ends here.
    fn ends(self) -> bool;
    /// Where the look shows a coefficient's code, of [`Look::length`] bits, but not all bits of its value: how many these are.
    fn size(self) -> u32;

    /// Zeros in front of a coefficient whose value is not all seen, if that is what the look shows.
    #[inline(always)]
    fn zeros(self) -> Option<usize> {
        let zeros = self.advance().wrapping_sub(VALUE_TO_COME as usize);
        (zeros < 16).then_some(zeros)
    }
}

/// An advance that leads out of every block: with the zeros added, of a coefficient whose value is not all seen.
const VALUE_TO_COME: u64 = 65;
/// Another one: the code is not all seen.
const NOT_ENOUGH: u64 = 127;

/// Up to two coefficients, perhaps the end behind them, to be stored.
///
/// Bits 0-5: length; 7: ends; 8-15: advance; 16-23 and 24-31: places of the coefficients, counted from the present one; 32-47 and
/// 48-63: the coefficients. Where there is one, it is there twice; where there is none, it is a zero, put where a zero is. For a
/// value still to come, bits 32-47 are its size.
#[derive(Clone, Copy)]
pub(super) struct Store(u64);

impl Store {
    #[inline(always)]
    pub(super) fn places(self) -> [usize; 2] {
        [(self.0 >> 16 & 0xff) as usize, (self.0 >> 24 & 0xff) as usize]
    }

    #[inline(always)]
    pub(super) fn values(self) -> [i16; 2] {
        [(self.0 >> 32) as i16, (self.0 >> 48) as i16]
    }
}

impl Look for Store {
    const BITS: u32 = 11;
    #[inline(always)]
    fn length(self) -> u32 {
        self.0 as u32 & 63
    }
    #[inline(always)]
    fn advance(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }
    #[inline(always)]
    fn ends(self) -> bool {
        self.0 & 0x80 != 0
    }
    #[inline(always)]
    fn size(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// As many coefficients as fit, to be walked over. Bits 0-3: length; 4-10: advance; 11-14: size of a value still to come; 15: ends.
#[derive(Clone, Copy)]
pub(super) struct Walk(u16);

impl Look for Walk {
    const BITS: u32 = 12;
    #[inline(always)]
    fn length(self) -> u32 {
        u32::from(self.0 & 15)
    }
    #[inline(always)]
    fn advance(self) -> usize {
        usize::from(self.0 >> 4 & 127)
    }
    #[inline(always)]
    fn ends(self) -> bool {
        self.0 & 0x8000 != 0
    }
    #[inline(always)]
    fn size(self) -> u32 {
        u32::from(self.0 >> 11 & 15)
    }
}

/// One symbol of a block's later coefficients.
pub(super) enum Symbol {
    /// Zeros, then a coefficient.
    Coefficient {
        zeros: usize,
        value: i32,
    },
    /// Sixteen zeros.
    Zeros,
    End,
}

/// A block's coefficients but the first.
pub(super) struct Ac {
    pub(super) store: Box<[Store; 1 << Store::BITS]>,
    pub(super) walk: Box<[Walk; 1 << Walk::BITS]>,
    codes: Codes,
}

impl Ac {
    pub(super) fn new(definition: &Definition) -> Option<Self> {
        let codes = Codes::new(definition)?;
        let mut store = Box::new([Store(NOT_ENOUGH << 8); 1 << Store::BITS]);
        let mut walk = Box::new([Walk((NOT_ENOUGH << 4) as u16); 1 << Walk::BITS]);
        for (ahead, entry) in store.iter_mut().enumerate() {
            let mut found: Vec<(u64, u64)> = Vec::new();
            let (mut advance, mut length, mut ends) = (0u64, 0, false);
            while !ends && let Some((symbol, bits)) = symbol_within(&codes, ahead, Store::BITS - length) {
                match symbol {
                    Symbol::Coefficient { .. } | Symbol::Zeros if found.len() == 2 => break,
                    Symbol::Coefficient { zeros, value } => {
                        found.push((advance + zeros as u64, u64::from(value as u16)));
                        advance += zeros as u64 + 1;
                    }
                    Symbol::Zeros => {
                        found.push((advance + 15, 0));
                        advance += 16;
                    }
                    Symbol::End => {
                        advance += 1;
                        ends = true;
                    }
                }
                length += bits;
            }
            if length > 0 {
                let (first, second) = match found[..] {
                    [] => ((0, 0), (0, 0)),
                    [one] => (one, one),
                    [one, two, ..] => (one, two),
                };
                *entry = Store(
                    u64::from(length)
                        | u64::from(ends) << 7
                        | advance << 8
                        | first.0 << 16
                        | second.0 << 24
                        | first.1 << 32
                        | second.1 << 48,
                );
            } else if let Some((zeros, size, length)) = value_to_come(&codes, ahead, Store::BITS) {
                *entry = Store(u64::from(length) | (VALUE_TO_COME + zeros) << 8 | u64::from(size) << 32);
            }
        }
        for (ahead, entry) in walk.iter_mut().enumerate() {
            let (mut advance, mut length, mut ends) = (0, 0, false);
            while !ends && let Some((symbol, bits)) = symbol_within(&codes, ahead, Walk::BITS - length) {
                let step = match symbol {
                    Symbol::Coefficient { zeros, .. } => zeros + 1,
                    Symbol::Zeros => 16,
                    Symbol::End => 1,
                };
                // A block has 63 such coefficients.
                if advance + step > 64 {
                    break;
                }
                ends = matches!(symbol, Symbol::End);
                advance += step;
                length += bits;
            }
            if length > 0 {
                *entry = Walk(length as u16 | (advance as u16) << 4 | u16::from(ends) << 15);
            } else if let Some((zeros, size, length)) = value_to_come(&codes, ahead, Walk::BITS) {
                *entry = Walk(length as u16 | ((VALUE_TO_COME + zeros) as u16) << 4 | (size as u16) << 11);
            }
        }
        Some(Self { store, walk, codes })
    }

    /// The next symbol and the bits behind it, if its code exists. There must be 31 bits.
    pub(super) fn next(&self, bits: Bits) -> Option<(Symbol, Bits)> {
        let (symbol, mut bits) = self.codes.next(bits)?;
        let symbol = match (symbol >> 4, symbol & 15) {
            (15, 0) => Symbol::Zeros,
            (_, 0) => Symbol::End,
            (zeros, size) => Symbol::Coefficient { zeros: zeros.into(), value: bits.value(size.into()) },
        };
        Some((symbol, bits))
    }
}

/// The symbol that begins the lower `have` bits of `ahead`, if it and its value lie in them, and their bits.
fn symbol_within(codes: &Codes, ahead: usize, have: u32) -> Option<(Symbol, u32)> {
    let ahead = ahead & ((1 << have) - 1);
    let (symbol, length) = codes.within(ahead, have)?;
    let size = u32::from(symbol & 15);
    let symbol = match (symbol >> 4, size) {
        (15, 0) => Symbol::Zeros,
        (_, 0) => Symbol::End,
        (zeros, _) => Symbol::Coefficient { zeros: zeros.into(), value: value_within(ahead, have - length, size)? },
    };
    Some((symbol, length + size))
}

/// Of a coefficient whose code is among the `have` bits of `ahead`: the zeros before it, its value's size and its code's length.
fn value_to_come(codes: &Codes, ahead: usize, have: u32) -> Option<(u64, u32, u32)> {
    let (symbol, length) = codes.within(ahead, have)?;
    let size = u32::from(symbol & 15);
    (size > 0).then_some((u64::from(symbol >> 4), size, length))
}
