//! What can go wrong, sorted by what the caller should do about it.

use std::path::Path;

/// An error of the trainer. Its text names the file, key or tensor and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line or the configuration is wrong: nothing was started. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The work itself failed. Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// A signal stopped the work; what is done is kept where the text says so. Exit code 130.
    #[error("{0}")]
    Interrupted(String),
}

/// Result of the trainer's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The exit code the program ends with: 2 for a wrong command line or configuration, 130 after a signal, 1 otherwise.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Usage(_) => 2,
            Error::Failed(_) => 1,
            Error::Interrupted(_) => 130,
        }
    }

    /// A failed operation on a file, with the system's own reason.
    pub fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Error::Failed(format!("cannot {doing} {}: {error}", path.display()))
    }

    /// The same error with the configuration's key that led to it in front.
    pub fn under(self, key: &str) -> Self {
        match self {
            Error::Usage(text) => Error::Usage(format!("{key}: {text}")),
            Error::Failed(text) => Error::Failed(format!("{key}: {text}")),
            Error::Interrupted(text) => Error::Interrupted(text),
        }
    }
}

impl From<manyheads_data::DataError> for Error {
    fn from(error: manyheads_data::DataError) -> Self {
        Error::Failed(error.to_string())
    }
}
