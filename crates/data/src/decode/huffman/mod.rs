//! Huffman decoding of sequential JPEG scans held in memory (ITU-T T.81, annex F.2.2), in about half the time of a decoder that
//! takes one symbol at a time.
//!
//! One look into a table gives up to two coefficients with their values and, if it fits, the end of the block; where
//! coefficients are not wanted, all symbols that fit. The zeros stuffed into the data are taken out beforehand.
//!
//! It decodes only what is beyond doubt. Everything else is left to the library: it decides whether to refuse such a file, and
//! with which words.

mod bits;
mod cache;
mod scan;
mod table;

pub(super) use scan::{Block, Fault, Plan, Scan};
pub(super) use table::Definition;
