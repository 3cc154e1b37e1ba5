//! Mixed precision: which operation runs in which float type.
//!
//! Parameters are f32, and so is everything but matrix products, which run in the float type of the images: bf16 images give a bf16 forward
//! pass on f32 weights, as under PyTorch's autocast. [`Operation::types`] is the table, and every cast in the network asks it. Where the
//! images are f32 each cast is the identity and costs nothing.
//!
//! bf16 has the exponents of f32, so no gradient underflows that would not underflow in f32: losses are not scaled.

use crate::architecture::{Architecture, LayerAttention};
use crate::ops::{self, Compute, Fusible};
use crate::plan::AttentionKind;
use crate::profile::{Kind, around};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{FloatDType, Tensor};

/// A kind of operation of training, as far as its float type goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Products of pixels and tokens with weights: patch embedding, attention's projections, MLP, heads.
    WeightProducts,
    /// Queries with keys, and attention maps with values, in softmax attention. The fused form computes them in f32 from operands of this
    /// type.
    SoftmaxProducts,
    /// The softmax of attention maps.
    Softmax,
    /// phi and the token sums of linear and Hydra attention, and their products with queries.
    TokenSums,
    /// Layer norms.
    Norms,
    /// GELU.
    Gelu,
    /// The sums of products with their biases.
    Biases,
    /// The tokens between the blocks: their sums with branches and embeddings, LayerScale, stochastic depth, dropout.
    Tokens,
    /// Logits, losses and distillation.
    Losses,
    /// Gradients of parameters: their sums over batches, norm and clipping. Those of weights come from [`Self::WeightProducts`].
    Gradients,
    /// Weights, the optimizer's state, the average of the weights.
    Weights,
}

/// The float types of an operation. `None` where it has no such part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types {
    /// Of its operands in the forward pass.
    pub forward: Option<FloatDType>,
    /// Of the gradients it works on in the backward pass, and of what an update works on.
    pub backward: Option<FloatDType>,
}

impl Operation {
    /// All, from the pixels to the update.
    pub const ALL: [Self; 11] = [
        Self::WeightProducts,
        Self::SoftmaxProducts,
        Self::Softmax,
        Self::TokenSums,
        Self::Norms,
        Self::Gelu,
        Self::Biases,
        Self::Tokens,
        Self::Losses,
        Self::Gradients,
        Self::Weights,
    ];

    /// What it is, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::WeightProducts => "products with weights",
            Self::SoftmaxProducts => "products of softmax attention",
            Self::Softmax => "softmax",
            Self::TokenSums => "kernels and sums of linear and Hydra attention",
            Self::Norms => "layer norms",
            Self::Gelu => "GELU",
            Self::Biases => "biases",
            Self::Tokens => "tokens between blocks, branch scales, dropout",
            Self::Losses => "logits, losses, distillation",
            Self::Gradients => "gradients of parameters, accumulation, clipping",
            Self::Weights => "weights, optimizer, average",
        }
    }

    /// Whether a network has it.
    pub fn is_in(self, architecture: &Architecture) -> bool {
        let softmax = |layer: &LayerAttention| layer.kind == AttentionKind::Softmax;
        match self {
            Self::SoftmaxProducts | Self::Softmax => architecture.layers.iter().any(softmax),
            Self::TokenSums => !architecture.layers.iter().all(softmax),
            _ => true,
        }
    }

    /// The table: its float types where matrix products run in `products`.
    pub fn types(self, products: FloatDType) -> Types {
        let (forward, backward) = match self {
            Self::WeightProducts | Self::SoftmaxProducts => (Some(products), products),
            Self::Softmax | Self::TokenSums | Self::Norms | Self::Gelu | Self::Biases | Self::Tokens | Self::Losses => {
                (Some(FloatDType::F32), FloatDType::F32)
            }
            Self::Gradients | Self::Weights => (None, FloatDType::F32),
        };
        Types { forward, backward: Some(backward) }
    }

    /// `x` in the type that the operation takes, where matrix products run in `products`.
    pub(crate) fn operand<const D: usize>(self, x: Tensor<D>, products: FloatDType) -> Tensor<D> {
        match self.types(products).forward {
            Some(float) => x.cast(float),
            None => x,
        }
    }
}

