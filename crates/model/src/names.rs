//! The names of parameters, as timm gives them, and what follows from a name.

/// timm's name of the parameter at a path of Burn's module tree.
///
/// Only the norms differ: Burn says `gamma` and `beta` where timm says `weight` and `bias`. `["blocks", "0", "norm1", "gamma"]` is
/// `blocks.0.norm1.weight`. LayerScale's `gamma` is timm's word and stays.
pub fn parameter_name(path: &[String]) -> String {
    let mut name = path.join(".");
    if path.len() >= 2 && matches!(path[path.len() - 2].as_str(), "ls1" | "ls2") {
        return name;
    }
    if let Some(stem) = name.strip_suffix(".gamma") {
        name = format!("{stem}.weight");
    } else if let Some(stem) = name.strip_suffix(".beta") {
        name = format!("{stem}.bias");
    }
    name
}

/// Whether weight decay applies to a parameter of this timm name and rank.
///
/// DeiT decays neither biases nor vectors (norms, LayerScale) nor `pos_embed` and `cls_token` (timm's `param_groups_weight_decay` with
/// the model's `no_weight_decay` set). The list is that of DeiT's own repository: `dist_token` and `reg_token` decay. timm 1.0 has since
/// added both to its list.
pub fn weight_decay(name: &str, rank: usize) -> bool {
    rank > 1 && !name.ends_with(".bias") && !matches!(name, "pos_embed" | "cls_token")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dotted: &str) -> Vec<String> {
        dotted.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn norms_take_timms_words_and_the_rest_stays() {
        assert_eq!(parameter_name(&path("blocks.11.norm2.gamma")), "blocks.11.norm2.weight");
        assert_eq!(parameter_name(&path("norm.beta")), "norm.bias");
        assert_eq!(parameter_name(&path("blocks.0.attn.qkv.weight")), "blocks.0.attn.qkv.weight");
        assert_eq!(parameter_name(&path("cls_token")), "cls_token");
        assert_eq!(parameter_name(&path("blocks.3.ls1.gamma")), "blocks.3.ls1.gamma");
        assert_eq!(parameter_name(&path("fc_norm.gamma")), "fc_norm.weight");
    }

    #[test]
    fn decay_follows_deits_list() {
        for (name, rank, decayed) in [
            ("head.weight", 2, true),
            ("patch_embed.proj.weight", 4, true),
            ("blocks.0.mlp.fc1.weight", 2, true),
            ("head.bias", 1, false),
            ("norm.weight", 1, false),
            ("blocks.0.norm1.bias", 1, false),
            ("pos_embed", 3, false),
            ("cls_token", 3, false),
            ("dist_token", 3, true),
            ("reg_token", 3, true),
            ("head_dist.weight", 2, true),
            ("blocks.0.ls1.gamma", 1, false),
        ] {
            assert_eq!(weight_decay(name, rank), decayed, "{name}");
        }
    }
}
