//! timm's names and layouts: what safetensors files of timm's Vision Transformers hold, and what manyheads writes.

use super::error::{MalformedTensor, MisshapenTensor, MissingTensor, WeightsError};
use crate::architecture::Architecture;
use crate::names::parameter_name;
use crate::vit::VisionTransformer;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{ExecutionError, Tensor, TensorData, Transaction};
use std::collections::BTreeSet;

/// A tensor in timm's layout: linear weights `[out, in]`, the patch convolution `[width, channels, patch, patch]`, `pos_embed`
/// `[1, tokens, width]`, vectors as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// timm's name.
    pub name: String,
    /// timm's shape.
    pub shape: Vec<usize>,
    /// Values in row-major order.
    pub values: Vec<f32>,
}

/// A parameter as its device holds it, under timm's name. Holding it costs nothing until the model's own changes; then its memory stays.
#[derive(Debug, Clone)]
pub struct HeldTensor {
    /// timm's name.
    pub name: String,
    /// timm's shape.
    pub shape: Vec<usize>,
    /// The values, flat, in the order of the module and without autodiff.
    pub values: Tensor<1>,
    /// How they come into timm's order.
    pub layout: Layout,
}

/// The order of a tensor's values in the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// timm's own.
    Same,
    /// A matrix of so many rows and columns, which is timm's transposed.
    Transposed([usize; 2]),
}

impl Layout {
    /// Values in the module's order, brought into timm's.
    pub fn to_timm(self, values: Vec<f32>) -> Vec<f32> {
        match self {
            Self::Same => values,
            Self::Transposed([rows, columns]) => transpose(&values, rows, columns),
        }
    }
}

/// Every parameter of a model, in model order (timm's), held as it is now while the model goes on.
pub fn hold(model: &VisionTransformer) -> Vec<HeldTensor> {
    let mut hold = Hold::default();
    model.visit(&mut hold);
    hold.held
}

/// Every parameter of a model, in model order (timm's), read from the device in one transfer.
///
/// # Errors
/// Where the device fails to deliver the values, as after it ran out of memory.
pub fn try_export(model: &VisionTransformer) -> Result<Vec<NamedTensor>, ExecutionError> {
    let held = hold(model);
    let register = |transaction: Transaction, tensor: &HeldTensor| transaction.register(tensor.values.clone());
    let read = held.iter().fold(Transaction::default(), register).try_execute()?;
    let named = held.into_iter().zip(read).map(|(held, data)| {
        let values = held.layout.to_timm(floats(data));
        NamedTensor { name: held.name, shape: held.shape, values }
    });
    Ok(named.collect())
}

/// [`try_export`] for a device that does not fail.
///
/// # Panics
/// Where the device fails to deliver the values.
pub fn export(model: &VisionTransformer) -> Vec<NamedTensor> {
    try_export(model).unwrap_or_else(|e| panic!("the weights cannot be read from the device: {e}"))
}

/// The names and timm shapes of an architecture's parameters, in model order.
pub fn expected(architecture: &Architecture) -> Vec<(String, Vec<usize>)> {
    let Architecture { patch, channels, classes, width, mlp_hidden, registers, .. } = *architecture;
    let [rows, columns] = architecture.grid();
    let mut list = List::default();

    list.push_if(architecture.class_token, "cls_token", &[1, 1, width]);
    list.push_if(registers > 0, "reg_token", &[1, registers, width]);
    list.push("pos_embed", &[1, architecture.embedded_prefix_tokens() + rows * columns, width]);
    list.push_if(architecture.distilled, "dist_token", &[1, 1, width]);
    list.push("patch_embed.proj.weight", &[width, channels, patch, patch]);
    list.push_if(architecture.patch_bias, "patch_embed.proj.bias", &[width]);
    for block in 0..architecture.depth {
        let at = |part: &str| format!("blocks.{block}.{part}");
        let scaled = architecture.layer_scale.is_some();
        list.norm(true, &at("norm1"), width);
        list.linear(&at("attn.qkv"), 3 * width, width, architecture.qkv_bias);
        list.linear(&at("attn.proj"), width, width, true);
        list.push_if(scaled, &at("ls1.gamma"), &[width]);
        list.norm(true, &at("norm2"), width);
        list.linear(&at("mlp.fc1"), mlp_hidden, width, true);
        list.linear(&at("mlp.fc2"), width, mlp_hidden, true);
        list.push_if(scaled, &at("ls2.gamma"), &[width]);
    }
    list.norm(!architecture.fc_norm, "norm", width);
    list.norm(architecture.fc_norm, "fc_norm", width);
    list.linear("head", classes, width, true);
    if architecture.distilled {
        list.linear("head_dist", classes, width, true);
    }
    list.0
}

/// Names and shapes in the making.
#[derive(Default)]
struct List(Vec<(String, Vec<usize>)>);

impl List {
    fn push(&mut self, name: &str, shape: &[usize]) {
        self.0.push((name.to_owned(), shape.to_vec()));
    }

    fn push_if(&mut self, present: bool, name: &str, shape: &[usize]) {
        if present {
            self.push(name, shape);
        }
    }

    fn linear(&mut self, name: &str, out: usize, into: usize, bias: bool) {
        self.push(&format!("{name}.weight"), &[out, into]);
        self.push_if(bias, &format!("{name}.bias"), &[out]);
    }

    fn norm(&mut self, present: bool, name: &str, width: usize) {
        self.push_if(present, &format!("{name}.weight"), &[width]);
        self.push_if(present, &format!("{name}.bias"), &[width]);
    }
}

