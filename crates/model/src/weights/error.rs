//! The error of weights that do not fit a model.

use std::fmt;

/// Everything that keeps a set of tensors from fitting a model, all of it at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WeightsError {
    /// Tensors the model needs and the source lacks, in model order.
    pub missing: Vec<MissingTensor>,
    /// Tensors of another shape than the model's.
    pub misshapen: Vec<MisshapenTensor>,
    /// Tensors whose number of values is not what their own shape says.
    pub malformed: Vec<MalformedTensor>,
    /// Tensors the source has and the model has no place for.
    pub unexpected: Vec<String>,
}

/// A tensor that the source lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingTensor {
    /// timm's name.
    pub name: String,
    /// timm's shape.
    pub shape: Vec<usize>,
    /// The unused name of the source that is most like it, if any is.
    pub nearest: Option<String>,
}

/// A tensor of the wrong shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MisshapenTensor {
    /// timm's name.
    pub name: String,
    /// The shape the model needs.
    pub expected: Vec<usize>,
    /// The shape the source has.
    pub found: Vec<usize>,
}

/// A tensor that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedTensor {
    /// timm's name.
    pub name: String,
    /// The shape the source states.
    pub shape: Vec<usize>,
    /// The number of values the source holds.
    pub values: usize,
}

impl WeightsError {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { missing, misshapen, malformed, unexpected } = self;
        missing.is_empty() && misshapen.is_empty() && malformed.is_empty() && unexpected.is_empty()
    }
}

impl std::error::Error for WeightsError {}

impl fmt::Display for WeightsError {
    /// One line a tensor, after a line that counts them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the weights do not fit the model: {} missing, {} of another shape, {} malformed, {} unexpected",
            self.missing.len(),
            self.misshapen.len(),
            self.malformed.len(),
            self.unexpected.len()
        )?;
        for MissingTensor { name, shape, nearest } in &self.missing {
            write!(f, "\n  missing {name} {shape:?}")?;
            if let Some(nearest) = nearest {
                write!(f, " (did you mean {nearest}?)")?;
            }
        }
        for MisshapenTensor { name, expected, found } in &self.misshapen {
            write!(f, "\n  {name} has shape {found:?}, the model needs {expected:?}")?;
            if let Some(help) = reason(name) {
                write!(f, " ({help})")?;
            }
        }
        for MalformedTensor { name, shape, values } in &self.malformed {
            write!(f, "\n  {name} says shape {shape:?} and holds {values} values")?;
        }
        for name in &self.unexpected {
            write!(f, "\n  unexpected {name}: the model has no such tensor")?;
        }
        Ok(())
    }
}

/// The key of a configuration that a tensor's shape follows from, where there is a usual one.
fn reason(name: &str) -> Option<&'static str> {
    match name {
        "pos_embed" => Some("set by image_size, patch_size and width"),
        "head.weight" | "head.bias" => Some("set by classes and width"),
        "patch_embed.proj.weight" => Some("set by patch_size, channels and width"),
        _ => None,
    }
}
