//! The program's allocator.
#![expect(unsafe_code, reason = "mimalloc's options are set through its C interface")]

use std::ffi::{c_int, c_long};

// Every tensor operation allocates its result. The system's allocator gives large blocks back at once and takes them again page
// by page, which costs a third of a training step on the CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 2 and 3 (`mimalloc.h`).
const PURGE_DELAY: c_int = 15;

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
}

/// Keeps memory that is free within the process. The next step wants it again, and pages that were given back come zeroed one by one: a
/// third of the processor time of a training step. Mimalloc's own setting in the environment wins.
pub fn keep_memory() {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_some() {
        return;
    }
    // SAFETY: the symbol is mimalloc's, which is linked as the allocator; it takes plain numbers, and no other thread runs yet.
    unsafe { mi_option_set(PURGE_DELAY, -1) }
}
