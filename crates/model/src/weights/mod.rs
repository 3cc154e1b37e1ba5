//! Weights in and out: the names, shapes and layouts other programs store.
//!
//! [`Source::open`] opens a file or directory without reading its values, [`recognise`] says what model it holds, [`load`] makes the
//! network, [`convert`] writes another layout. [`timm`] is the way between a network and tensors in memory.

pub mod timm;

mod aside;
mod convert;
mod error;
mod files;
mod hugging_face;
mod layout;
mod load;
mod plan;
mod positions;
mod recognise;
mod report;
mod source;
mod store;

pub use convert::{Export, ExportError, convert};
pub use error::{MalformedTensor, MisshapenTensor, MissingTensor, WeightsError};
pub use layout::Layout;
pub use load::{load, load_into};
pub use plan::{LoadOptions, name_matches};
pub use positions::{PositionResize, resize_positions};
pub use recognise::{Hints, RecogniseError, Recognised, recognise};
pub use report::{FitError, LoadError, LoadReport, Problem, Reshaped};
pub use source::{OpenOptions, Source, TensorInfo};
pub use store::{Container, DType, SourceError};
