//! Systems whose terminals the dashboard cannot take: plain lines follow there.

use std::io;
use std::sync::Arc;

use super::{Key, Shared};

/// Why a dashboard cannot be shown here.
pub(crate) fn obstacle() -> Option<&'static str> {
    Some("it needs a terminal of Unix's kind")
}

/// A terminal that cannot be taken.
pub(super) enum Screen {}

impl Screen {
    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub fn take(_: Arc<Shared>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing to draw on.
    ///
    /// # Errors
    /// Never called.
    pub fn draw(&mut self) -> io::Result<()> {
        match *self {}
    }

    /// No keys.
    pub fn keys(&mut self) -> Vec<Key> {
        match *self {}
    }
}
