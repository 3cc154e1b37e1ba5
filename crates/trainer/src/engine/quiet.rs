//! Opening a GPU without the noise of its drivers.
//!
//! Graphics libraries print on stderr what concerns windows, which we do not open: without a desktop, each look for adapters says
//! "error: XDG_RUNTIME_DIR is invalid". Someone who reads that believes that training failed.

/// Runs `work` with what libraries print on stderr held back. It is shown after all where `work` panics.
#[cfg(target_os = "linux")]
pub fn quiet<T>(work: impl FnOnce() -> T) -> T {
    let _held = Held::begin();
    work()
}

/// Runs `work`.
#[cfg(not(target_os = "linux"))]
pub fn quiet<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// Stderr, led into memory until this is dropped.
#[cfg(target_os = "linux")]
struct Held {
    stderr: std::os::fd::OwnedFd,
    memory: std::fs::File,
}

#[cfg(target_os = "linux")]
impl Held {
    /// `None` where stderr is closed or the system refuses: then nothing is held back.
    fn begin() -> Option<Self> {
        use rustix::{fs, io, stdio};
        let stderr = io::dup(stdio::stderr()).ok()?;
        let memory = fs::memfd_create("stderr", fs::MemfdFlags::CLOEXEC).ok()?;
        stdio::dup2_stderr(&memory).ok()?;
        Some(Self { stderr, memory: memory.into() })
    }
}

#[cfg(target_os = "linux")]
impl Drop for Held {
    fn drop(&mut self) {
        use std::io::{Read, Seek, Write};
        let _ = rustix::stdio::dup2_stderr(&self.stderr);
        let mut text = Vec::new();
        if std::thread::panicking() && self.memory.rewind().is_ok() && self.memory.read_to_end(&mut text).is_ok() {
            let _ = std::io::stderr().write_all(&text);
        }
    }
}
