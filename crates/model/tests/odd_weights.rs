//! Weights files that are no files, lie about themselves or would be overwritten, and values that no network can use.
#![allow(missing_docs)]

use burn::tensor::Device;
use manyheads_model::weights::{Export, Hints, Layout, LoadOptions, OpenOptions, Recognised, Source, convert, load, recognise};
use manyheads_model::{Architecture, Preset};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/family").join(name)
}

/// An empty directory of the test's own, under cargo's for tests.
fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("odd_weights").join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a writable target directory");
    path
}

fn open(path: &Path) -> Source {
    Source::open(path, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(path: &Path) -> String {
    Source::open(path, &OpenOptions::default()).expect_err("it is refused").to_string()
}

fn two_heads() -> Hints {
    Hints { heads: Some(2), ..Hints::default() }
}

fn recognised(source: &Source, hints: &Hints) -> Recognised {
    recognise(source, hints).unwrap_or_else(|error| panic!("{error}"))
}

fn architecture(source: &Source) -> Architecture {
    recognised(source, &two_heads()).config.resolve().expect("a possible model")
}

fn convert_to(source: &Source, path: &Path) -> Result<(), String> {
    let architecture = architecture(source);
    let export = Export::new(&architecture, Layout::Timm).expect("timm's names hold it");
    convert(source, &architecture, &LoadOptions::default(), &export, path).map(|_| ()).map_err(|error| error.to_string())
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A copy of a fixture's directory, its configuration changed.
fn hugging_face(name: &str, from: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let directory = scratch(name);
    std::fs::copy(fixture(from).join("model.safetensors"), directory.join("model.safetensors")).expect("the fixture");
    let text = std::fs::read_to_string(fixture(from).join("config.json")).expect("the fixture");
    let mut config: Value = serde_json::from_str(&text).expect("sound JSON");
    change(&mut config);
    std::fs::write(directory.join("config.json"), config.to_string()).expect("a writable file");
    directory
}

#[test]
fn writing_leaves_files_of_other_names_alone() {
    let directory = scratch("aside");
    let input = directory.join("out.safetensors.partial");
    std::fs::copy(fixture("plain.safetensors"), &input).expect("the fixture");
    let before = std::fs::read(&input).expect("a file");
    let out = directory.join("out.safetensors");
    convert_to(&open(&input), &out).expect("it is written");
    assert_eq!(std::fs::read(&input).expect("still there"), before);
    assert_eq!(open(&out).tensors().count(), open(&input).tensors().count());
    assert_eq!(names(&directory), ["out.safetensors", "out.safetensors.partial"]);
}

#[test]
fn folders_are_not_replaced() {
    let directory = scratch("targets");
    let source = open(&fixture("plain.safetensors"));
    let error = convert_to(&source, &directory).expect_err("a folder");
    assert!(error.contains("is a folder, and only a regular file is replaced"), "{error}");
    assert!(convert_to(&source, Path::new("..")).is_err_and(|error| error.contains("names no file")));
    assert!(names(&directory).is_empty());
}

#[cfg(unix)]
#[test]
fn devices_and_links_to_them_are_not_replaced() {
    use std::os::unix::fs::symlink;
    let directory = scratch("links");
    let source = open(&fixture("plain.safetensors"));
    let link = directory.join("null");
    symlink("/dev/null", &link).expect("a link");
    for path in [Path::new("/dev/null"), &link] {
        let error = convert_to(&source, path).expect_err("a device");
        assert!(error.contains("is a device"), "{error}");
    }

    // A link to a file is replaced itself.
    let (file, link) = (directory.join("file"), directory.join("link"));
    std::fs::write(&file, "text").expect("a writable file");
    symlink(&file, &link).expect("a link");
    convert_to(&source, &link).expect("it is written");
    assert_eq!(std::fs::read(&file).expect("still there"), b"text");
    assert!(std::fs::symlink_metadata(&link).expect("written").is_file());
}

#[test]
fn conversion_does_not_overwrite_what_it_reads() {
    let directory = scratch("inputs");
    for entry in std::fs::read_dir(fixture("plain_shards")).expect("the fixture") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), directory.join(entry.file_name())).expect("the fixture");
    }
    std::fs::write(directory.join("config.json"), "{}").expect("a writable file");
    let source = open(&directory);
    let files: Vec<PathBuf> = source.files().map(Path::to_owned).collect();
    let mut found: Vec<String> =
        files.iter().map(|file| file.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    found.sort();
    assert_eq!(found, names(&directory), "index, shards and config.json");
    for file in &files {
        let before = std::fs::read(file).expect("a file");
        let roundabout = directory.join("..").join("inputs").join(file.file_name().expect("a name"));
        let error = convert_to(&source, &roundabout).expect_err("it is read");
        assert!(error.contains("is one of the files that the weights are read from"), "{error}");
        assert_eq!(std::fs::read(file).expect("a file"), before);
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_not_read() {
    let directory = scratch("pipes");
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo");
        assert!(made.success());
        path.to_owned()
    };
    for name in ["model.safetensors", "weights.pth", "model.safetensors.index.json"] {
        let error = refused(&pipe(&directory.join(name)));
        assert!(error.contains(name) && error.contains("is a pipe, not a regular file"), "{error}");
    }
    assert!(refused(Path::new("/dev/zero")).contains("is a device"));

    let beside = scratch("pipe_beside");
    std::fs::copy(fixture("plain.safetensors"), beside.join("model.safetensors")).expect("the fixture");
    pipe(&beside.join("config.json"));
    let error = refused(&beside);
    assert!(error.contains("config.json") && error.contains("is a pipe"), "{error}");

    let index = scratch("pipe_shard").join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map": {"a": "shard.safetensors"}}"#).expect("a writable file");
    pipe(&index.with_file_name("shard.safetensors"));
    let error = refused(&index);
    assert!(error.contains("shard.safetensors") && error.contains("is a pipe"), "{error}");
}

#[test]
fn a_header_beyond_the_formats_bound_is_not_allocated() {
    use std::io::Write;
    let path = scratch("header").join("long.safetensors");
    let mut file = std::fs::File::create(&path).expect("a writable file");
    file.write_all(&200_000_000u64.to_le_bytes()).and_then(|()| file.write_all(b"{")).expect("a writable file");
    file.set_len(300_000_000).expect("a sparse file");
    let error = refused(&path);
    assert!(error.contains("header has 200000000 bytes, and safetensors allows 100000000"), "{error}");

    let index = path.with_file_name("long.index.json");
    std::fs::File::create(&index).and_then(|file| file.set_len(300_000_000)).expect("a sparse file");
    assert!(refused(&index).contains("is read up to"));
}

#[test]
fn activations_other_than_exact_gelu_are_refused() {
    for other in [json!("gelu_new"), json!("relu"), json!(null)] {
        let source = open(&hugging_face("activation", "hf_vit", |config| config["hidden_act"] = other.clone()));
        let error = recognise(&source, &Hints::default()).expect_err("not supported").to_string();
        assert!(error.contains(&format!("hidden_act = {other}, which is not supported")), "{error}");
        // Also where the network is known without the configuration.
        let plain = architecture(&open(&fixture("hf_vit")));
        let error = load(&source, &plain, &LoadOptions::default(), &Device::flex()).expect_err("not supported").to_string();
        assert!(error.contains("hidden_act"), "{error}");
    }
}

#[test]
fn impossible_heads_are_refused_unless_said() {
    for heads in [json!(0), json!(3), json!(-2), json!("2"), json!(2.5)] {
        let source = open(&hugging_face("heads", "hf_vit", |config| config["num_attention_heads"] = heads.clone()));
        let error = recognise(&source, &Hints::default()).expect_err("no divisor");
        assert!(error.message.contains(&format!("num_attention_heads = {heads}")), "{error}");
        assert!(error.help.is_some_and(|help| help.contains("--heads N")));
        let found = recognised(&source, &two_heads());
        assert_eq!(found.config.heads, Some(2));
        assert!(found.notes.iter().any(|note| note.contains("no positive divisor")), "{:?}", found.notes);
    }
    let source = open(&hugging_face("eps", "hf_vit", |config| config["layer_norm_eps"] = json!(-1.0)));
    assert!(recognise(&source, &Hints::default()).is_err_and(|error| error.message.contains("layer_norm_eps = -1.0")));
}

#[test]
fn configurations_that_the_tensors_contradict_are_noted() {
    let agreeing = recognised(&open(&fixture("hf_vit")), &Hints::default());
    assert!(!agreeing.notes.iter().any(|note| note.contains(" right")), "{:?}", agreeing.notes);
    let wrong = [
        ("hidden_size", json!(64)),
        ("num_hidden_layers", json!(7)),
        ("intermediate_size", json!(1)),
        ("patch_size", json!(16)),
        ("image_size", json!([224, 32])),
        ("num_channels", json!(1)),
        ("qkv_bias", json!(false)),
    ];
    let source = open(&hugging_face("contradictions", "hf_vit", |config| {
        wrong.iter().for_each(|(key, value)| config[*key] = value.clone());
        config["id2label"] = json!({ "0": "one" });
    }));
    let found = recognised(&source, &Hints::default());
    assert_eq!(found.config, agreeing.config);
    for (key, value) in wrong {
        let start = format!("config.json says {key} = {value} and the tensors ");
        assert_eq!(found.notes.iter().filter(|note| note.starts_with(&start)).count(), 1, "{key}: {:?}", found.notes);
    }
    assert!(found.notes.iter().any(|note| note.contains("names 1 classes and the head has 5")), "{:?}", found.notes);
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let plain = open(&fixture("plain.safetensors"));
    let architecture = architecture(&plain);
    let infos: Vec<_> = plain.tensors().cloned().collect();
    for (name, wrong, count) in [("nan", vec![f64::NAN, 0.0, f64::INFINITY], 2), ("wide", vec![1e300, -3e38, 1.0], 1)] {
        let contents: Vec<(safetensors::Dtype, Vec<u8>)> = infos
            .iter()
            .map(|info| {
                let values = plain.read(&info.name).expect("it is there");
                if info.name == "head.bias" {
                    let values = wrong.iter().copied().chain([0.0; 2]);
                    return (safetensors::Dtype::F64, values.flat_map(f64::to_le_bytes).collect());
                }
                (safetensors::Dtype::F32, values.into_iter().flat_map(f32::to_le_bytes).collect())
            })
            .collect();
        let views = infos.iter().zip(&contents).map(|(info, (dtype, bytes))| {
            let view = safetensors::tensor::TensorView::new(*dtype, info.shape.clone(), bytes);
            (info.name.as_str(), view.expect("shape and values agree"))
        });
        let directory = scratch(name);
        let path = directory.join("weights.safetensors");
        safetensors::serialize_to_file(views, None, &path).expect("a writable file");

        let source = open(&path);
        let text = format!("head.bias holds {count} values of 5 that are NaN");
        let error = load(&source, &architecture, &LoadOptions::default(), &Device::flex()).expect_err("not finite").to_string();
        assert!(error.contains(&text), "{error}");
        let error = convert_to(&source, &directory.join("out.safetensors")).expect_err("not finite");
        assert!(error.contains(&text), "{error}");
        assert_eq!(names(&directory), ["weights.safetensors"], "nothing is left behind");
    }
}

#[test]
fn notes_are_said_once_and_in_plain_words() {
    let source = open(&fixture("hf_deit"));
    let preset = Some(Preset::find("deit_tiny_patch16_224").expect("timm's"));
    let found = recognised(&source, &Hints { preset, ..two_heads() });
    let notes = found.notes.join("\n");
    assert!(notes.contains("the distillation token, which no head reads, is kept as a register"), "{notes}");
    assert!(!notes.contains("registers is 1 in the file"), "{notes}");
    let architecture = found.config.resolve().expect("a possible model");
    let (_, report) = load(&source, &architecture, &LoadOptions::default(), &Device::flex()).expect("it fits");
    assert!(notes.contains("names are huggingface's") && !report.to_string().contains("names are"), "{report}");
}

#[test]
fn help_names_the_options() {
    let source = open(&fixture("oblong.safetensors"));
    let error = recognise(&source, &two_heads()).expect_err("2 x 3 patches are no square");
    assert!(error.help.is_some_and(|help| help.contains("--image HEIGHTxWIDTH")));
    let error = recognise(&open(&fixture("plain.safetensors")), &Hints::default()).expect_err("32 features");
    assert!(error.help.is_some_and(|help| help.contains("--heads N, or name the preset")));
}
