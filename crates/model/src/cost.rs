//! What a network costs: parameters, multiply-accumulates, and the memory of training.

use crate::architecture::{Architecture, LayerAttention, Pool};
use crate::plan::AttentionKind;
use crate::precision::Operation;
use crate::weights::timm;
use burn::tensor::{DType, FloatDType};

/// The cost of one part of a network, per image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerCost {
    /// The part: `patch_embed`, `blocks.0` …, `norm`, `head`. `patch_embed` includes the tokens before the
    /// patches and `pos_embed`, `head` the second head of a distilled network.
    pub name: String,
    /// What it is: `embedding`, `softmax`, `hydra/cosine` …, `norm`, `classifier`.
    pub kind: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Multiply-accumulates of a forward pass, attention included.
    pub macs: u64,
    /// Multiply-accumulates of mixing tokens alone: creating and applying attention, without the projections.
    pub macs_attention: u64,
}

/// The cost of a network, part by part from input to output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// The parts.
    pub layers: Vec<LayerCost>,
}

impl Cost {
    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        self.layers.iter().map(|layer| layer.parameters).sum()
    }

    /// Multiply-accumulates of a forward pass of one image.
    pub fn macs(&self) -> u64 {
        self.layers.iter().map(|layer| layer.macs).sum()
    }

    /// The share of [`Self::macs`] that mixes tokens.
    pub fn macs_attention(&self) -> u64 {
        self.layers.iter().map(|layer| layer.macs_attention).sum()
    }
}

/// Counts parameters and multiply-accumulates of a forward pass per image.
///
/// With T tokens, width D and H heads, a layer mixes tokens in `2 T^2 D` (softmax), `2 T D^2 / H` (linear) or `2 T D` (Hydra)
/// multiply-accumulates, the counts of Hydra Attention, table 4. Every matrix product with weights counts in full. Norms, softmax, GELU,
/// kernels, biases and residual sums are not multiply-accumulates and are left out, which is why timm's table says 17.58 G for DeiT-B
/// where this says 17.56.
pub fn cost(architecture: &Architecture) -> Cost {
    let tokens = architecture.tokens() as u64;
    let width = architecture.width as u64;
    let heads = architecture.heads as u64;
    let hidden = architecture.mlp_hidden as u64;
    let pixels = (architecture.channels * architecture.patch * architecture.patch) as u64;

    let patches = architecture.grid().iter().product::<usize>() as u64;
    let heads_of_classes = 1 + u64::from(architecture.distilled);

    let mut parameters = vec![0; architecture.depth + 3];
    for (name, shape) in timm::expected(architecture) {
        let part = match name.split('.').collect::<Vec<_>>()[..] {
            ["blocks", block, ..] => 1 + block.parse::<usize>().expect("a block's name holds its number"),
            ["norm" | "fc_norm", ..] => architecture.depth + 1,
            ["head" | "head_dist", ..] => architecture.depth + 2,
            _ => 0,
        };
        parameters[part] += shape.iter().product::<usize>() as u64;
    }

    let embedding = std::iter::once(("patch_embed".to_owned(), "embedding".to_owned(), patches * pixels * width, 0));
    let blocks = architecture.layers.iter().enumerate().map(|(index, layer)| {
        let attention = match layer.kind {
            AttentionKind::Softmax => 2 * tokens * tokens * width,
            AttentionKind::Linear => 2 * tokens * width * (width / heads),
            AttentionKind::Hydra => 2 * tokens * width,
        };
        let products = tokens * width * (4 * width + 2 * hidden);
        (format!("blocks.{index}"), layer.to_string(), products + attention, attention)
    });
    let rest = [
        ("norm".to_owned(), "norm".to_owned(), 0, 0),
        ("head".to_owned(), "classifier".to_owned(), heads_of_classes * width * architecture.classes as u64, 0),
    ];

    let layers = embedding
        .chain(blocks)
        .chain(rest)
        .zip(parameters)
        .map(|((name, kind, macs, macs_attention), parameters)| LayerCost { name, kind, parameters, macs, macs_attention })
        .collect();
    Cost { layers }
}

/// The memory of a training step in bytes, by what holds it. An estimate; see [`training_memory_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// f32 parameters.
    pub weights: u64,
    /// f32 gradients.
    pub gradients: u64,
    /// AdamW's two f32 moments.
    pub optimizer: u64,
    /// What the backward pass needs from the forward pass.
    pub activations: u64,
}

impl MemoryEstimate {
    /// All of it.
    pub fn total(&self) -> u64 {
        [self.weights, self.gradients, self.optimizer, self.activations].into_iter().fold(0, u64::saturating_add)
    }
}

/// How a network is trained, as far as the memory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// Float type of the matrix products.
    pub products: FloatDType,
    /// Whether blocks are computed again in the backward pass.
    pub recompute: bool,
}

impl Default for Training {
    fn default() -> Self {
        Self { products: FloatDType::F32, recompute: false }
    }
}

