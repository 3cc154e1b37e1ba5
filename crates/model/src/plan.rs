//! The layer plan: which attention sits in which layer.

use crate::architecture::LayerAttention;
use crate::attention::kernel::Kernel;
use crate::error::ModelError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A way to mix tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AttentionKind {
    /// Multi-head softmax attention (MSA): per head softmax(q k^T / sqrt(D/H)) v.
    #[default]
    Softmax,
    /// Multi-head linear attention (MLA): per head phi(q) (phi(k)^T v).
    Linear,
    /// Hydra attention: phi(q) * sum over tokens of phi(k) * v, as many heads as features.
    Hydra,
}

impl AttentionKind {
    /// The word that names the kind in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::Linear => "linear",
            Self::Hydra => "hydra",
        }
    }

    /// Whether the kind has a kernel phi.
    pub fn has_kernel(self) -> bool {
        self != Self::Softmax
    }
}

/// Where `count` layers of a model of L layers sit. Layers count from 0 at the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The last layers: L - count to L - 1.
    Back,
    /// The first layers: 0 to count - 1.
    Front,
    /// Spread evenly, the last layer included: floor(j L / count) - 1 for j = 1 to count. Of 12 layers, 2 are {5, 11}, 4 are
    /// {2, 5, 8, 11} and 8 are {0, 2, 3, 5, 6, 8, 9, 11}.
    Interleaved,
}

impl Place {
    /// The layers, in ascending order, for `count` of `depth` with `count <= depth`.
    pub fn layers(self, count: usize, depth: usize) -> Vec<usize> {
        match self {
            Self::Back => (depth - count..depth).collect(),
            Self::Front => (0..count).collect(),
            Self::Interleaved => (1..=count).map(|j| j * depth / count - 1).collect(),
        }
    }
}

/// The `[model.attention]` section: one kind for all layers, and exceptions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttentionConfig {
    /// The attention of every layer that no override names: "softmax", "linear" or "hydra".
    pub kind: AttentionKind,
    /// The kernel phi of every linear and hydra layer whose override names none. "cosine" if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// Layers that differ. Applied in order, the later wins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<AttentionOverride>,
}

/// Another attention for some layers: `{ kind = "hydra", place = "back", count = 2 }` or `{ kind = "linear", layers = [0, 3] }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttentionOverride {
    /// The attention of these layers.
    pub kind: AttentionKind,
    /// Their kernel phi, for "linear" and "hydra". The kernel of `[model.attention]` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// Where `count` layers sit: "back", "front" or "interleaved".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// How many layers, with `place`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// The layers themselves, counted from 0 at the input, instead of `place` and `count`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<usize>>,
}

/// Who decided a layer: no override, or the override of an index.
type Owner = Option<usize>;

/// A layer with its owner and the place its kernel came from.
struct Planned {
    attention: LayerAttention,
    owner: Owner,
    inherits_kernel: bool,
}

impl AttentionConfig {
    /// The attention of each of `depth` layers.
    pub(crate) fn plan(&self, depth: usize) -> Result<Vec<LayerAttention>, ModelError> {
        let planned = self.planned(depth)?;
        Ok(planned.into_iter().map(|layer| layer.attention).collect())
    }

    /// The same plan with every kernel written out where it is used.
    pub(crate) fn resolved(&self, depth: usize) -> Result<Self, ModelError> {
        let planned = self.planned(depth)?;
        let default_kernel_used = self.kind.has_kernel() && planned.iter().any(|layer| layer.owner.is_none());
        Ok(Self {
            kind: self.kind,
            kernel: default_kernel_used.then(|| self.kernel.unwrap_or_default()),
            overrides: self
                .overrides
                .iter()
                .map(|entry| AttentionOverride { kernel: self.kernel_of(entry), ..entry.clone() })
                .collect(),
        })
    }

    fn kernel_of(&self, entry: &AttentionOverride) -> Option<Kernel> {
        entry.kind.has_kernel().then(|| entry.kernel.or(self.kernel).unwrap_or_default())
    }

