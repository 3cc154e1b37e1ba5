//! libjpeg-turbo's decoder (as mozjpeg carries it) behind a safe function.
//!
//! The library reports an error by calling a function that must not return. Ours unwinds, which the C code is compiled for,
//! and the unwinding ends in this file. Warnings are treated the same, so that no doubtful pixel gets out.
//!
//! The Huffman codes of sequential files are decoded by [`huffman`](super::huffman). When it meets what it cannot vouch for, the
//! file is read again by the library alone.
//!
//! The library is built from source. Its vector code for x86 needs `nasm`; without it the build warns, and decoding is slower
//! with the same pixels.
#![expect(unsafe_code, reason = "C interface")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use mozjpeg_sys as sys;

use super::entropy;
use super::huffman::Fault;
use crate::transform::resize::Rect;

/// Values of a decoded pixel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Red, green, blue, and a byte without meaning.
    Rgbx,
    /// Cyan, magenta, yellow, black as the file has them.
    Cmyk,
}

/// What was decoded: `height` rows of `stride` pixels, of which those from column `left` on are the `rect` asked for.
pub(super) struct Decoded {
    pub(super) rect: Rect,
    pub(super) stride: usize,
    pub(super) left: usize,
}

/// A progressive file may go over its pixels in any number of scans; a few kilobytes of them could cost hours.
const MAX_SCANS: i32 = 500;

/// The library's own limit on the length of a message.
const MESSAGE_BYTES: usize = 200;

/// What unwinds through the library.
pub(super) enum Failure {
    Message(String),
    /// Our Huffman decoder leaves the file to the library's.
    Doubt,
}

/// Which Huffman decoder is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Entropy {
    Ours,
    Library,
}

/// Decodes a rectangle of an image to four bytes a pixel, at the front of `out`; what `out` holds behind them stays.
///
/// `choose` is told width and height and gives the rectangle, not empty and inside. Columns outside of it are left out as far
/// as the format allows, rows below it are not read. A whole image is read to its end marker.
///
/// # Errors
/// The library's message for every error, and for every warning but those on versions of the header.
pub(super) fn decode(
    bytes: &[u8],
    layout: Layout,
    choose: &mut dyn FnMut(usize, usize) -> Result<Rect, String>,
    out: &mut Vec<[u8; 4]>,
) -> Result<Decoded, String> {
    let mut chosen = None;
    let mut choose = |width: usize, height: usize| match chosen {
        Some(rect) => Ok(rect),
        None => choose(width, height).inspect(|&rect| chosen = Some(rect)),
    };
    let mut decode = |entropy| attempt(bytes, layout, entropy, &mut choose, out);
    match decode(Entropy::Ours) {
        Err(Failure::Doubt) => decode(Entropy::Library),
        decoded => decoded,
    }
    .map_err(|failure| match failure {
        Failure::Message(text) => text,
        Failure::Doubt => unreachable!("the library's decoder has no doubts"),
    })
}

pub(super) fn attempt(
    bytes: &[u8],
    layout: Layout,
    entropy: Entropy,
    choose: &mut dyn FnMut(usize, usize) -> Result<Rect, String>,
    out: &mut Vec<[u8; 4]>,
) -> Result<Decoded, Failure> {
    // SAFETY: all-zero bytes are valid for these C structures of numbers, nullable pointers and enumerations with a zero.
    let (mut errors, mut progress, mut decoder): (sys::jpeg_error_mgr, sys::jpeg_progress_mgr, sys::jpeg_decompress_struct) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
    let decoder: *mut sys::jpeg_decompress_struct = &mut decoder;
    let (errors, progress): (*mut _, *mut _) = (&mut errors, &mut progress);
    let mut hook = None;
    let hook: *mut _ = &mut hook;
    let decoded = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the structures and the hook outlive the decoder, which is destroyed below.
        unsafe {
            prepare(decoder, errors, progress);
            run(decoder, bytes, layout, choose, out, &mut |decoder| {
                if entropy == Entropy::Ours {
                    entropy::install(decoder, bytes, hook, on_fault);
                }
            })
        }
    }));
    // SAFETY: destroying is allowed in every state, after a failure and on a decoder that is still all zero.
    unsafe { sys::jpeg_destroy_decompress(&mut *decoder) };
    match decoded {
        Ok(decoded) => decoded.map_err(Failure::Message),
        Err(panic) => match panic.downcast::<Failure>() {
            Ok(failure) => Err(*failure),
            Err(panic) => resume_unwind(panic),
        },
    }
}

/// # Safety
/// The pointers are to zeroed structures that stay where they are until the decoder is destroyed.
unsafe fn prepare(
    decoder: *mut sys::jpeg_decompress_struct,
    errors: *mut sys::jpeg_error_mgr,
    progress: *mut sys::jpeg_progress_mgr,
) {
    // SAFETY: by this function's contract.
    unsafe {
        sys::jpeg_std_error(&mut *errors);
        (*errors).error_exit = Some(on_error);
        (*errors).emit_message = Some(on_message);
        (*decoder).common.err = errors;
        sys::jpeg_create_decompress(decoder);
        (*progress).progress_monitor = Some(on_progress);
        (*decoder).common.progress = progress;
    }
}

