//! Puts our Huffman decoder in the place of the library's.
//!
//! The library decodes a scan by calling a function for each minimum coded unit. The structures through which it does are in
//! its internal header, so they are declared here; the version is pinned, and sizes and places are checked when this compiles.
#![expect(unsafe_code, reason = "C interface")]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

use mozjpeg_sys as sys;

use super::huffman::{Block, Definition, Fault, Plan, Scan};

/// `jpeg_decompress_struct`, with the members that the bindings keep to themselves.
#[repr(C)]
struct Decoder {
    common: sys::jpeg_common_struct,
    source: *mut sys::jpeg_source_mgr,
    settings:
        [u8; offset_of!(sys::jpeg_decompress_struct, quant_tbl_ptrs) - offset_of!(sys::jpeg_decompress_struct, src) - SOURCE],
    quant_tbl_ptrs: [*mut c_void; 4],
    dc_huff_tbl_ptrs: [*mut sys::JHUFF_TBL; 4],
    ac_huff_tbl_ptrs: [*mut sys::JHUFF_TBL; 4],
    data_precision: c_int,
    comp_info: *mut c_void,
    progressive_mode: c_int,
    arith_code: c_int,
    arithmetic: [[u8; 16]; 3],
    restart_interval: c_uint,
    saw_jfif_marker: c_int,
    jfif_version: [u8; 2],
    density_unit: u8,
    density: [u16; 2],
    saw_adobe_marker: c_int,
    adobe_transform: u8,
    ccir601_sampling: c_int,
    marker_list: *mut c_void,
    max_h_samp_factor: c_int,
    max_v_samp_factor: c_int,
    min_dct_scaled_size: c_int,
    total_imcu_rows: c_uint,
    sample_range_limit: *mut u8,
    comps_in_scan: c_int,
    cur_comp_info: [*mut sys::jpeg_component_info; 4],
    mcus_per_row: c_uint,
    mcu_rows_in_scan: c_uint,
    blocks_in_mcu: c_int,
    mcu_membership: [c_int; 10],
    spectral: [c_int; 4],
    unread_marker: c_int,
    master: *mut Master,
    main: *mut c_void,
    coef: *mut c_void,
    post: *mut c_void,
    inputctl: *mut c_void,
    marker: *mut c_void,
    entropy: *mut EntropyDecoder,
    idct: *mut c_void,
    upsample: *mut c_void,
    cconvert: *mut c_void,
    cquantize: *mut c_void,
}

const SOURCE: usize = size_of::<*mut sys::jpeg_source_mgr>();

const _: () = {
    use sys::jpeg_decompress_struct as Theirs;
    assert!(size_of::<Decoder>() == size_of::<Theirs>() && align_of::<Decoder>() == align_of::<Theirs>());
    assert!(offset_of!(Decoder, source) == offset_of!(Theirs, src));
    assert!(offset_of!(Decoder, quant_tbl_ptrs) == offset_of!(Theirs, quant_tbl_ptrs));
    assert!(offset_of!(Decoder, comp_info) == offset_of!(Theirs, comp_info));
    assert!(offset_of!(Decoder, density_unit) == offset_of!(Theirs, density_unit));
    assert!(offset_of!(Decoder, density) == offset_of!(Theirs, X_density));
    assert!(offset_of!(Decoder, marker_list) == offset_of!(Theirs, marker_list));
    assert!(offset_of!(Decoder, max_h_samp_factor) == offset_of!(Theirs, max_h_samp_factor));
    assert!(offset_of!(Decoder, max_v_samp_factor) == offset_of!(Theirs, max_v_samp_factor));
};

/// The beginning of `jpeg_decomp_master`.
#[repr(C)]
struct Master {
    prepare_for_output_pass: *mut c_void,
    finish_output_pass: *mut c_void,
    is_dummy_pass: c_int,
    first_imcu_col: c_uint,
    last_imcu_col: c_uint,
}

/// `jpeg_entropy_decoder`.
#[repr(C)]
struct EntropyDecoder {
    start_pass: *mut c_void,
    decode_mcu: Option<DecodeMcu>,
    insufficient_data: c_int,
}

type DecodeMcu = unsafe extern "C-unwind" fn(*mut Decoder, *mut *mut Block) -> c_int;

/// What `client_data` of a decoder points to.
pub(super) struct Hook<'a> {
    scan: Scan<'a>,
    bytes: &'a [u8],
    blocks: usize,
    /// The next unit's column.
    column: u32,
    columns: u32,
    /// Called for a fault; does not return.
    fail: fn(Fault) -> !,
}

