//! timm's names and layouts: what safetensors files of timm's Vision Transformers hold, and what manyheads writes.

use super::error::{MalformedTensor, MisshapenTensor, MissingTensor, WeightsError};
use crate::architecture::Architecture;
use crate::names::parameter_name;
use crate::vit::VisionTransformer;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData, Transaction};
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

/// Every parameter of a model, in model order (timm's), read from the device in one transfer.
///
/// # Panics
/// Where the device fails to deliver the values, as after it ran out of memory.
pub fn export(model: &VisionTransformer) -> Vec<NamedTensor> {
    let mut read = Read::default();
    model.visit(&mut read);
    read.names
        .into_iter()
        .zip(read.transaction.execute())
        .map(|(name, data)| {
            let dims = data.shape().as_slice().to_vec();
            let values = floats(data);
            match *dims.as_slice() {
                [rows, columns] => NamedTensor { name, shape: vec![columns, rows], values: transpose(&values, rows, columns) },
                _ => NamedTensor { name, shape: dims, values },
            }
        })
        .collect()
}

/// The names and timm shapes of an architecture's parameters, in model order.
pub fn expected(architecture: &Architecture) -> Vec<(String, Vec<usize>)> {
    let Architecture { patch, channels, classes, width, mlp_hidden, qkv_bias, .. } = *architecture;
    let mut list: Vec<(String, Vec<usize>)> = Vec::new();
    let linear = |list: &mut Vec<(String, Vec<usize>)>, name: &str, out, into, bias| {
        list.push((format!("{name}.weight"), vec![out, into]));
        if bias {
            list.push((format!("{name}.bias"), vec![out]));
        }
    };
    let norm = |list: &mut Vec<(String, Vec<usize>)>, name: &str| {
        list.push((format!("{name}.weight"), vec![width]));
        list.push((format!("{name}.bias"), vec![width]));
    };

    list.push(("cls_token".into(), vec![1, 1, width]));
    list.push(("pos_embed".into(), vec![1, architecture.tokens(), width]));
    list.push(("patch_embed.proj.weight".into(), vec![width, channels, patch, patch]));
    list.push(("patch_embed.proj.bias".into(), vec![width]));
    for block in 0..architecture.depth {
        let at = |part: &str| format!("blocks.{block}.{part}");
        norm(&mut list, &at("norm1"));
        linear(&mut list, &at("attn.qkv"), 3 * width, width, qkv_bias);
        linear(&mut list, &at("attn.proj"), width, width, true);
        norm(&mut list, &at("norm2"));
        linear(&mut list, &at("mlp.fc1"), mlp_hidden, width, true);
        linear(&mut list, &at("mlp.fc2"), width, mlp_hidden, true);
    }
    norm(&mut list, "norm");
    linear(&mut list, "head", classes, width, true);
    list
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

/// The candidate most like `name`, where one is like it at all.
fn nearest(name: &str, candidates: &[String]) -> Option<String> {
    candidates
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate.clone())
}

/// Collects names and queues values for one read.
#[derive(Default)]
struct Read {
    path: Vec<String>,
    names: Vec<String>,
    transaction: Transaction,
}

impl ModuleVisitor for Read {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.names.push(parameter_name(&self.path));
        self.transaction = std::mem::take(&mut self.transaction).register(param.val());
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
fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut transposed = Vec::with_capacity(values.len());
    for column in 0..columns {
        transposed.extend((0..rows).map(|row| values[row * columns + column]));
    }
    transposed
}
