//! The `[model]` section: what it accepts, what it writes, and one test for each thing it refuses.
#![allow(missing_docs)]

use manyheads_model::{AttentionKind, ImageSize, Kernel, LayerAttention, ModelConfig, ModelError, Place, Pool};

fn parse(text: &str) -> ModelConfig {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn refused(text: &str, key: &str, message: &str) -> ModelError {
    let error = parse(text).resolve().expect_err(text);
    assert_eq!(error.key, key, "{error}");
    assert!(error.message.contains(message), "{error}");
    error
}

#[track_caller]
fn unreadable(text: &str, message: &str) {
    let error = toml::from_str::<ModelConfig>(text).expect_err(text).to_string();
    assert!(error.contains(message), "{error}");
}

fn hydra_layers(text: &str) -> Vec<usize> {
    let architecture = parse(text).resolve().expect(text);
    (0..architecture.depth).filter(|layer| architecture.layers[*layer].kind == AttentionKind::Hydra).collect()
}

#[test]
fn nothing_written_is_deit_b() {
    let architecture = parse("").resolve().expect("defaults are possible");
    assert_eq!(parse(""), ModelConfig::default());
    assert_eq!(architecture.image, [224, 224]);
    assert_eq!((architecture.patch, architecture.channels), (16, 3));
    assert_eq!((architecture.classes, architecture.mlp_hidden), (1000, 3072));
    assert_eq!((architecture.width, architecture.depth, architecture.heads), (768, 12, 12));
    assert_eq!((architecture.grid(), architecture.tokens()), ([14, 14], 197));
    assert!(architecture.qkv_bias);
    assert!(architecture.layers.iter().all(|layer| { *layer == LayerAttention { kind: AttentionKind::Softmax, kernel: None } }));
}

#[test]
fn presets_are_the_known_models_and_keys_override_them() {
    for (preset, shape) in [("tiny", (192, 12, 3)), ("small", (384, 12, 6)), ("base", (768, 12, 12)), ("large", (1024, 24, 16))] {
        let architecture = parse(&format!("preset = \"{preset}\"")).resolve().expect("presets are possible");
        assert_eq!((architecture.width, architecture.depth, architecture.heads), shape);
    }
    let architecture =
        parse("preset = \"tiny\"\ndepth = 3\nheads = 192\nmlp_ratio = 2.5").resolve().expect("overrides are possible");
    assert_eq!((architecture.depth, architecture.heads), (3, 192));
    assert_eq!(architecture.mlp_hidden, 480);
}

#[test]
fn timms_names_set_every_key_and_keys_override_them() {
    let resolve = |text: &str| parse(text).resolve().expect(text);
    let distilled = resolve("preset = \"deit_base_distilled_patch16_384\"");
    assert_eq!((distilled.image, distilled.tokens(), distilled.distilled), ([384, 384], 2 + 24 * 24, true));
    let deit3 = resolve("preset = \"deit3_base_patch16_224\"\nstochastic_depth = 0.2");
    assert_eq!((deit3.layer_scale, deit3.no_embed_class, deit3.tokens()), (Some(1e-6), true, 197));
    assert_eq!(deit3.embedded_prefix_tokens(), 0);
    assert_eq!(deit3.drop_path_rates(), [0.2; 12]);
    let dino = resolve("preset = \"vit_small_patch14_reg4_dinov2\"");
    assert_eq!((dino.image, dino.patch, dino.registers, dino.classes), ([518, 518], 14, 4, 1000));
    let gap = resolve("preset = \"vit_medium_patch16_gap_256\"");
    assert_eq!((gap.pool, gap.fc_norm, gap.class_token, gap.qkv_bias), (Pool::Avg, false, false, false));
    assert_eq!(resolve("preset = \"vit_base_patch16_224.augreg_in21k\"").classes, 21843);

    let changed =
        resolve("preset = \"deit3_base_patch16_224\"\nlayer_scale = 0\nimage_size = 384\nno_embed_class = false\nclasses = 10");
    assert_eq!((changed.layer_scale, changed.image, changed.no_embed_class), (None, [384, 384], false));
    assert_eq!(changed.classes, 10);
    let averaged = resolve("preset = \"vit_base_patch16_224\"\npool = \"avg\"");
    assert!(averaged.class_token && averaged.fc_norm);
    let tokenless = resolve("class_token = false");
    assert_eq!((tokenless.pool, tokenless.tokens()), (Pool::Avg, 196));
}

#[test]
fn tokens_and_pooling_that_clash_are_refused() {
    refused("class_token = false\npool = \"token\"", "pool", "the model has none");
    refused("distilled = true\npool = \"avg\"", "distilled", "class and the distillation token");
    refused("distilled = true\nregisters = 1", "registers", "no registers");
    refused("fc_norm = true", "fc_norm", "only pool = \"avg\"");
    refused("norm_eps = 0", "norm_eps", "between 0 and 1");
    refused("layer_scale = nan", "layer_scale", "no initial value");
    unreadable("pool = \"map\"", "map");
    unreadable("preset = \"deit_base_patch16_225\"", "deit_base_patch16_224");
}

#[test]
fn image_size_is_one_number_or_height_and_width() {
    assert_eq!(parse("image_size = 96").image(), [96, 96]);
    assert_eq!(parse("image_size = [32, 64]").image_size, Some(ImageSize::HeightWidth([32, 64])));
    let architecture = parse("image_size = [1072, 1920]").resolve().expect("1080p");
    assert_eq!(architecture.grid(), [67, 120]);
    unreadable("image_size = \"224\"", "224, or [height, width]");
    unreadable("image_size = [224]", "[height, width]");
    unreadable("image_size = [1, 2, 3]", "[height, width]");
    unreadable("image_size = -16", "[height, width]");
}

#[test]
fn stochastic_depth_rises_linearly() {
    let rates = ModelConfig::default().resolve().expect("defaults are possible").drop_path_rates();
    assert_eq!(rates.len(), 12);
    assert_eq!((rates[0], rates[11]), (0.0, 0.1));
    for (block, rate) in rates.iter().enumerate() {
        assert!((rate - 0.1 * block as f64 / 11.0).abs() < 1e-15);
    }
    let single = parse("depth = 1").resolve().expect("one block is possible");
    assert_eq!(single.drop_path_rates(), [0.0]);
}

#[test]
fn plans_place_layers() {
    let plan = |place: &str, count: usize| {
        hydra_layers(&format!("[attention]\noverrides = [{{ kind = \"hydra\", place = \"{place}\", count = {count} }}]"))
    };
    assert_eq!(plan("back", 2), [10, 11]);
    assert_eq!(plan("front", 3), [0, 1, 2]);
    assert_eq!(plan("interleaved", 1), [11]);
    assert_eq!(plan("interleaved", 2), [5, 11]);
    assert_eq!(plan("interleaved", 4), [2, 5, 8, 11]);
    assert_eq!(plan("interleaved", 5), [1, 3, 6, 8, 11]);
    assert_eq!(plan("interleaved", 8), [0, 2, 3, 5, 6, 8, 9, 11]);
    assert_eq!(plan("interleaved", 12), (0..12).collect::<Vec<_>>());
    assert_eq!(hydra_layers("[attention]\noverrides = [{ kind = \"hydra\", layers = [7, 0] }]"), [0, 7]);
}

#[test]
fn every_place_gives_distinct_ascending_layers() {
    for depth in 1..=24 {
        for count in 0..=depth {
            for place in [Place::Back, Place::Front, Place::Interleaved] {
                let layers = place.layers(count, depth);
                assert_eq!(layers.len(), count);
                assert!(layers.is_sorted_by(|a, b| a < b), "{place:?} {count}/{depth}");
                assert!(layers.iter().all(|layer| *layer < depth));
                if place != Place::Front && count > 0 {
                    assert_eq!(layers[count - 1], depth - 1);
                }
            }
            // Even: neighbours differ by at most one in their distance.
            let layers = Place::Interleaved.layers(count, depth);
            let gaps: Vec<usize> = layers.windows(2).map(|pair| pair[1] - pair[0]).collect();
            if let (Some(least), Some(most)) = (gaps.iter().min(), gaps.iter().max()) {
                assert!(most - least <= 1, "{count} of {depth}: {layers:?}");
            }
        }
    }
}

#[test]
fn later_overrides_win_and_kernels_are_inherited() {
    let architecture = parse(
        "depth = 4\n[attention]\nkind = \"linear\"\nkernel = \"tanh\"\noverrides = [
            { kind = \"hydra\", place = \"back\", count = 3 },
            { kind = \"softmax\", layers = [3] },
            { kind = \"hydra\", kernel = \"relu\", layers = [2] },
        ]",
    )
    .resolve()
    .expect("a possible plan");
    let names: Vec<String> = architecture.layers.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["linear/tanh", "hydra/tanh", "hydra/relu", "softmax"]);
}

#[test]
fn a_kernel_without_a_name_is_cosine() {
    let architecture = parse("[attention]\nkind = \"hydra\"").resolve().expect("a possible plan");
    assert!(architecture.layers.iter().all(|layer| layer.kernel == Some(Kernel::Cosine)));
}

#[test]
fn resolved_is_complete_valid_and_a_fixed_point() {
    for text in [
        "",
        "preset = \"tiny\"\nimage_size = [32, 64]\nclasses = 2",
        "preset = \"deit3_small_patch16_384\"\nlayer_scale = 0",
        "preset = \"vit_base_patch16_224.augreg_in21k\"",
        "preset = \"vit_medium_patch16_gap_256\"",
        "preset = \"deit_base_distilled_patch16_384\"\nimage_size = [192, 288]",
        "[attention]\nkind = \"hydra\"",
        "[attention]\nkernel = \"tanh\"\noverrides = [{ kind = \"linear\", place = \"back\", count = 2 }]",
        "[attention]\nkind = \"linear\"\noverrides = [{ kind = \"hydra\", place = \"back\", count = 12 }]",
        "[attention]\nkind = \"hydra\"\nkernel = \"relu\"\noverrides = [{ kind = \"softmax\", place = \"interleaved\", count = 6 }, { kind = \"linear\", layers = [0] }]",
    ] {
        let config = parse(text);
        let resolved = config.resolved().expect(text);
        assert_eq!(resolved.resolve(), config.resolve(), "{text}");
        assert_eq!(resolved.resolved().expect(text), resolved, "{text}");

        let written = toml::to_string(&resolved).expect("resolved configs can be written");
        assert_eq!(parse(&written), resolved, "{written}");
        for key in [
            "image_size",
            "patch_size",
            "channels",
            "classes",
            "width",
            "depth",
            "heads",
            "mlp_ratio",
            "qkv_bias",
            "stochastic_depth",
            "kind",
        ] {
            assert!(written.contains(&format!("{key} = ")), "{key} in {written}");
        }
        for layer in config.resolve().expect(text).layers {
            if let Some(kernel) = layer.kernel {
                assert!(written.contains(&format!("kernel = \"{}\"", kernel.name())), "{written}");
            }
        }
    }
}

#[test]
fn the_schema_describes_every_key() {
    let schema = serde_json::to_value(schemars_schema()).expect("schemas are JSON");
    for definition in ["", "/$defs/AttentionConfig", "/$defs/AttentionOverride", "/$defs/DropoutConfig"] {
        let properties = schema
            .pointer(&format!("{definition}/properties"))
            .and_then(|properties| properties.as_object())
            .unwrap_or_else(|| panic!("{definition} in {schema:#}"));
        assert!(!properties.is_empty());
        for (key, property) in properties {
            assert!(property.get("description").is_some(), "{definition} {key}");
        }
    }
}

fn schemars_schema() -> schemars::Schema {
    schemars::schema_for!(ModelConfig)
}

#[test]
fn unknown_keys_and_words_are_refused() {
    unreadable("widht = 192", "widht");
    unreadable("preset = \"huge\"", "huge");
    unreadable("[attention]\nkinds = \"hydra\"", "kinds");
    unreadable("[attention]\nkernel = \"gelu\"", "gelu");
    unreadable("[attention]\noverrides = [{ kind = \"hydra\", position = \"back\" }]", "position");
    unreadable("[attention]\noverrides = [{ count = 2 }]", "kind");
}

/// A width that heads do not divide was floored in silence.
#[test]
fn paddlevit_74_heads_divide_the_width() {
    let error = refused("width = 192\nheads = 7", "heads", "7 heads do not divide the width 192");
    assert_eq!(error.help.as_deref(), Some("nearest that do: heads = 6 or 8"));
    refused("width = 100", "width", "12 heads do not divide the width 100");
    refused("preset = \"tiny\"\nheads = 384", "heads", "384 heads");
}

#[test]
fn the_patch_divides_the_image() {
    let error = refused("image_size = 225", "image_size", "225 is not a multiple of patch_size 16");
    assert!(error.help.expect("a help").contains("224 or 240"));
    refused("image_size = [224, 100]", "image_size", "100");
    refused("image_size = 8", "image_size", "8 is not a multiple");
}

#[test]
fn sizes_are_positive_and_bounded() {
    refused("image_size = 0", "image_size", "0 is less than 1");
    refused("patch_size = 0", "patch_size", "0 is less than 1");
    refused("width = 0", "width", "0 is less than 2");
    refused("depth = 0", "depth", "0 is less than 1");
    refused("heads = 0", "heads", "0 is less than 1");
    refused("width = 1000000000", "width", "more than");
    refused("depth = 100000", "depth", "more than");
    refused("image_size = 4096\npatch_size = 1", "patch_size", "tokens");
    refused("mlp_ratio = 0.0", "mlp_ratio", "no hidden size");
    refused("mlp_ratio = -1.0", "mlp_ratio", "no hidden size");
    refused("mlp_ratio = nan", "mlp_ratio", "no hidden size");
    refused("mlp_ratio = inf", "mlp_ratio", "no hidden size");
}

#[test]
fn channels_are_grey_or_colour() {
    refused("channels = 4", "channels", "neither 1 (grey) nor 3 (colour)");
    refused("channels = 0", "channels", "neither");
}

#[test]
fn one_class_is_no_classification() {
    refused("classes = 1", "classes", "1 is less than 2");
}

#[test]
fn dropout_is_a_probability_below_one_and_needs_an_attention_map() {
    for key in ["head", "positions", "patches", "projections", "attention"] {
        refused(&format!("dropout.{key} = 1.0"), &format!("dropout.{key}"), "[0, 1)");
        refused(&format!("dropout.{key} = nan"), &format!("dropout.{key}"), "[0, 1)");
    }
    let hydra = "dropout.attention = 0.1\nattention.overrides = [{ kind = \"hydra\", place = \"back\", count = 2 }]";
    refused(hydra, "dropout.attention", "layer 10 is hydra");
    let resolve = |text: &str| parse(text).resolve().expect(text);
    let architecture = resolve("dropout.patches = 0.5\ndropout.attention = 0.1");
    assert_eq!((architecture.tokens(), architecture.training_tokens()), (197, 99));
    assert_eq!(resolve("").training_tokens(), 197);
}

#[test]
fn stochastic_depth_is_a_probability_below_one() {
    refused("stochastic_depth = 1.0", "stochastic_depth", "[0, 1)");
    refused("stochastic_depth = -0.1", "stochastic_depth", "[0, 1)");
    refused("stochastic_depth = nan", "stochastic_depth", "[0, 1)");
}

#[track_caller]
fn override_refused(overrides: &str, field: &str, message: &str) {
    refused(
        &format!("[attention]\noverrides = [{{ kind = \"hydra\", layers = [0] }}, {overrides}]"),
        &format!("attention.overrides[1]{field}"),
        message,
    );
}

#[test]
fn overrides_say_which_layers_once() {
    override_refused("{ kind = \"hydra\" }", "", "does not say which layers");
    override_refused("{ kind = \"hydra\", place = \"back\" }", ".count", "missing");
    override_refused("{ kind = \"hydra\", count = 2 }", ".place", "missing");
    override_refused("{ kind = \"hydra\", place = \"back\", count = 2, layers = [1] }", ".place", "both say");
    override_refused("{ kind = \"hydra\", count = 2, layers = [1] }", ".count", "both say");
}

#[test]
fn overrides_stay_within_the_model() {
    override_refused("{ kind = \"hydra\", place = \"back\", count = 13 }", ".count", "13 layers of a model that has 12");
    override_refused("{ kind = \"hydra\", place = \"back\", count = 0 }", ".count", "0 layers");
    override_refused("{ kind = \"hydra\", layers = [12] }", ".layers", "layers are 0 to 11");
    override_refused("{ kind = \"hydra\", layers = [3, 4, 3] }", ".layers", "layer 3 is listed twice");
    override_refused("{ kind = \"hydra\", layers = [] }", ".layers", "empty list");
}

#[test]
fn overrides_have_an_effect() {
    override_refused("{ kind = \"softmax\", place = \"back\", count = 2 }", "", "changes nothing");
    override_refused("{ kind = \"hydra\", kernel = \"cosine\", layers = [0] }", "", "changes nothing");
    refused(
        "[attention]\noverrides = [{ kind = \"hydra\", place = \"back\", count = 2 }, { kind = \"linear\", place = \"back\", count = 3 }]",
        "attention.overrides[0]",
        "later overrides replace all of its layers",
    );
}

#[test]
fn kernels_are_used() {
    refused("[attention]\nkernel = \"tanh\"", "attention.kernel", "softmax attention has no kernel");
    refused(
        "[attention]\nkind = \"linear\"\nkernel = \"tanh\"\noverrides = [{ kind = \"hydra\", kernel = \"relu\", place = \"back\", count = 12 }]",
        "attention.kernel",
        "no layer takes this kernel",
    );
    override_refused("{ kind = \"softmax\", kernel = \"tanh\", layers = [0] }", ".kernel", "softmax attention has no kernel");
}
