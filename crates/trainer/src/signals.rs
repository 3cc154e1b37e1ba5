//! SIGINT, SIGTERM and SIGUSR1 ask the run to finish its step, save and leave; a second SIGINT leaves at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Whether the run has been asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn on_signals() -> Result<Self> {
        let stop = Self::default();
        #[cfg(unix)]
        {
            use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
            let register = || -> std::io::Result<()> {
                // In this order: at the first SIGINT the flag is not yet set, at the second it is.
                signal_hook::flag::register_conditional_shutdown(SIGINT, 130, stop.0.clone())?;
                for signal in [SIGINT, SIGTERM, SIGUSR1] {
                    signal_hook::flag::register(signal, stop.0.clone())?;
                }
                // Where files may not grow further (`ulimit -f`), writing is to fail with an error rather than end the process.
                signal_hook::flag::register(SIGXFSZ, Arc::default())?;
                Ok(())
            };
            register().map_err(|e| Error::Failed(format!("cannot catch signals: {e}")))?;
        }
        Ok(stop)
    }

    /// The flag that a signal sets, for work that looks at it itself.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Whether a signal has come.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
