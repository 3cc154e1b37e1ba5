//! SIGINT, SIGTERM, SIGUSR1 and SIGHUP ask the run to finish its step, save and leave; a second SIGINT leaves at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Whether the run has been asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    /// A SIGINT came since somebody last looked.
    interrupted: Arc<AtomicBool>,
    /// What ends the process at the second SIGINT.
    #[cfg(unix)]
    shutdown: Option<signal_hook::SigId>,
}

impl Stop {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn on_signals() -> Result<Self> {
        #[cfg_attr(not(unix), expect(unused_mut, reason = "there are no signals to register"))]
        let mut stop = Self::default();
        #[cfg(unix)]
        {
            use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
            let mut register = || -> std::io::Result<()> {
                // In this order: at the first SIGINT the flag is not yet set, at the second it is.
                let shutdown = signal_hook::flag::register_conditional_shutdown(SIGINT, 130, stop.asked.clone())?;
                stop.shutdown = Some(shutdown);
                signal_hook::flag::register(SIGINT, stop.interrupted.clone())?;
                for signal in [SIGINT, SIGTERM, SIGUSR1] {
                    signal_hook::flag::register(signal, stop.asked.clone())?;
                }
                if !hangup_ignored() {
                    signal_hook::flag::register(SIGHUP, stop.asked.clone())?;
                }
                // Where files may not grow further (`ulimit -f`), writing is to fail with an error rather than end the process.
                signal_hook::flag::register(SIGXFSZ, Arc::default())?;
                Ok(())
            };
            register().map_err(|e| Error::Failed(format!("cannot catch signals: {e}")))?;
        }
        Ok(stop)
    }

    /// From now on the second SIGINT is the caller's, who must put the terminal in order before it leaves.
    pub fn take_over(&self) {
        #[cfg(unix)]
        if let Some(shutdown) = self.shutdown {
            signal_hook::low_level::unregister(shutdown);
        }
    }

    /// Asks the run to stop.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether a SIGINT came since this was last called.
    pub fn take_interrupt(&self) -> bool {
        self.interrupted.swap(false, Ordering::Relaxed)
    }

    /// The flag that a signal sets, for work that looks at it itself.
    pub fn flag(&self) -> &AtomicBool {
        &self.asked
    }

    /// Whether a signal has come.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Whether this process was started to outlive its terminal, as by `nohup`: then SIGHUP is to do nothing. Only Linux tells; elsewhere it is
/// left as it is.
#[cfg(unix)]
fn hangup_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").map_or(true, |status| ignored(&status, signal_hook::consts::SIGHUP))
}

/// Whether a `/proc/PID/status` lists `signal` among the ignored ones, a mask in hexadecimal.
#[cfg(unix)]
fn ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_none_or(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(all(test, unix))]
mod tests {
    use super::ignored;

    #[test]
    fn ignored_signals_are_read_from_their_mask() {
        let status = |mask: &str| format!("Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t{mask}\nSigCgt:\t0000000000000440\n");
        assert!(ignored(&status("0000000000000001"), 1));
        assert!(!ignored(&status("0000000000001000"), 1));
        assert!(ignored(&status("0000000000001000"), 13));
        assert!(ignored("Name:\tx\n", 1), "where nothing is told, nothing is changed");
    }
}
