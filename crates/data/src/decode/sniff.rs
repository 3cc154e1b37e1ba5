//! What bytes are, by how they begin.

/// The formats that are decoded, and everything else in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
    WebP,
    /// A noun phrase for a message.
    Other(String),
}

const OTHERS: [(&[u8], &str); 14] = [
    (b"\x1f\x8b", "a gzip file (decompress it)"),
    (b"\x28\xb5\x2f\xfd", "a zstd file (decompress it)"),
    (b"BZh", "a bzip2 file (decompress it)"),
    (b"PK\x03\x04", "a zip archive"),
    (b"GIF8", "a GIF image (convert it to PNG)"),
    (b"BM", "a BMP image (convert it to PNG)"),
    (b"II*\0", "a TIFF image (convert it to PNG)"),
    (b"MM\0*", "a TIFF image (convert it to PNG)"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image (convert it to PNG)"),
    (b"\xff\x0a", "a JPEG XL image (convert it to PNG)"),
    (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a Git LFS pointer (fetch the file itself with git lfs pull)"),
    (b"\x00\x05\x16\x07", "an AppleDouble file, not the image itself"),
    (b"\x7fELF", "a program"),
];

pub(super) fn sniff(bytes: &[u8]) -> Format {
    if bytes.is_empty() {
        return Format::Other("an empty file".to_owned());
    }
    if bytes.starts_with(b"\xff\xd8") {
        return Format::Jpeg;
    }
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Format::Png;
    }
    if bytes.len() >= 12 && bytes.starts_with(b"RIFF") && &bytes[8..12] == b"WEBP" {
        return Format::WebP;
    }
    if bytes.len() >= 12 && &bytes[4..8] == b"ftyp" {
        return Format::Other("an AVIF, HEIC or video file (convert it to PNG)".to_owned());
    }
    if let Some((_, looks)) = OTHERS.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Format::Other((*looks).to_owned());
    }
    let start = &bytes[..bytes.len().min(64)];
    if start.iter().all(|&b| b == 0) {
        return Format::Other("a file of zeros".to_owned());
    }
    // A character may be cut by the window's end.
    let text = match std::str::from_utf8(start) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&start[..error.valid_up_to()]).ok(),
        Err(_) => None,
    };
    if let Some(text) = text.filter(|t| !t.chars().any(|c| c.is_control() && !c.is_whitespace())) {
        let shown: String = text.chars().take(24).collect();
        let kind = if text.trim_start().to_ascii_lowercase().starts_with("<!doctype html")
            || text.trim_start().to_ascii_lowercase().starts_with("<html")
        {
            "an HTML page"
        } else {
            "a text file"
        };
        return Format::Other(format!("{kind} that begins with {shown:?}"));
    }
    let shown: Vec<String> = start.iter().take(8).map(|b| format!("{b:02x}")).collect();
    Format::Other(format!("an unknown format that begins with the bytes {}", shown.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(bytes: &[u8]) -> String {
        match sniff(bytes) {
            Format::Other(looks) => looks,
            found => panic!("{found:?}"),
        }
    }

    #[test]
    fn strays_are_named() {
        assert_eq!(other(b""), "an empty file");
        assert!(other(b"404 not found").starts_with("a text file that begins with \"404"));
        assert!(other(b"<!DOCTYPE html><body>").starts_with("an HTML page"));
        assert!(other(b"\x1f\x8b\x08\0").contains("gzip"));
        assert!(other(b"version https://git-lfs.github.com/spec/v1").contains("git lfs pull"));
        assert_eq!(other(&[0; 100]), "a file of zeros");
        assert!(other(b"\x01\x02\xfe\xff").contains("01 02 fe ff"));
    }
}
