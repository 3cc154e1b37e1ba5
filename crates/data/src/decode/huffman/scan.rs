//! The blocks of a scan, one minimum coded unit after another.

use std::cell::Cell;
use std::rc::Rc;

use super::bits::{Bits, unstuff};
use super::cache;
use super::table::{Ac, Dc, Definition, Look, Symbol};

/// Coefficients of a block, row by row.
pub(in crate::decode) type Block = [i16; 64];

/// Where the coefficients of a block come in the data (T.81, figure A.6).
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28, 35, 42,
    49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Why a scan is not decoded.
pub(in crate::decode) enum Fault {
    /// Something that is not as it should be, but that the library may know how to judge.
    Doubt,
    /// What no decoder can make sense of, in words.
    Damaged(&'static str),
}

/// What a scan consists of, as its header says.
pub(in crate::decode) struct Plan {
    /// For each component, its tables for the first and for the other coefficients, and its blocks in a unit.
    pub(in crate::decode) components: Vec<(Definition, Definition, usize)>,
    /// Units in the scan.
    pub(in crate::decode) units: u64,
    /// Units between restart markers, or 0 where there are none.
    pub(in crate::decode) restart_interval: u64,
}

struct Component {
    dc: Rc<Dc>,
    ac: Rc<Ac>,
    blocks: usize,
    /// The first coefficient of the block before.
    last: i32,
}

thread_local! {
    /// Memory for a segment, kept from image to image.
    static SEGMENT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A scan being decoded.
pub(in crate::decode) struct Scan<'a> {
    file: &'a [u8],
    components: Vec<Component>,
    /// Units to come.
    units: u64,
    restart_interval: u64,
    /// Units to come before the next restart marker.
    to_restart: u64,
    /// The next marker's number.
    next_restart: u8,
    /// The entropy-coded bytes up to the next marker are the first `len` of these.
    segment: Vec<u8>,
    len: usize,
    /// Where that marker is in the file.
    marker: usize,
    bits: Bits,
}

impl<'a> Scan<'a> {
    /// The scan whose data begin at byte `start` of a file. None if a table is wrong.
    pub(in crate::decode) fn new(file: &'a [u8], start: usize, plan: &Plan) -> Option<Self> {
        let components = plan
            .components
            .iter()
            .map(|(dc, ac, blocks)| Some(Component { dc: cache::dc(dc)?, ac: cache::ac(ac)?, blocks: *blocks, last: 0 }));
        let components = components.collect::<Option<_>>()?;
        let mut segment = SEGMENT.take();
        let (len, marker) = unstuff(file, start, &mut segment);
        Some(Self {
            file,
            components,
            units: plan.units,
            restart_interval: plan.restart_interval,
            to_restart: if plan.restart_interval == 0 { u64::MAX } else { plan.restart_interval },
            next_restart: 0,
            segment,
            len,
            marker,
            bits: Bits::default(),
        })
    }

    /// Decodes a unit: its coefficients are added to `blocks`, which are zero, unless there are none.
    ///
    /// After the last unit it returns where in the file the marker is that ends the scan.
    #[inline(always)]
    pub(in crate::decode) fn unit(&mut self, mut blocks: Option<&mut [Block]>) -> Result<Option<usize>, Fault> {
        if self.to_restart == 0 {
            self.restart()?;
        }
        let segment = &self.segment[..self.len];
        let mut bits = self.bits;
        for component in &mut self.components {
            for _ in 0..component.blocks {
                bits.refill(segment);
                let difference = component.dc.next(&mut bits).ok_or(BAD_CODE)?;
                component.last = component.last.wrapping_add(difference);
                match blocks.take().and_then(<[Block]>::split_first_mut) {
                    Some((block, rest)) => {
                        block[0] = component.last as i16;
                        store(&component.ac, &mut bits, segment, block)?;
                        blocks = Some(rest);
                    }
                    None => walk(&component.ac, &mut bits, segment)?,
                }
            }
        }
        if bits.taken() > 8 * self.len {
            return Err(Fault::Doubt);
        }
        self.bits = bits;
        self.to_restart -= 1;
        self.units = self.units.checked_sub(1).ok_or(Fault::Doubt)?;
        if self.units > 0 {
            return Ok(None);
        }
        self.check_end()?;
        Ok(Some(self.marker))
    }

