//! JPEG encoding by libjpeg-turbo's code, as MozJPEG carries it.

#![allow(unsafe_code)]

use std::ffi::{c_ulong, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use mozjpeg_sys::{
    J_COLOR_SPACE, J_INT_PARAM, JINT_COMPRESS_PROFILE_VALUE, jpeg_c_set_int_param, jpeg_common_struct, jpeg_compress_struct,
    jpeg_create_compress, jpeg_destroy_compress, jpeg_error_mgr, jpeg_finish_compress, jpeg_mem_dest, jpeg_set_defaults,
    jpeg_set_quality, jpeg_start_compress, jpeg_std_error, jpeg_write_scanlines,
};

use crate::decode::{Pixels, panic_message};

unsafe extern "C" {
    fn free(memory: *mut c_void);
}

/// Everything the encoder owns, at addresses that do not change.
struct Encoder {
    info: jpeg_compress_struct,
    errors: jpeg_error_mgr,
    out: *mut u8,
    len: c_ulong,
}

impl Drop for Encoder {
    fn drop(&mut self) {
        // SAFETY: `info` was made by jpeg_create_compress, or is all zeros, which destroying accepts; `out` is null or memory
        // that jpeg_mem_dest took from malloc and left to its caller.
        unsafe {
            jpeg_destroy_compress(&mut self.info);
            free(self.out.cast());
        }
    }
}

/// Called by the library for an error it cannot go on from. It must not return; the unwinding ends in [`encode_jpeg`].
unsafe extern "C-unwind" fn fail(info: &mut jpeg_common_struct) {
    // SAFETY: the library sets `err` to the manager given to it before it can call this.
    let code = unsafe { (*info.err).msg_code };
    resume_unwind(Box::new(format!("the JPEG encoder failed with code {code}")));
}

/// Called by the library to print a message: errors come as values, and nothing goes to the terminal.
unsafe extern "C-unwind" fn silent(_: &mut jpeg_common_struct) {}

/// Encodes RGB pixels as a baseline JPEG with half the chroma resolution and Huffman tables of its own.
///
/// `quality` is 1 to 100, on libjpeg's scale.
pub(super) fn encode_jpeg(pixels: &Pixels, quality: u8) -> Result<Vec<u8>, String> {
    let row = pixels.width * 3;
    if pixels.channels != 3 || pixels.data.len() != row * pixels.height || pixels.width > 65_500 || pixels.height > 65_500 {
        return Err(format!("{} × {} pixels of {} channels cannot be a JPEG", pixels.width, pixels.height, pixels.channels));
    }
    let encoded = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: both are plain C structures, for which all zeros are valid (null pointers, absent callbacks); the library
        // fills them in.
        let (info, errors) = unsafe { (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
        let mut encoder = Box::new(Encoder { info, errors, out: ptr::null_mut(), len: 0 });
        let Encoder { info, errors, out, len } = &mut *encoder;
        // SAFETY: the structures live in a box until after the last call; each row pointer is to `row` readable bytes, checked
        // above; the calls are in the order that libjpeg asks for.
        unsafe {
            info.common.err = jpeg_std_error(errors);
            errors.error_exit = Some(fail);
            errors.output_message = Some(silent);
            jpeg_create_compress(info);
            jpeg_mem_dest(info, out, len);
            info.image_width = pixels.width as u32;
            info.image_height = pixels.height as u32;
            info.input_components = 3;
            info.in_color_space = J_COLOR_SPACE::JCS_RGB;
            jpeg_c_set_int_param(info, J_INT_PARAM::JINT_COMPRESS_PROFILE, JINT_COMPRESS_PROFILE_VALUE::JCP_FASTEST as i32);
            jpeg_set_defaults(info);
            jpeg_set_quality(info, i32::from(quality), 1);
            info.optimize_coding = 1;
            jpeg_start_compress(info, 1);
            for line in pixels.data.chunks_exact(row) {
                let lines = [line.as_ptr()];
                jpeg_write_scanlines(info, lines.as_ptr(), 1);
            }
            jpeg_finish_compress(info);
        }
        if encoder.out.is_null() {
            return Vec::new();
        }
        // SAFETY: the library wrote `len` bytes at `out`.
        unsafe { std::slice::from_raw_parts(encoder.out, encoder.len as usize) }.to_vec()
    }));
    encoded.map_err(|panic| panic_message(&*panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode_rgb;

    #[test]
    fn pixels_come_back_nearly() {
        let (width, height) = (61, 43);
        let data = (0..width * height).flat_map(|i| [(i % width * 4) as u8, (i / width * 5) as u8, 100]).collect();
        let pixels = Pixels { width, height, channels: 3, data };
        let encoded = encode_jpeg(&pixels, 95).unwrap();
        let decoded = decode_rgb(&encoded, "").unwrap();
        assert_eq!((decoded.width, decoded.height), (width, height));
        let worst = decoded.data.iter().zip(&pixels.data).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(worst < Some(24), "{worst:?}");
        assert!(encode_jpeg(&pixels, 20).unwrap().len() < encoded.len());
    }

    #[test]
    fn impossible_pixels_are_errors() {
        let pixels = Pixels { width: 70_000, height: 1, channels: 3, data: vec![0; 210_000] };
        assert!(encode_jpeg(&pixels, 90).unwrap_err().contains("cannot be a JPEG"));
        let empty = Pixels { width: 0, height: 1, channels: 3, data: vec![] };
        assert!(encode_jpeg(&empty, 90).is_err());
    }
}
