//! What happened to each tensor on loading, and what kept a file from being loaded.

use super::store::SourceError;
use std::fmt;

/// What became of every tensor of the model and of the file. Names are timm's for the model's tensors and the file's for the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadReport {
    /// The model's tensors that came from the file, in model order; those reshaped included.
    pub loaded: Vec<String>,
    /// Those that had another shape in the file.
    pub reshaped: Vec<Reshaped>,
    /// The model's tensors that the file lacks, or has in another shape, as expected: they keep the values they had.
    pub missing: Vec<String>,
    /// The file's tensors that the model has no place for, as expected.
    pub unused: Vec<String>,
    /// The file's tensors that classification never uses (`pre_logits`, the pooler of Hugging Face's `ViTModel`, mask tokens).
    pub ignored: Vec<String>,
    /// What else a reader should know, a sentence each.
    pub notes: Vec<String>,
}

/// A tensor that fits after a change of shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reshaped {
    /// timm's name.
    pub name: String,
    /// The shape in the file.
    pub from: Vec<usize>,
    /// The shape in the model.
    pub to: Vec<usize>,
    /// How: "bicubic, antialiased, from a grid of 14 x 14 to 24 x 24".
    pub how: String,
}

impl fmt::Display for LoadReport {
    /// A line of counts, then a line for each group that is not empty but the loaded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loaded, reshaped, missing, unused, ignored, notes } = self;
        write!(
            f,
            "{} tensors loaded, {} of them reshaped; {} missing, {} unused, {} ignored",
            loaded.len(),
            reshaped.len(),
            missing.len(),
            unused.len(),
            ignored.len()
        )?;
        for Reshaped { name, from, to, how } in reshaped {
            write!(f, "\n  reshaped {name} {from:?} to {to:?}: {how}")?;
        }
        for (word, names) in [("missing as expected", missing), ("unused as expected", unused), ("ignored", ignored)] {
            if !names.is_empty() {
                write!(f, "\n  {word}: {}", names.join(", "))?;
            }
        }
        notes.iter().try_for_each(|note| write!(f, "\n  {note}"))
    }
}

/// Weights that were not loaded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Its tensors are not the model's.
    #[error(transparent)]
    Fit(#[from] FitError),
}

/// Everything that keeps a file's tensors from being a model's, at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct FitError {
    /// The problems: the model's tensors in model order, then the file's others in alphabetical order.
    pub problems: Vec<Problem>,
}

impl FitError {
    fn text(&self) -> String {
        let mut text = format!("the weights do not fit the model: {} problems", self.problems.len());
        if self.problems.len() == 1 {
            text.pop();
        }
        for problem in &self.problems {
            text.push_str(&format!("\n  {problem}"));
        }
        text
    }
}

/// One tensor that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file has the model's tensor under another name, as name and shape suggest.
    #[error("{expected} {shape:?} is missing, and {found} of the same shape is unused: is it the same tensor?")]
    Renamed {
        /// timm's name.
        expected: String,
        /// The file's name.
        found: String,
        /// The shape of both.
        shape: Vec<usize>,
    },
    /// The file lacks a tensor of the model.
    #[error("{name} {shape:?} is missing{}", nearest_text(nearest))]
    Missing {
        /// timm's name.
        name: String,
        /// timm's shape.
        shape: Vec<usize>,
        /// The file's names most like it.
        nearest: Vec<String>,
    },
    /// The model has no place for a tensor of the file.
    #[error("{name} {shape:?} has no place in the model{}", nearest_text(nearest))]
    Unused {
        /// The file's name.
        name: String,
        /// The file's shape.
        shape: Vec<usize>,
        /// The model's names most like it.
        nearest: Vec<String>,
    },
    /// A tensor has another shape, and there is no way to change it.
    #[error("{name} has shape {found:?}, the model needs {expected:?}: {help}")]
    Shape {
        /// timm's name.
        name: String,
        /// The file's shape.
        found: Vec<usize>,
        /// The model's shape.
        expected: Vec<usize>,
        /// Why, and what to do.
        help: String,
    },
    /// Queries, keys and values are stored apart and not all there, or twice.
    #[error("{name} is made of queries, keys and values, and the file has {}", found.join(", "))]
    Thirds {
        /// timm's name of the whole.
        name: String,
        /// The file's names.
        found: Vec<String>,
    },
    /// A tensor holds integers or a small float.
    #[error("{name} holds no floats of 16, 32 or 64 bits")]
    Type {
        /// The file's name.
        name: String,
    },
}

fn nearest_text(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        names => format!(" (nearest: {})", names.join(", ")),
    }
}
