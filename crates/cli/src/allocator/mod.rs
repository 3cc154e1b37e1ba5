//! The program's allocator: mimalloc for what is small, blocks of our own for tensors, batches and files.
#![expect(unsafe_code, reason = "an allocator is unsafe by its contract, and mimalloc's options are set through its C interface")]

#[cfg(unix)]
mod blocks;

use std::ffi::{c_int, c_long};

#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: by_size::BySize = by_size::BySize;

#[cfg(not(unix))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(unix)]
mod by_size {
    use std::alloc::{GlobalAlloc, Layout};

    use mimalloc::MiMalloc;

    use super::blocks::{ALIGNMENT, Blocks, LEAST};

    static LARGE: Blocks = Blocks::new();

    /// Sends a block to an allocator by its layout.
    pub(super) struct BySize;

    fn is_large(size: usize, align: usize) -> bool {
        size >= LEAST && align <= ALIGNMENT
    }

    // SAFETY: each block is handed to one of two sound allocators, by its layout alone. `GlobalAlloc` promises that a block comes back
    // with the layout it was asked with, thus to the same one; a block that `realloc` moves to the other is copied.
    unsafe impl GlobalAlloc for BySize {
        #[inline]
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            match is_large(layout.size(), layout.align()) {
                true => LARGE.take(layout.size(), false),
                false => unsafe { MiMalloc.alloc(layout) },
            }
        }

        #[inline]
        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            match is_large(layout.size(), layout.align()) {
                true => LARGE.take(layout.size(), true),
                false => unsafe { MiMalloc.alloc_zeroed(layout) },
            }
        }

        #[inline]
        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            match is_large(layout.size(), layout.align()) {
                true => unsafe { LARGE.put(block, layout.size()) },
                false => unsafe { MiMalloc.dealloc(block, layout) },
            }
        }

        unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            match (is_large(layout.size(), layout.align()), is_large(size, layout.align())) {
                (false, false) => return unsafe { MiMalloc.realloc(block, layout, size) },
                (true, true) if Blocks::is_same(layout.size(), size) => return block,
                _ => {}
            }
            // SAFETY: the caller promises that `size` is not 0 and does not overflow when rounded up to the alignment.
            unsafe {
                let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                if !moved.is_null() {
                    block.copy_to_nonoverlapping(moved, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                moved
            }
        }
    }
}

/// `mi_option_purge_delay` of mimalloc 2 and 3 (`mimalloc.h`).
const PURGE_DELAY: c_int = 15;

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
}

/// Keeps small memory that is free within the process, since the next step wants it again. Mimalloc's own setting in the environment
/// wins.
pub fn keep_memory() {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_some() {
        return;
    }
    // SAFETY: the symbol is mimalloc's, which is linked as the allocator; it takes plain numbers, and no other thread runs yet.
    unsafe { mi_option_set(PURGE_DELAY, -1) }
}