    fn planned(&self, depth: usize) -> Result<Vec<Planned>, ModelError> {
        let mut layers: Vec<Planned> = (0..depth)
            .map(|_| Planned {
                attention: LayerAttention {
                    kind: self.kind,
                    kernel: self.kind.has_kernel().then(|| self.kernel.unwrap_or_default()),
                },
                owner: None,
                inherits_kernel: true,
            })
            .collect();

        for (index, entry) in self.overrides.iter().enumerate() {
            let key = |field: &str| format!("attention.overrides[{index}]{field}");
            if entry.kind == AttentionKind::Softmax && entry.kernel.is_some() {
                return Err(ModelError::new(key(".kernel"), "softmax attention has no kernel")
                    .help("remove the key, or choose kind = \"linear\" or \"hydra\""));
            }
            let attention = LayerAttention { kind: entry.kind, kernel: self.kernel_of(entry) };
            let mut changed = false;
            for layer in entry.covered(&key, depth)? {
                changed |= layers[layer].attention != attention;
                layers[layer] = Planned { attention, owner: Some(index), inherits_kernel: entry.kernel.is_none() };
            }
            if !changed {
                return Err(ModelError::new(key(""), "changes nothing: its layers have this attention already")
                    .help("remove the override"));
            }
        }

        for index in 0..self.overrides.len() {
            if !layers.iter().any(|layer| layer.owner == Some(index)) {
                return Err(ModelError::new(
                    format!("attention.overrides[{index}]"),
                    "has no effect: later overrides replace all of its layers",
                )
                .help("remove it, or put it after those that cover it"));
            }
        }

        let kernel_used = layers.iter().any(|layer| layer.inherits_kernel && layer.attention.kind.has_kernel());
        if self.kernel.is_some() && !kernel_used {
            let message = if self.kind == AttentionKind::Softmax {
                "softmax attention has no kernel, and no override takes this one"
            } else {
                "no layer takes this kernel"
            };
            return Err(
                ModelError::new("attention.kernel", message).help("remove the key, or choose kind = \"linear\" or \"hydra\"")
            );
        }
        Ok(layers)
    }
}

impl AttentionOverride {
    /// The layers this override covers, all below `depth`.
    fn covered(&self, key: &dyn Fn(&str) -> String, depth: usize) -> Result<Vec<usize>, ModelError> {
        const EITHER: &str = "give place and count, or layers";
        match (self.place, self.count, &self.layers) {
            (Some(place), Some(count), None) => {
                if count == 0 {
                    return Err(ModelError::new(key(".count"), "0 layers are no override").help("remove the override"));
                }
                if count > depth {
                    return Err(ModelError::new(key(".count"), format!("{count} layers of a model that has {depth}")));
                }
                Ok(place.layers(count, depth))
            }
            (None, None, Some(layers)) => {
                if layers.is_empty() {
                    return Err(ModelError::new(key(".layers"), "an empty list is no override").help("remove the override"));
                }
                for (position, &layer) in layers.iter().enumerate() {
                    if layer >= depth {
                        return Err(ModelError::new(
                            key(".layers"),
                            format!("layer {layer} of a model whose layers are 0 to {}", depth - 1),
                        ));
                    }
                    if layers[..position].contains(&layer) {
                        return Err(ModelError::new(key(".layers"), format!("layer {layer} is listed twice")));
                    }
                }
                Ok(layers.clone())
            }
            (place, count, Some(_)) => {
                let (field, name) = match (place, count) {
                    (Some(_), _) => (".place", "place"),
                    _ => (".count", "count"),
                };
                Err(ModelError::new(key(field), format!("{name} and layers both say which layers")).help(EITHER))
            }
            (Some(_), None, None) => {
                Err(ModelError::new(key(".count"), "missing: place needs the number of layers").help(EITHER))
            }
            (None, Some(_), None) => {
                Err(ModelError::new(key(".place"), "missing: count needs \"back\", \"front\" or \"interleaved\"").help(EITHER))
            }
            (None, None, None) => Err(ModelError::new(key(""), "does not say which layers").help(EITHER)),
        }
    }
}
