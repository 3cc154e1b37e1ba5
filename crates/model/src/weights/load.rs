//! From a file to a network.

use super::plan::{LoadOptions, Plan};
use super::report::{FitError, LoadError, LoadReport, Problem};
use super::source::Source;
use super::store::SourceError;
use super::timm::{self, NamedTensor, transpose};
use crate::architecture::Architecture;
use crate::assemble::{Assemble, Start};
use crate::init::named;
use crate::vit::VisionTransformer;
use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};

/// A network with the weights of a file. No initial values are drawn, and beside the network at most a few tensors are in memory.
///
/// # Errors
/// All tensors that are missing, unused, of another shape or type, in one error; those that [`LoadOptions::expect`] names may be unused,
/// but a missing one is an error still, because nothing else could give its values: see [`load_into`]. And where the file cannot be
/// read.
pub fn load(
    source: &Source,
    architecture: &Architecture,
    options: &LoadOptions,
    device: &Device,
) -> Result<(VisionTransformer, LoadReport), LoadError> {
    let plan = Plan::new(source, architecture, options)?;
    if !plan.report.missing.is_empty() {
        let shapes = timm::expected(architecture);
        let problems = shapes
            .into_iter()
            .filter(|(name, _)| plan.report.missing.contains(name))
            .map(|(name, shape)| Problem::Missing { name, shape, nearest: Vec::new() });
        return Err(FitError { problems: problems.collect() }.into());
    }
    let mut read = ReadParameters { source, plan: &plan, device, error: None };
    let model = architecture.assemble(&mut read);
    match read.error {
        None => Ok((model, plan.report)),
        Some(error) => Err(error.into()),
    }
}

/// The network with every parameter that a file holds replaced; those missing as [`LoadOptions::expect`] says keep their values, as the
/// head of a network with other classes. `architecture` is the network's. Parameters keep ids, device and gradient settings.
///
/// # Errors
/// As [`load`], but for tensors that are missing as expected.
pub fn load_into(
    model: VisionTransformer,
    source: &Source,
    architecture: &Architecture,
    options: &LoadOptions,
) -> Result<(VisionTransformer, LoadReport), LoadError> {
    let plan = Plan::new(source, architecture, options)?;
    let shapes: std::collections::HashMap<String, Vec<usize>> = timm::expected(architecture).into_iter().collect();
    let mut failure = None;
    let kept = &plan.report.missing;
    let model = timm::replace(model, |name| {
        if kept.iter().any(|kept| kept == name) {
            return None;
        }
        match plan.read(source, name) {
            Ok(values) => values.map(|values| NamedTensor { name: name.to_owned(), shape: shapes[name].clone(), values }),
            Err(error) => {
                failure.get_or_insert(error);
                None
            }
        }
    });
    match failure {
        None => Ok((model, plan.report)),
        Some(error) => Err(error.into()),
    }
}

/// Reads parameters as they are asked for.
struct ReadParameters<'a> {
    source: &'a Source,
    plan: &'a Plan,
    device: &'a Device,
    error: Option<SourceError>,
}

impl Assemble for ReadParameters<'_> {
    fn device(&self) -> &Device {
        self.device
    }

    fn parameter<const D: usize>(&mut self, name: &str, shape: [usize; D], _: Start) -> Param<Tensor<D>> {
        let count = shape.iter().product();
        let values = match self.error {
            None => self.plan.read(self.source, name),
            Some(_) => Ok(None),
        };
        let values = values.unwrap_or_else(|error| {
            self.error = Some(error);
            None
        });
        // Zeros stand in after an error, when the network is thrown away.
        let values = values.unwrap_or_else(|| vec![0.0; count]);
        let values = match *shape.as_slice() {
            [into, out] => transpose(&values, out, into),
            _ => values,
        };
        named(name, TensorData::new(values, shape), self.device)
    }
}