/// Takes over the Huffman decoding of a started decoder, if its image is one sequential scan.
///
/// `place` must stay where it is, untouched, until the decoder is destroyed.
///
/// # Safety
/// `decoder` was started, has read nothing yet, takes its data from `bytes`, and neither outlives `bytes` nor `place`.
pub(super) unsafe fn install<'a>(
    decoder: *mut sys::jpeg_decompress_struct,
    bytes: &'a [u8],
    place: *mut Option<Hook<'a>>,
    fail: fn(Fault) -> !,
) {
    let decoder = decoder.cast::<Decoder>();
    // SAFETY: the declarations are those of the library (see above). A started decoder has all its parts, the tables and
    // components of its scan, and its data source points into `bytes`.
    unsafe {
        let source = (*decoder).source;
        let components = (*decoder).comps_in_scan as usize;
        let sequential = (*decoder).progressive_mode == 0 && (*decoder).arith_code == 0 && (*decoder).data_precision == 8;
        let theirs = decoder.cast::<sys::jpeg_decompress_struct>();
        if !sequential || (*theirs).input_scan_number != 1 || components != (*theirs).num_components as usize || components > 4 {
            return;
        }
        let definition = |table: *mut sys::JHUFF_TBL| {
            (!table.is_null()).then(|| Definition { counts: (*table).bits, symbols: (*table).huffval })
        };
        let mut plan = Plan {
            components: Vec::with_capacity(components),
            units: u64::from((*decoder).mcus_per_row) * u64::from((*decoder).mcu_rows_in_scan),
            restart_interval: (*decoder).restart_interval.into(),
        };
        let (membership, in_scan) = ((*decoder).mcu_membership, (*decoder).cur_comp_info);
        let (dc_tables, ac_tables) = ((*decoder).dc_huff_tbl_ptrs, (*decoder).ac_huff_tbl_ptrs);
        let blocks = ((*decoder).blocks_in_mcu as usize).min(membership.len());
        for (number, &component) in in_scan[..components].iter().enumerate() {
            let table =
                |tables: &[*mut sys::JHUFF_TBL; 4], number: c_int| tables.get(number as usize).copied().and_then(definition);
            let dc = table(&dc_tables, (*component).dc_tbl_no);
            let ac = table(&ac_tables, (*component).ac_tbl_no);
            let (Some(dc), Some(ac)) = (dc, ac) else { return };
            let count = membership[..blocks].iter().filter(|&&member| member as usize == number).count();
            plan.components.push((dc, ac, count));
        }
        // One past the end is where a source that is used up may point.
        let Some(start) = bytes.len().checked_sub((*source).bytes_in_buffer) else { return };
        if bytes.as_ptr().add(start) != (*source).next_input_byte || (*decoder).unread_marker != 0 {
            return;
        }
        let Some(scan) = Scan::new(bytes, start, &plan) else { return };
        *place = Some(Hook { scan, bytes, blocks, column: 0, columns: (*decoder).mcus_per_row, fail });
        (*decoder).common.client_data = place.cast();
        (*(*decoder).entropy).decode_mcu = Some(fastest());
    }
}

/// The form of [`decode_mcu`] for this machine.
fn fastest() -> DecodeMcu {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("lzcnt") {
        return decode_mcu_bmi;
    }
    decode_mcu_plain
}

/// With shifts by any register.
///
/// # Safety
/// As [`decode_mcu`], on a machine that has these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,lzcnt")]
unsafe extern "C-unwind" fn decode_mcu_bmi(decoder: *mut Decoder, blocks: *mut *mut Block) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { decode_mcu(decoder, blocks) }
}

/// # Safety
/// As [`decode_mcu`].
unsafe extern "C-unwind" fn decode_mcu_plain(decoder: *mut Decoder, blocks: *mut *mut Block) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { decode_mcu(decoder, blocks) }
}

/// The library's call for the next unit: with places for its blocks, which are zero, or without, to go past it.
///
/// # Safety
/// Called by the library for a decoder that [`install`] has changed.
#[inline(always)]
unsafe fn decode_mcu(decoder: *mut Decoder, blocks: *mut *mut Block) -> c_int {
    // SAFETY: `client_data` points to the hook, which nobody else uses. If `blocks` is not null it holds pointers to as many
    // blocks as a unit has; for an image of one scan they lie behind one another, which is checked.
    unsafe {
        let Some(hook) = &mut *(*decoder).common.client_data.cast::<Option<Hook>>() else { return 0 };
        let master = (*decoder).master;
        let wanted = !blocks.is_null() && (*master).first_imcu_col <= hook.column && hook.column <= (*master).last_imcu_col;
        let place = wanted.then(|| {
            let first = *blocks;
            assert!((1..hook.blocks).all(|i| *blocks.add(i) == first.add(i)), "blocks of a unit are not in a row");
            std::slice::from_raw_parts_mut(first, hook.blocks)
        });
        match hook.scan.unit(place) {
            Ok(None) => {}
            Ok(Some(marker)) => {
                // The library goes on with the marker.
                let source = (*decoder).source;
                (*source).next_input_byte = hook.bytes[marker..].as_ptr();
                (*source).bytes_in_buffer = hook.bytes.len() - marker;
            }
            Err(fault) => (hook.fail)(fault),
        }
        hook.column = if hook.column + 1 == hook.columns { 0 } else { hook.column + 1 };
    }
    1
}
