//! TFRecord framing: each record with its length and a masked CRC-32C of either (`tensorflow/core/lib/io/record_writer.h`).

/// CRC-32C (Castagnoli), a byte at a time: histograms of a large network are some 100 KB an evaluation.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| TABLE[(crc as u8 ^ byte) as usize] ^ (crc >> 8))
}

/// The checksum as records hold it, so that a checksum over checksums stays a good one.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// A record with its frame.
pub(super) fn frame(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), record, &masked(record)].concat()
}

/// The records of a file up to the first that is torn or damaged.
pub(super) fn records(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let (check, rest) = rest.split_first_chunk::<4>()?;
        let size = usize::try_from(u64::from_le_bytes(*length)).ok().filter(|_| *check == masked(length))?;
        let (record, rest) = rest.split_at_checked(size)?;
        let (check, rest) = rest.split_first_chunk::<4>()?;
        bytes = rest;
        (*check == masked(record)).then_some(record)
    })
    .fuse()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4.
    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn whole_records_are_read_up_to_a_tear_or_a_flipped_bit() {
        let all: Vec<Vec<u8>> = vec![b"one".to_vec(), vec![], (0..100).collect()];
        let bytes: Vec<u8> = all.iter().flat_map(|record| frame(record)).collect();
        assert!(records(&bytes).eq(all.iter()));
        for length in 0..bytes.len() {
            let whole = records(&bytes[..length]).count();
            assert!(records(&bytes[..length]).eq(all[..whole].iter()) && whole < 3);
        }
        let second = frame(&all[0]).len();
        for bit in second * 8..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!((1..=2).contains(&records(&flipped).count()), "bit {bit}");
        }
    }
}
