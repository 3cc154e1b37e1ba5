//! What is printed on stderr while the dashboard fills the terminal: messages of panics, of drivers, of libraries. They would be painted over
//! and lost; they are shown among the lines and printed again at the end.

use std::io::{self, BufRead};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

/// Stderr, led to the dashboard until this is dropped.
pub(super) struct Capture {
    stderr: OwnedFd,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    /// Hands every line to `say` from now on.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn begin(say: impl Fn(String) + Send + 'static) -> io::Result<Self> {
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        let (reader, writer) = io::pipe()?;
        let reader = std::thread::Builder::new().name("stderr".into()).spawn(move || {
            for line in io::BufReader::new(reader).split(b'\n').map_while(Result::ok) {
                say(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
        })?;
        rustix::stdio::dup2_stderr(&writer)?;
        // Now stderr itself is the pipe's only writing end, so that the reader ends when it is led back.
        drop(writer);
        Ok(Self { stderr, reader: Some(reader) })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if rustix::stdio::dup2_stderr(&self.stderr).is_ok()
            && let Some(reader) = self.reader.take()
        {
            let _ = reader.join();
        }
    }
}
