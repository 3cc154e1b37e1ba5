//! The parameters of a model as an optimizer sees them: which are trained, how fast, and which decay.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;
use manyheads_model::weights::name_matches;
use manyheads_model::{VisionTransformer, parameter_name, weight_decay};

use crate::config::OptimizerConfig;
use crate::error::{Error, Result};

/// One trained parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    /// timm's name.
    pub name: String,
    /// Shape in the module (linear weights are `[in, out]`).
    pub shape: Vec<usize>,
    /// Its own weight decay.
    pub weight_decay: f64,
    /// Factor on the learning rate.
    pub rate: f64,
}

/// The trained parameters of a model, in the order in which Burn visits it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Slots {
    /// The trained ones.
    pub trained: Vec<Slot>,
    /// For each parameter that Burn visits its place among the trained ones; none where it is frozen.
    pub places: Vec<Option<usize>>,
    /// Names of the frozen ones.
    pub frozen: Vec<String>,
}

impl Slots {
    /// The parameters of `model` under `config`: DeiT's decay list, layer-wise decay of the learning rate, and the groups in their
    /// order, later ones winning.
    ///
    /// # Errors
    /// Names a group whose pattern fits no parameter; and says where nothing is left to train.
    pub fn new(model: &VisionTransformer, config: &OptimizerConfig) -> Result<Self> {
        let mut visitor = Names::default();
        model.visit(&mut visitor);
        let depth = model.blocks.len();
        for group in &config.groups {
            if !visitor.found.iter().any(|(name, _)| name_matches(&group.pattern, name)) {
                let some: Vec<&str> = visitor.found.iter().take(3).map(|(name, _)| name.as_str()).collect();
                return Err(Error::Usage(format!(
                    "optimizer.groups: the pattern `{}` fits no parameter; they are called {}, … (`*` stands for any characters)",
                    group.pattern,
                    some.join(", ")
                )));
            }
        }
        let mut slots = Self::default();
        for (name, shape) in visitor.found {
            let mut decay = if weight_decay(&name, shape.len()) { config.weight_decay } else { 0.0 };
            let mut rate = layer_rate(&name, depth, config.layer_decay);
            let mut frozen = false;
            for group in config.groups.iter().filter(|group| name_matches(&group.pattern, &name)) {
                rate *= group.rate;
                decay = group.weight_decay.unwrap_or(decay);
                frozen = group.freeze;
            }
            if frozen {
                slots.places.push(None);
                slots.frozen.push(name);
                continue;
            }
            slots.places.push(Some(slots.trained.len()));
            slots.trained.push(Slot { name, shape, weight_decay: decay, rate });
        }
        if slots.trained.is_empty() {
            return Err(Error::Usage("optimizer.groups: every parameter is frozen, so there is nothing to train".into()));
        }
        Ok(slots)
    }

    /// The model with autodiff off for the frozen parameters, so that nothing is computed for them.
    pub fn freeze(&self, model: VisionTransformer) -> VisionTransformer {
        if self.frozen.is_empty() {
            return model;
        }
        model.map(&mut Freeze { places: self.places.iter() })
    }
}

struct Freeze<'a> {
    places: std::slice::Iter<'a, Option<usize>>,
}

impl ModuleMapper for Freeze<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.places.next() {
            Some(None) => param.set_require_grad(false),
            _ => param,
        }
    }
}

#[derive(Default)]
struct Names {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for Names {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((parameter_name(&self.path), param.val().dims().to_vec()));
    }
}

/// Factor on the learning rate of the parameter `name` in a network of `depth` blocks: `decay` to the number of layers above it, as
/// timm's `param_groups_layer_decay` counts them. The embeddings are the lowest layer, each block is one, the last norm belongs to
/// the last block, and whatever else there is (heads, `dist_token`) is the top.
pub fn layer_rate(name: &str, depth: usize, decay: f64) -> f64 {
    let top = depth + 1;
    let stem = ["cls_token", "reg_token", "pos_embed", "patch_embed", "norm_pre"];
    let layer = if stem.iter().any(|start| name.starts_with(start)) {
        0
    } else if let Some(rest) = name.strip_prefix("blocks.") {
        rest.split('.').next().and_then(|block| block.parse::<usize>().ok()).map_or(top, |block| block + 1)
    } else if name.starts_with("norm") {
        depth
    } else {
        top
    };
    decay.powi((top - layer) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_whole_names_with_stars() {
        for (pattern, name, fits) in [
            ("head.weight", "head.weight", true),
            ("head", "head.weight", false),
            ("head.*", "head.weight", true),
            ("blocks.*.attn.*", "blocks.11.attn.qkv.bias", true),
            ("blocks.*.attn.*", "blocks.11.mlp.fc1.bias", false),
            ("*.bias", "blocks.1.mlp.fc1.bias", true),
            ("*.bias", "blocks.1.mlp.fc1.weight", false),
            ("*", "x", true),
            ("a*a", "a", false),
            ("blocks.1.*", "blocks.11.norm1.bias", false),
        ] {
            assert_eq!(name_matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    /// The factors of timm's `param_groups_layer_decay` for a network of three blocks.
    #[test]
    fn layers_are_counted_as_timm_counts_them() {
        for (name, power) in [
            ("cls_token", 4),
            ("pos_embed", 4),
            ("patch_embed.proj.weight", 4),
            ("blocks.0.norm1.weight", 3),
            ("blocks.2.mlp.fc2.bias", 1),
            ("norm.weight", 1),
            ("head.weight", 0),
            ("dist_token", 0),
        ] {
            assert!((layer_rate(name, 3, 0.75) - 0.75f64.powi(power)).abs() < 1e-15, "{name}");
        }
        assert_eq!(layer_rate("cls_token", 12, 1.0), 1.0);
    }
}
