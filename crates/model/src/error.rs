//! The error of an impossible configuration.

/// A key of the `[model]` section holds a value that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct ModelError {
    /// The key at fault, relative to `[model]`: `heads`, `attention.overrides[1].count`.
    pub key: String,
    /// What is wrong, with the numbers that clash.
    pub message: String,
    /// What to do about it, where there is something definite to say.
    pub help: Option<String>,
}

impl ModelError {
    pub(crate) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into(), help: None }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}