/// `x W + b`, whatever types they have.
///
/// Shapes: `x` `[..., in]`, result `[..., out]` in f32.
pub(crate) fn linear<const D: usize>(layer: &Linear, x: Tensor<D>, compute: Compute) -> Tensor<D> {
    affine(x, layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()), compute)
}

/// `x W + b`, whatever types they have: the product as a product, the bias as a bias. Shapes and type as in [`linear`].
pub(crate) fn affine<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>, compute: Compute) -> Tensor<D> {
    if compute.float == FloatDType::F32 {
        return product(x, weight, bias, compute);
    }
    let sum = Operation::Biases.operand(product(x, weight, None, compute), compute.float);
    match bias {
        Some(bias) => sum + bias.unsqueeze(),
        None => sum,
    }
}

/// `x W + b` in the type of products. Shapes as in [`linear`].
fn product<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>, compute: Compute) -> Tensor<D> {
    let x = Operation::WeightProducts.operand(x, compute.float);
    let weight = Operation::WeightProducts.operand(weight, compute.float);
    match compute.fuses(Fusible::Linear) {
        true => ops::linear(x, weight, bias),
        false => ops::linear_plain(x, weight, bias),
    }
}

/// Layer norm over the last axis. Burn widens f16 only, and a mean of squares in bf16 keeps two to three digits.
///
/// Shapes: `x` `[..., D]`, result `[..., D]` of type f32.
pub(crate) fn layer_norm<const D: usize>(layer: &LayerNorm, x: Tensor<D>, compute: Compute) -> Tensor<D> {
    let x = Operation::Norms.operand(x, compute.float);
    match &layer.beta {
        Some(beta) if compute.fuses(Fusible::LayerNorm) => ops::layer_norm(x, layer.gamma.val(), beta.val(), compute.norm_eps),
        _ => around(Kind::Norms, x, |x| layer.forward(x)),
    }
}