/// Estimates the memory of training on batches of `batch` images with AdamW.
///
/// Weights, gradients and the optimizer's moments take 4, 4 and 8 bytes a parameter. Activations are the tensors that Burn's
/// autodiff keeps until the backward pass; per image, with T tokens, width D, hidden width F and H heads:
///
/// - a block: two norms keep the centred and the normalised tokens, 4 T D; the linear layers keep their inputs, 3 T D + T F; GELU keeps
///   its input, T F; the output of `qkv` is 3 T D;
/// - softmax attention besides: scaled queries T D, and shifted scores, their exponentials and the weights, 3 H T^2;
/// - linear attention: phi(q) and phi(k), 2 T D, and the head summaries D^2 / H;
/// - Hydra attention: phi(q) and phi(k), 2 T D, and the summary D;
/// - LayerScale: the outputs of both branches, 2 T D;
/// - the whole: patches N C P^2 for N of them, the last norm 2 D, the input of the head D; twice D more where there is a second head,
///   and the norm of all tokens, 2 T D, where it comes before an average.
///
/// - dropout: a mask wherever something is dropped, 2 T D + T F a block for projections, H T^2 for attention maps, T D for positions, D for
///   the input of each head.
///
/// Each value takes 4 bytes, those of masks too, as they do on a GPU; where products run in bf16, their operands take 2, and copies of the weights in bf16 are kept. Where blocks are
/// computed again, each keeps its input, T D, and one at a time, the largest, is there as a whole.
///
/// Kernels that keep further tensors, temporary buffers of the backward pass and the allocator's slack are not counted.
pub fn training_memory_bytes(architecture: &Architecture, batch: usize, training: Training) -> MemoryEstimate {
    const F32: u64 = 4;
    let Training { products, recompute } = training;
    let parameters = cost(architecture).parameters();
    let tokens = architecture.tokens() as u64;
    let width = architecture.width as u64;
    let heads = architecture.heads as u64;
    let hidden = architecture.mlp_hidden as u64;
    let pixels = (architecture.channels * architecture.patch * architecture.patch) as u64;
    let size = |operation: Operation| operation.types(products).forward.map_or(F32, |float| DType::from(float).size() as u64);
    let (weights, attention) = (size(Operation::WeightProducts), size(Operation::SoftmaxProducts));
    let batches = |bytes: u64| bytes.saturating_mul(batch as u64);
    // Of `count` weights there is a copy where products do not take them as they are.
    let copies = |count: u64| if weights == F32 { 0 } else { count * weights };

    let block = |layer: &LayerAttention| {
        let (qkv, mixing) = match layer.kind {
            AttentionKind::Softmax => (attention, tokens * width * attention + heads * tokens * tokens * (2 * F32 + attention)),
            AttentionKind::Linear => (F32, (2 * tokens * width + width * (width / heads)) * F32),
            AttentionKind::Hydra => (F32, (2 * tokens * width + width) * F32),
        };
        let scaled = if architecture.layer_scale.is_some() { 2 * tokens * width * F32 } else { 0 };
        let inputs = (3 * tokens * width + tokens * hidden) * weights;
        let kept = 4 * tokens * width * F32 + inputs + tokens * hidden * F32 + 3 * tokens * width * qkv + mixing + scaled;
        batches(kept).saturating_add(copies(width * (4 * width + 2 * hidden)))
    };
    let blocks = architecture.layers.iter().map(block);
    let blocks = match recompute {
        false => blocks.fold(0, u64::saturating_add),
        true => batches(architecture.depth as u64 * tokens * width * F32).saturating_add(blocks.max().unwrap_or(0)),
    };
    let patches = architecture.grid().iter().product::<usize>() as u64;
    let last_norm = if architecture.pool == Pool::Avg && !architecture.fc_norm { 2 * tokens * width } else { 2 * width };
    let heads_of_classes = 1 + u64::from(architecture.distilled);
    let rest = (patches * pixels + heads_of_classes * width) * weights + (last_norm + 2 * (heads_of_classes - 1) * width) * F32;
    let dropout = &architecture.dropout;
    let masks_of = |rate: f64, values: u64| if rate > 0.0 { values * F32 } else { 0 };
    let maps = architecture.layers.iter().filter(|layer| layer.kind == AttentionKind::Softmax).count() as u64;
    let masks = masks_of(dropout.projections, architecture.depth as u64 * tokens * (2 * width + hidden))
        + masks_of(dropout.attention, maps * heads * tokens * tokens)
        + masks_of(dropout.positions, tokens * width)
        + masks_of(dropout.head, heads_of_classes * width);
    let copied = copies(width * (pixels + heads_of_classes * architecture.classes as u64));

    MemoryEstimate {
        weights: parameters * F32,
        gradients: parameters * F32,
        optimizer: parameters * 2 * F32,
        activations: [blocks, batches(rest), batches(masks), copied].into_iter().fold(0, u64::saturating_add),
    }
}
