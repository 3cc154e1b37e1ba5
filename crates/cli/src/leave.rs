//! The end of the program.

use std::io::Write;

/// What the program tells the system of how it went.
pub type Code = u8;

/// All was done.
pub const SUCCESS: Code = 0;
/// Something was not.
pub const FAILURE: Code = 1;
/// A run was stopped and can be continued, as a shell tells of an interrupt.
pub const INTERRUPTED: Code = 130;

/// Ends the program at once, without what C libraries have registered for the end.
///
/// A GPU's driver may be at work for us still, as when CubeCL times a kernel that nobody waits for any more. To tear it down under its own
/// threads ends in a crash, and a run that is complete in an exit code of 139.
pub fn leave(code: Code) -> ! {
    let _ = std::io::stdout().flush();
    #[cfg(unix)]
    #[allow(unsafe_code)]
    // SAFETY: it takes any number and does not come back; what we write is flushed above, and nothing of ours is left for the end.
    unsafe {
        libc::_exit(code.into())
    }
    #[cfg(not(unix))]
    std::process::exit(code.into())
}
