//! The gradient that goes past a residual branch.

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the end of a residual branch leaves the gradient of what it branched off from, for the norm at the branch's beginning to add to
/// its own. Without it autodiff would add the two in a pass of its own.
///
/// The end depends on the beginning, so its step of the backward pass always comes first.
#[derive(Clone, Default)]
pub struct Skip(Arc<Mutex<Option<Box<dyn Any + Send>>>>);

impl Skip {
    /// Leaves a gradient.
    pub(crate) fn put<B: Backend>(&self, gradient: FloatTensor<B>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(gradient));
    }

    /// Takes the gradient that was left, if one was.
    pub(crate) fn take<B: Backend>(&self) -> Option<FloatTensor<B>> {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(*left.downcast().expect("one backend computes both ends of a branch"))
    }
}

impl fmt::Debug for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Skip")
    }
}