/// # Safety
/// `decoder` is prepared, and does not outlive `bytes`.
unsafe fn run(
    decoder: *mut sys::jpeg_decompress_struct,
    bytes: &[u8],
    layout: Layout,
    choose: &mut dyn FnMut(usize, usize) -> Result<Rect, String>,
    out: &mut Vec<[u8; 4]>,
    started: &mut dyn FnMut(*mut sys::jpeg_decompress_struct),
) -> Result<Decoded, String> {
    // SAFETY: calls in the order the library's manual asks for. Rows are written by `read_scanlines` to places inside `out`:
    // it writes `output_width` pixels of four bytes for each pointer it is given.
    unsafe {
        sys::jpeg_mem_src(&mut *decoder, bytes.as_ptr(), bytes.len() as _);
        sys::jpeg_read_header(&mut *decoder, 1);
        let (width, height) = ((*decoder).image_width as usize, (*decoder).image_height as usize);
        let rect = choose(width, height)?;
        assert!(rect.width > 0 && rect.height > 0 && rect.x + rect.width <= width && rect.y + rect.height <= height);
        (*decoder).out_color_space = match layout {
            Layout::Rgbx => sys::JCS_EXT_RGBX,
            Layout::Cmyk => sys::JCS_CMYK,
        };
        (*decoder).dct_method = sys::J_DCT_METHOD::JDCT_ISLOW;
        (*decoder).do_fancy_upsampling = 1;
        sys::jpeg_start_decompress(&mut *decoder);
        started(decoder);
        assert_eq!((*decoder).output_components, 4);

        // Chroma upsampling looks at neighbours; at a crop's edge it would repeat the last column instead. One block more on
        // each side makes the columns inside those of the whole image.
        let block = 8 * (*decoder).max_h_samp_factor.max(1) as usize;
        let from = rect.x.saturating_sub(block);
        let to = (rect.x + rect.width + block).min(width);
        let (mut start, mut stride) = (from as u32, (to - from) as u32);
        if to - from < width {
            sys::jpeg_crop_scanline(&mut *decoder, &mut start, &mut stride);
        }
        assert_eq!(stride, (*decoder).output_width);
        let (start, stride) = (start as usize, stride as usize);
        if out.len() < stride * rect.height {
            out.resize(stride * rect.height, [0; 4]);
        }
        if rect.y > 0 && sys::jpeg_skip_scanlines(&mut *decoder, rect.y as u32) != rect.y as u32 {
            return Err("the JPEG decoder stopped early. Replace or remove the file".to_owned());
        }
        let mut row = 0;
        while row < rect.height {
            const ROWS: usize = 8;
            let count = ROWS.min(rect.height - row);
            let mut rows: [*mut u8; ROWS] = [ptr::null_mut(); ROWS];
            for (place, line) in rows.iter_mut().zip(out[row * stride..(row + count) * stride].chunks_exact_mut(stride)) {
                *place = line.as_mut_ptr().cast();
            }
            let read = sys::jpeg_read_scanlines(&mut *decoder, rows.as_mut_ptr(), count as u32) as usize;
            if read == 0 {
                return Err("the JPEG decoder stopped early. Replace or remove the file".to_owned());
            }
            row += read;
        }
        if rect.y + rect.height == height {
            sys::jpeg_finish_decompress(&mut *decoder);
        }
        Ok(Decoded { rect, stride, left: rect.x - start })
    }
}

/// The current message of a decoder.
///
/// # Safety
/// `common` belongs to a prepared decoder that is reporting.
unsafe fn message(common: *mut sys::jpeg_common_struct) -> String {
    type Bound = unsafe extern "C-unwind" fn(&mut sys::jpeg_common_struct, &[u8; 80]);
    type Format = unsafe extern "C-unwind" fn(*mut sys::jpeg_common_struct, *mut u8);
    let mut text = [0u8; MESSAGE_BYTES];
    // SAFETY: the bindings give the buffer as a shared reference to 80 bytes; in C it is a pointer to 200 bytes that are
    // written to.
    unsafe {
        if let Some(format) = (*(*common).err).format_message {
            std::mem::transmute::<Bound, Format>(format)(common, text.as_mut_ptr());
        }
    }
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

unsafe extern "C-unwind" fn on_error(common: &mut sys::jpeg_common_struct) {
    // SAFETY: called by the library for a decoder of `decode`.
    let text = unsafe { message(common) };
    // Not a panic: no hook is run, nothing is printed.
    resume_unwind(Box::new(Failure::Message(format!("damaged JPEG image: {text}. Replace or remove the file"))));
}

fn on_fault(fault: Fault) -> ! {
    resume_unwind(Box::new(match fault {
        Fault::Doubt => Failure::Doubt,
        Fault::Damaged(what) => Failure::Message(format!("damaged JPEG image: {what}. Replace or remove the file")),
    }))
}

/// `level`: -1 for a warning, 0 and above for traces.
unsafe extern "C-unwind" fn on_message(common: &mut sys::jpeg_common_struct, level: i32) {
    if level >= 0 {
        return;
    }
    // SAFETY: called by the library for a decoder of `decode`.
    let code = unsafe { (*common.err).msg_code };
    // Before the header is read, bytes between markers do no harm to pixels; later they mean that a scan ended too soon.
    const IN_HEADER: i32 = 201;
    let harmless = code == sys::JWRN_JFIF_MAJOR
        || code == sys::JWRN_ADOBE_XFORM
        || (code == sys::JWRN_EXTRANEOUS_DATA && common.global_state <= IN_HEADER);
    if !harmless {
        // SAFETY: as above.
        unsafe { on_error(common) };
    }
}

unsafe extern "C-unwind" fn on_progress(common: &mut sys::jpeg_common_struct) {
    // SAFETY: the common part is the beginning of a decoder, and only decoders have this monitor.
    let scans = unsafe { (*ptr::from_mut(common).cast::<sys::jpeg_decompress_struct>()).input_scan_number };
    if scans > MAX_SCANS {
        let text =
            format!("a JPEG image of more than {MAX_SCANS} scans: probably made to waste time. Replace or remove the file");
        resume_unwind(Box::new(Failure::Message(text)));
    }
}