/// The model with every parameter replaced by the tensor of its name.
///
/// `fetch` is asked for each name once, in model order. `available` are the names the source holds: they serve to find the nearest name
/// of a missing tensor, and those the model has no place for are an error; pass an empty slice where the source cannot tell. Each
/// parameter keeps its id, its device and whether it requires gradients, and `import` of an [`export`] is bit-equal.
///
/// # Errors
/// All tensors that are missing, misshapen, malformed or unexpected, in one error.
pub fn import(
    model: VisionTransformer,
    available: &[String],
    fetch: impl FnMut(&str) -> Option<NamedTensor>,
) -> Result<VisionTransformer, WeightsError> {
    let mut write = Write { path: Vec::new(), fetch, asked: BTreeSet::new(), error: WeightsError::default() };
    let model = model.map(&mut write);

    let Write { asked, mut error, .. } = write;
    error.unexpected = available.iter().filter(|name| !asked.contains(*name)).cloned().collect();
    for missing in &mut error.missing {
        missing.nearest = nearest(&missing.name, &error.unexpected);
    }
    if error.is_empty() { Ok(model) } else { Err(error) }
}

/// The model with the parameters that `fetch` gives a tensor of the right shape for; the others as they were.
pub(crate) fn replace(model: VisionTransformer, fetch: impl FnMut(&str) -> Option<NamedTensor>) -> VisionTransformer {
    model.map(&mut Write { path: Vec::new(), fetch, asked: BTreeSet::new(), error: WeightsError::default() })
}

/// The candidate most like `name`, where one is like it at all.
fn nearest(name: &str, candidates: &[String]) -> Option<String> {
    candidates
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate.clone())
}

/// Collects parameters.
#[derive(Default)]
struct Hold {
    path: Vec<String>,
    held: Vec<HeldTensor>,
}

impl ModuleVisitor for Hold {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let value = if value.is_autodiff() { value.inner() } else { value };
        let dims: Vec<usize> = value.dims().to_vec();
        let (shape, layout) = match *dims.as_slice() {
            [rows, columns] => (vec![columns, rows], Layout::Transposed([rows, columns])),
            _ => (dims, Layout::Same),
        };
        self.held.push(HeldTensor { name: parameter_name(&self.path), shape, values: value.reshape([-1]), layout });
    }
}

/// Replaces values and collects what does not fit.
struct Write<F> {
    path: Vec<String>,
    fetch: F,
    asked: BTreeSet<String>,
    error: WeightsError,
}

impl<F: FnMut(&str) -> Option<NamedTensor>> Write<F> {
    /// The values of a parameter in Burn's layout, or none with the reason noted.
    fn values(&mut self, name: &str, dims: &[usize]) -> Option<Vec<f32>> {
        let mut expected = dims.to_vec();
        if expected.len() == 2 {
            expected.swap(0, 1);
        }
        let Some(tensor) = (self.fetch)(name) else {
            self.error.missing.push(MissingTensor { name: name.to_owned(), shape: expected, nearest: None });
            return None;
        };
        if tensor.shape != expected {
            self.error.misshapen.push(MisshapenTensor { name: name.to_owned(), expected, found: tensor.shape });
            return None;
        }
        if tensor.values.len() != expected.iter().product::<usize>() {
            self.error.malformed.push(MalformedTensor {
                name: name.to_owned(),
                shape: tensor.shape,
                values: tensor.values.len(),
            });
            return None;
        }
        match *dims {
            [rows, columns] => Some(transpose(&tensor.values, columns, rows)),
            _ => Some(tensor.values),
        }
    }
}

impl<F: FnMut(&str) -> Option<NamedTensor>> ModuleMapper for Write<F> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = parameter_name(&self.path);
        let dims = param.dims();
        let values = self.values(&name, &dims);
        self.asked.insert(name);
        let Some(values) = values else {
            return param;
        };
        let (id, old, mapper) = param.consume();
        let value = Tensor::from_data(TensorData::new(values, dims), (&old.device(), old.dtype()));
        let value = if old.is_require_grad() { value.require_grad() } else { value };
        Param::from_mapped_value(id, value, mapper)
    }
}

fn floats(data: TensorData) -> Vec<f32> {
    data.convert::<f32>().try_into_vec().expect("a tensor converted to f32 holds f32")
}

/// A row-major `[rows, columns]` matrix as `[columns, rows]`.
pub(crate) fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    // Tiles that fit the first cache: a plain loop misses it once a value.
    const TILE: usize = 32;
    let mut transposed = vec![0.0; rows * columns];
    for top in (0..rows).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            for column in left..(left + TILE).min(columns) {
                let end = (top + TILE).min(rows);
                let target = &mut transposed[column * rows + top..column * rows + end];
                for (row, value) in (top..end).zip(target) {
                    *value = values[row * columns + column];
                }
            }
        }
    }
    transposed
}

#[cfg(test)]
mod tests {
    use super::transpose;

    #[test]
    fn transposing_moves_every_value() {
        for (rows, columns) in [(1, 1), (1, 70), (33, 64), (65, 31), (3, 2)] {
            let values: Vec<f32> = (0..rows * columns).map(|value| value as f32).collect();
            let transposed = transpose(&values, rows, columns);
            for row in 0..rows {
                for column in 0..columns {
                    assert_eq!(transposed[column * rows + row], values[row * columns + column]);
                }
            }
        }
    }
}