/// Holds the table to what the network does: types where tensors can be seen, and digits where they cannot.
#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::ops::{Form, Ops};
    use crate::{AttentionConfig, Block, BlockMasks, ModelConfig, VisionTransformer};
    use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
    use burn::tensor::{DType, Device, Gradients, TensorData};
    use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

    /// Tokens, and features of a token.
    const SIDE: usize = 16;
    const FLOATS: [FloatDType; 2] = [FloatDType::F32, FloatDType::BF16];

    /// A number between -1 and 1 for each place, none of them with bf16's few digits.
    fn noise<const D: usize>(shape: [usize; D], seed: f32) -> Tensor<D> {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| ((i as f32 + seed) * 0.618_034).fract() * 2.0 - 1.0).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
    }

    fn rounded<const D: usize>(x: Tensor<D>) -> Tensor<D> {
        x.cast(FloatDType::BF16).cast(FloatDType::F32)
    }

    /// A unit matrix of one image: a product with it is exact, whatever the type, so that only what follows it can lose digits.
    fn unit() -> Tensor<3> {
        let values = (0..SIDE * SIDE).map(|i| f32::from(i % (SIDE + 1) == 0)).collect();
        Tensor::from_data(TensorData::new(values, [1, SIDE, SIDE]), &Device::flex().autodiff())
    }

    /// Weights that bf16 holds exactly; other parameters keep all digits.
    struct Simple(f32);
    impl ModuleMapper for Simple {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1.0;
            let seed = self.0;
            param.map(|old| {
                let new = noise(old.dims(), seed);
                let new = if D == 1 { new } else { rounded(new) };
                new.detach().require_grad()
            })
        }
    }

    fn model(kind: AttentionKind, ops: Ops) -> VisionTransformer {
        let mut architecture = ModelConfig {
            image_size: Some(crate::ImageSize::Square(8)),
            patch_size: Some(4),
            classes: Some(5),
            width: Some(SIDE),
            depth: Some(1),
            heads: Some(1),
            layer_scale: Some(0.1),
            attention: AttentionConfig { kind, ..AttentionConfig::default() },
            ..ModelConfig::default()
        }
        .resolve()
        .expect("a possible network");
        architecture.ops = ops;
        architecture.init(&mut ChaCha8Rng::seed_from_u64(0), &Device::flex().autodiff()).map(&mut Simple(0.0))
    }

    fn block(kind: AttentionKind) -> Block {
        let mut model = model(kind, Ops::Plain);
        model.blocks.remove(0)
    }

    fn values<const D: usize>(x: Tensor<D>) -> Vec<f64> {
        let values = x.cast(FloatDType::F32).into_data().try_into_vec::<f32>().expect("f32");
        values.into_iter().map(f64::from).collect()
    }

    /// The type whose digits `seen` has, beside the same with all digits.
    fn digits(seen: &[f64], exact: &[f64]) -> FloatDType {
        assert_eq!(seen.len(), exact.len());
        let largest = exact.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        let error = seen.iter().zip(exact).fold(0.0, |error: f64, (a, b)| error.max((a - b).abs())) / largest;
        match error {
            0.0..2e-6 => FloatDType::F32,
            3e-4..0.05 => FloatDType::BF16,
            _ => panic!("an error of {error} is of neither type"),
        }
    }

    /// The coarser of two types.
    fn coarser(a: FloatDType, b: FloatDType) -> FloatDType {
        if a == FloatDType::F32 { b } else { a }
    }

    /// The types of an operation that computes `y` and the gradients of some of its inputs, by their digits beside those of f32. The loss
    /// is a weighted sum of `y`.
    fn compare(run: &dyn Fn(Compute) -> (Vec<f64>, Vec<Vec<f64>>), compute: Compute) -> Types {
        let (seen, exact) = (run(compute), run(Compute { float: FloatDType::F32, ..compute }));
        let backward = seen.1.iter().zip(&exact.1).map(|(seen, exact)| digits(seen, exact)).reduce(coarser);
        Types { forward: Some(digits(&seen.0, &exact.0)), backward }
    }

    fn weighted<const D: usize>(y: Tensor<D>) -> Gradients {
        let weights = noise(y.dims(), 0.5);
        (y * weights).sum().backward()
    }

    fn gradient<const D: usize>(x: &Tensor<D>, gradients: &Gradients) -> Vec<f64> {
        values(x.grad(gradients).expect("a gradient"))
    }

    /// What the network does where it carries out `operation`.
    fn seen(operation: Operation, compute: Compute) -> Types {
        match operation {
            Operation::WeightProducts => {
                let block = block(AttentionKind::Softmax);
                let weight = Param::from_tensor(noise([SIDE, 3 * SIDE], 9.0).detach().require_grad());
                let layer = Linear { weight, ..block.attn.qkv };
                let embedding = model(AttentionKind::Softmax, Ops::Plain).patch_embed;
                let linear = compare(
                    &|compute| {
                        let x = noise([1, SIDE, SIDE], 3.0).require_grad();
                        let y = super::linear(&layer, x.clone(), compute);
                        let gradients = weighted(y.clone());
                        (values(y), vec![gradient(&x, &gradients), gradient(&layer.weight.val(), &gradients)])
                    },
                    compute,
                );
                let patches = compare(
                    &|compute| {
                        let y = embedding.forward(noise([1, 3, 8, 8], 4.0), compute);
                        let gradients = weighted(y.clone());
                        (values(y), vec![gradient(&embedding.proj.weight.val(), &gradients)])
                    },
                    compute,
                );
                assert_eq!(linear, patches);
                linear
            }
            Operation::SoftmaxProducts => {
                let attention = block(AttentionKind::Softmax).attn;
                let mixed = attention.mix(unit(), None, compute);
                let operands = mixed.clone().detach().repeat_dim(2, 3).require_grad();
                let layer = attention.layer();
                let again = crate::attention::attend(operands.clone(), 1, layer, ops(compute));
                let gradients = again.sum().backward();
                let float = |dtype: DType| Some(FloatDType::from(dtype));
                let backward = operands.grad(&gradients).expect("a gradient").dtype();
                Types { forward: float(mixed.dtype()), backward: float(backward) }
            }
            Operation::Softmax => softmax(compute),
            Operation::TokenSums => {
                let kinds = [AttentionKind::Linear, AttentionKind::Hydra].map(|kind| {
                    let attention = block(kind).attn;
                    compare(&|compute| of_bias(&attention.qkv, attention.mix(unit(), None, compute)), compute)
                });
                assert_eq!(kinds[0], kinds[1]);
                kinds[0]
            }
            Operation::Norms => {
                let norm = block(AttentionKind::Softmax).norm1;
                compare(
                    &|compute| {
                        let x = noise([1, SIDE, SIDE], 2.0).require_grad();
                        let y = layer_norm(&norm, x.clone(), compute);
                        let gradients = weighted(y.clone());
                        (values(y), vec![gradient(&x, &gradients), gradient(&norm.gamma.val(), &gradients)])
                    },
                    compute,
                )
            }
            Operation::Gelu => {
                let mlp = block(AttentionKind::Softmax).mlp;
                compare(&|compute| of_bias(&mlp.fc1, mlp.hidden(unit(), None, compute)), compute)
            }
            Operation::Biases => {
                let layer = block(AttentionKind::Softmax).attn.proj;
                compare(&|compute| of_bias(&layer, super::linear(&layer, unit(), compute)), compute)
            }
            Operation::Tokens => {
                // With branches of zeros a block is the sum of its tokens and nothing.
                let mut block = block(AttentionKind::Hydra);
                block.attn.proj = block.attn.proj.map(&mut Zero);
                block.mlp.fc2 = block.mlp.fc2.map(&mut Zero);
                compare(
                    &|compute| {
                        let x = noise([1, SIDE, SIDE], 2.0).require_grad();
                        let factors = Tensor::ones([2, 1], &Device::flex().autodiff());
                        let y = block.dropping(x.clone(), Some(factors), &BlockMasks::default(), compute);
                        let gradients = weighted(y.clone());
                        (values(y), vec![gradient(&x, &gradients)])
                    },
                    compute,
                )
            }
            Operation::Losses => {
                let mut model = model(AttentionKind::Softmax, Ops::Plain);
                model.head.weight = model.head.weight.map(|weight| weight.zeros_like().require_grad());
                compare(
                    &|compute| of_bias(&model.head, model.classify(noise([3, SIDE, SIDE], 1.0), None, compute).class),
                    compute,
                )
            }
            Operation::Gradients => {
                let model = model(AttentionKind::Linear, ops(compute));
                let images = noise([2, 3, 8, 8], 6.0).cast(compute.float);
                let gradients = weighted(model.forward(images, None));
                let mut found = Found { gradients: &gradients, types: Vec::new() };
                model.visit(&mut found);
                let types = found.types.into_iter().reduce(coarser);
                Types { forward: None, backward: types }
            }
            Operation::Weights => {
                let model = model(AttentionKind::Linear, ops(compute));
                let weights = FloatDType::from(model.blocks[0].mlp.fc1.weight.val().dtype());
                Types { forward: None, backward: Some(weights) }
            }
        }
    }

    fn ops(compute: Compute) -> Ops {
        if compute.form == Form::Plain { Ops::Plain } else { Ops::Fused }
    }

    /// `y` and the gradient of the bias of `layer`, which comes from everything after its product.
    fn of_bias<const D: usize>(layer: &Linear, y: Tensor<D>) -> (Vec<f64>, Vec<Vec<f64>>) {
        let gradients = weighted(y.clone());
        let bias = layer.bias.as_ref().expect("a bias").val();
        (values(y), vec![gradient(&bias, &gradients)])
    }

    struct Zero;
    impl ModuleMapper for Zero {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|old| old.zeros_like().require_grad())
        }
    }

    /// The types of the gradients of all parameters.
    struct Found<'a> {
        gradients: &'a Gradients,
        types: Vec<FloatDType>,
    }
    impl ModuleVisitor for Found<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.types.push(param.val().grad(self.gradients).expect("a gradient").dtype().into());
        }
    }

    /// Softmax attention of unit keys and values gives the softmax itself, and as the gradient of the queries that of the softmax; both are
    /// rounded once to the type of the products, and where the softmax were coarser than f32 they would be off by more. The gradient of
    /// the fused form takes the mean of a row from the rounded result, as FlashAttention does.
    fn softmax(compute: Compute) -> Types {
        let queries = rounded(noise([1, SIDE, SIDE], 5.0) * 16.0);
        let weights = rounded(noise([1, SIDE, SIDE], 7.0));
        let qkv = Tensor::cat(vec![queries.clone(), unit(), unit()], 2).cast(compute.float).detach().require_grad();
        let layer = LayerAttention { kind: AttentionKind::Softmax, kernel: None };
        let y = crate::attention::attend(qkv.clone(), 1, layer, ops(compute));
        let gradients = (y.clone().cast(FloatDType::F32) * weights.clone()).sum().backward();
        let gradient = qkv.grad(&gradients).expect("a gradient").cast(FloatDType::F32).narrow(2, 0, SIDE);

        // Exact values, and how far they may be off for each rounding.
        let (mut exact, mut slopes, mut bounds) = (Vec::new(), Vec::new(), Vec::new());
        let scale = 1.0 / (SIDE as f64).sqrt();
        for (row, weights) in values(queries).chunks(SIDE).zip(values(weights).chunks(SIDE)) {
            let exps: Vec<f64> = row.iter().map(|q| (q * scale).exp()).collect();
            let sum: f64 = exps.iter().sum();
            let p: Vec<f64> = exps.iter().map(|e| e / sum).collect();
            let mean: f64 = p.iter().zip(weights).map(|(p, w)| p * w).sum();
            let of_mean: f64 =
                if compute.form == Form::Cpu { p.iter().zip(weights).map(|(p, w)| p * w.abs()).sum() } else { 0.0 };
            slopes.extend(p.iter().zip(weights).map(|(p, w)| p * (w - mean) * scale));
            bounds.extend(p.iter().zip(weights).map(|(p, w)| p * ((w - mean).abs() + of_mean) * scale));
            exact.extend(p);
        }
        let once = if compute.float == FloatDType::F32 { 0.0 } else { 2f64.powi(-8) };
        let float = |seen: &[f64], exact: &[f64], bounds: &[f64]| {
            let largest = exact.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
            let mut all = seen.iter().zip(exact).zip(bounds);
            let fits = all.all(|((seen, exact), bound)| (seen - exact).abs() <= once * bound + 2e-6 * largest);
            if fits { FloatDType::F32 } else { FloatDType::BF16 }
        };
        Types { forward: Some(float(&values(y), &exact, &exact)), backward: Some(float(&values(gradient), &slopes, &bounds)) }
    }

    #[test]
    fn the_table_says_what_the_network_does() {
        let mut wrong = Vec::new();
        for products in FLOATS {
            for form in [Form::Cpu, Form::Plain] {
                let compute = Compute { float: products, form, norm_eps: 1e-6 };
                for operation in Operation::ALL {
                    let (seen, table) = (seen(operation, compute), operation.types(products));
                    if seen != table {
                        wrong.push(format!("{operation:?} in {compute:?}: {seen:?}, and in the table {table:?}"));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Law 7 of the design: reductions that matter are f32.
    #[test]
    fn nothing_but_products_leaves_f32() {
        for operation in Operation::ALL {
            let products = matches!(operation, Operation::WeightProducts | Operation::SoftmaxProducts);
            let expected = if products { FloatDType::BF16 } else { FloatDType::F32 };
            let Types { forward, backward } = operation.types(FloatDType::BF16);
            assert!([forward, backward].into_iter().flatten().all(|float| float == expected), "{operation:?}");
        }
    }
}
