//! The names other programs give the same tensors.

use std::fmt;

/// Whose names a set of weights carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// timm's, which are DeiT's and ours too. Older files' `gamma_1`, `gamma_2` (DeiT III) and `pre_logits` are known.
    Timm,
    /// Hugging Face transformers' `ViT…` and `DeiT…`, in files or in memory: queries, keys and values apart.
    HuggingFace,
}

impl Layout {
    /// The layout of a word: "timm" or "deit", "huggingface" or "hf".
    pub fn find(word: &str) -> Option<Self> {
        match word {
            "timm" | "deit" => Some(Self::Timm),
            "huggingface" | "hf" => Some(Self::HuggingFace),
            _ => None,
        }
    }

    /// "timm" or "huggingface".
    pub fn name(self) -> &'static str {
        match self {
            Self::Timm => "timm",
            Self::HuggingFace => "huggingface",
        }
    }

    /// The layout of a set of names.
    pub(crate) fn of<'a>(mut names: impl Iterator<Item = &'a str>) -> Self {
        match names.any(|name| name.ends_with("embeddings.patch_embeddings.projection.weight")) {
            true => Self::HuggingFace,
            false => Self::Timm,
        }
    }

    /// What a name means in timm's words.
    pub(crate) fn read(self, name: &str, distilled: bool) -> Meaning {
        match self {
            Self::Timm => from_timm(name),
            Self::HuggingFace => from_hugging_face(name, distilled),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a tensor of a source is to a model of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The tensor of a timm name.
    Whole(String),
    /// A third of `attn.qkv`: queries (0), keys (1) or values (2).
    Third(String, usize),
    /// A part that classification does not use.
    Ignored,
    /// Nothing known.
    Unknown,
}

fn from_timm(name: &str) -> Meaning {
    if name.starts_with("pre_logits.") || name == "mask_token" {
        return Meaning::Ignored;
    }
    match name.rsplit_once('.') {
        Some((block, "gamma_1")) => Meaning::Whole(format!("{block}.ls1.gamma")),
        Some((block, "gamma_2")) => Meaning::Whole(format!("{block}.ls2.gamma")),
        _ => Meaning::Whole(name.to_owned()),
    }
}

/// `distilled`: whether the source has a classifier on the distillation token. Without one that token mixes with the others and is read
/// by nobody: a register.
fn from_hugging_face(name: &str, distilled: bool) -> Meaning {
    let whole = |name: &str| Meaning::Whole(name.to_owned());
    let inner = name.strip_prefix("vit.").or_else(|| name.strip_prefix("deit.")).unwrap_or(name);
    match inner {
        "embeddings.cls_token" => return whole("cls_token"),
        "embeddings.distillation_token" if distilled => return whole("dist_token"),
        "embeddings.distillation_token" => return whole("reg_token"),
        "embeddings.position_embeddings" => return whole("pos_embed"),
        "embeddings.mask_token" => return Meaning::Ignored,
        _ => {}
    }
    let Some((module, end @ ("weight" | "bias"))) = inner.rsplit_once('.') else {
        return Meaning::Unknown;
    };
    let simple = match module {
        "embeddings.patch_embeddings.projection" => Some("patch_embed.proj"),
        "layernorm" => Some("norm"),
        "classifier" | "cls_classifier" => Some("head"),
        "distillation_classifier" => Some("head_dist"),
        _ => None,
    };
    if let Some(simple) = simple {
        return whole(&format!("{simple}.{end}"));
    }
    if module == "pooler.dense" {
        return Meaning::Ignored;
    }
    let Some((block, part)) = module
        .strip_prefix("encoder.layer.")
        .or_else(|| module.strip_prefix("layers."))
        .and_then(|rest| rest.split_once('.'))
        .filter(|(block, _)| block.parse::<usize>().is_ok())
    else {
        return Meaning::Unknown;
    };
    let third = |index| Meaning::Third(format!("blocks.{block}.attn.qkv.{end}"), index);
    let ours = match part {
        "attention.attention.query" | "attention.q_proj" => return third(0),
        "attention.attention.key" | "attention.k_proj" => return third(1),
        "attention.attention.value" | "attention.v_proj" => return third(2),
        "attention.output.dense" | "attention.o_proj" => "attn.proj",
        "layernorm_before" => "norm1",
        "layernorm_after" => "norm2",
        "intermediate.dense" | "mlp.fc1" => "mlp.fc1",
        "output.dense" | "mlp.fc2" => "mlp.fc2",
        _ => return Meaning::Unknown,
    };
    whole(&format!("blocks.{block}.{ours}.{end}"))
}

/// Hugging Face's name, in files, of a timm name; `third` for one of queries, keys and values. None where it has no such part.
pub(crate) fn to_hugging_face(name: &str, third: Option<usize>, model: &str, distilled: bool) -> Option<String> {
    match name {
        "cls_token" => return Some(format!("{model}.embeddings.cls_token")),
        "dist_token" | "reg_token" => return Some(format!("{model}.embeddings.distillation_token")),
        "pos_embed" => return Some(format!("{model}.embeddings.position_embeddings")),
        _ => {}
    }
    let (module, end) = name.rsplit_once('.')?;
    let simple = match module {
        "patch_embed.proj" => Some(format!("{model}.embeddings.patch_embeddings.projection")),
        "norm" => Some(format!("{model}.layernorm")),
        "head" if distilled => Some("cls_classifier".to_owned()),
        "head" => Some("classifier".to_owned()),
        "head_dist" => Some("distillation_classifier".to_owned()),
        _ => None,
    };
    if let Some(simple) = simple {
        return Some(format!("{simple}.{end}"));
    }
    let (block, part) = module.strip_prefix("blocks.")?.split_once('.')?;
    let theirs = match (part, third) {
        ("attn.qkv", Some(0)) => "attention.attention.query",
        ("attn.qkv", Some(1)) => "attention.attention.key",
        ("attn.qkv", Some(2)) => "attention.attention.value",
        ("attn.proj", _) => "attention.output.dense",
        ("norm1", _) => "layernorm_before",
        ("norm2", _) => "layernorm_after",
        ("mlp.fc1", _) => "intermediate.dense",
        ("mlp.fc2", _) => "output.dense",
        _ => return None,
    };
    Some(format!("{model}.encoder.layer.{block}.{theirs}.{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_memory_and_in_files_mean_the_same() {
        for (file, memory) in [
            ("vit.encoder.layer.3.attention.attention.key.bias", "vit.layers.3.attention.k_proj.bias"),
            ("deit.encoder.layer.0.attention.output.dense.weight", "layers.0.attention.o_proj.weight"),
            ("encoder.layer.11.intermediate.dense.weight", "deit.layers.11.mlp.fc1.weight"),
            ("encoder.layer.11.output.dense.weight", "vit.layers.11.mlp.fc2.weight"),
            ("classifier.weight", "cls_classifier.weight"),
        ] {
            let meaning = from_hugging_face(file, false);
            assert_eq!(meaning, from_hugging_face(memory, false));
            assert_ne!(meaning, Meaning::Unknown, "{file}");
        }
        assert_eq!(
            from_hugging_face("vit.layers.3.attention.v_proj.weight", false),
            Meaning::Third("blocks.3.attn.qkv.weight".into(), 2)
        );
        assert_eq!(from_hugging_face("vit.pooler.dense.weight", false), Meaning::Ignored);
        assert_eq!(from_hugging_face("vit.encoder.layer.x.output.dense.weight", false), Meaning::Unknown);
    }

    #[test]
    fn a_distillation_token_that_nobody_reads_is_a_register() {
        assert_eq!(from_hugging_face("deit.embeddings.distillation_token", true), Meaning::Whole("dist_token".into()));
        assert_eq!(from_hugging_face("deit.embeddings.distillation_token", false), Meaning::Whole("reg_token".into()));
    }

    #[test]
    fn deit_3s_old_names_are_layer_scale() {
        assert_eq!(from_timm("blocks.7.gamma_2"), Meaning::Whole("blocks.7.ls2.gamma".into()));
        assert_eq!(from_timm("pre_logits.fc.weight"), Meaning::Ignored);
    }
}