    /// The segment was used up, but for the bits that fill its last byte, and a marker follows: its code and where it ends.
    #[cold]
    fn check_end(&self) -> Result<(u8, usize), Fault> {
        if 8 * self.len - self.bits.taken() >= 8 {
            return Err(Fault::Doubt);
        }
        // Any number of bytes of 255 may come before a marker.
        let rest = self.file.get(self.marker..).unwrap_or_default();
        let fill = rest.iter().take_while(|&&byte| byte == 0xff).count();
        match rest.get(fill) {
            Some(&code) if fill > 0 && code != 0 => Ok((code, self.marker + fill + 1)),
            _ => Err(Fault::Doubt),
        }
    }

    /// Goes past a restart marker.
    #[cold]
    fn restart(&mut self) -> Result<(), Fault> {
        let (code, end) = self.check_end()?;
        if code != 0xd0 + self.next_restart {
            return Err(Fault::Doubt);
        }
        self.next_restart = (self.next_restart + 1) % 8;
        self.to_restart = self.restart_interval;
        self.components.iter_mut().for_each(|component| component.last = 0);
        (self.len, self.marker) = unstuff(self.file, end, &mut self.segment);
        self.bits = Bits::default();
        Ok(())
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        SEGMENT.set(std::mem::take(&mut self.segment));
    }
}

const BAD_CODE: Fault = Fault::Damaged("a Huffman code that its table does not have");
const TOO_MANY: Fault = Fault::Damaged("more than 64 coefficients in a block");

/// A block's coefficients but the first.
#[inline(always)]
fn store(ac: &Ac, bits: &mut Bits, segment: &[u8], block: &mut Block) -> Result<(), Fault> {
    coefficients(&ac.store, ac, bits, segment, |k, looked| match looked {
        Looked::Entry(entry) => {
            let ([first, second], [one, two]) = (entry.places(), entry.values());
            block[natural(k + first)] = one;
            block[natural(k + second)] = two;
        }
        Looked::Value(value) => block[natural(k)] = value,
    })
}

/// Goes past a block's coefficients but the first.
#[inline(always)]
fn walk(ac: &Ac, bits: &mut Bits, segment: &[u8]) -> Result<(), Fault> {
    coefficients(&ac.walk, ac, bits, segment, |_, _| ())
}

/// What there is to be stored at a place, or from there on.
enum Looked<L> {
    Entry(L),
    Value(i16),
}

#[inline(always)]
fn natural(place: usize) -> usize {
    usize::from(ZIGZAG[place & 63] & 63)
}

#[inline(always)]
fn coefficients<L: Look, const N: usize>(
    table: &[L; N],
    ac: &Ac,
    place: &mut Bits,
    segment: &[u8],
    mut found: impl FnMut(usize, Looked<L>),
) -> Result<(), Fault> {
    const { assert!(N == 1 << L::BITS) };
    let mut bits = *place;
    let mut k = 1;
    'block: loop {
        bits.refill(segment);
        for _ in 0..const { Bits::REFILLED / L::BITS } {
            let entry = table[bits.look(L::BITS) & (N - 1)];
            let next = k + entry.advance();
            if next > 64 {
                let value;
                if let Some(zeros) = entry.zeros() {
                    bits.skip(entry.length());
                    bits.refill(segment);
                    k += zeros;
                    value = bits.value(entry.size()) as i16;
                } else {
                    bits.refill(segment);
                    let (symbol, behind) = ac.next(bits).ok_or(BAD_CODE)?;
                    bits = behind;
                    (k, value) = match symbol {
                        Symbol::Coefficient { zeros, value } => (k + zeros, value as i16),
                        Symbol::Zeros => (k + 15, 0),
                        Symbol::End => break 'block,
                    };
                }
                if k > 63 {
                    return Err(TOO_MANY);
                }
                found(k, Looked::Value(value));
                k += 1;
                if k == 64 {
                    break 'block;
                }
                // Fewer bits are left than the looks to come may need.
                break;
            }
            found(k, Looked::Entry(entry));
            bits.skip(entry.length());
            if entry.ends() || next == 64 {
                break 'block;
            }
            k = next;
        }
    }
    *place = bits;
    Ok(())
}
