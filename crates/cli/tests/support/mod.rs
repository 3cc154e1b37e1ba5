//! Drives the program as a user would.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod events;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use manyheads_data::Source;
use manyheads_data::source::embedded::FashionMnist;
use serde_json::Value;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_manyheads");

/// A temporary folder to work in.
pub struct Place {
    dir: tempfile::TempDir,
}

/// What a call of the program did.
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program writes UTF-8");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Done {
    /// Asserts the exit code, showing what was said where it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Asserts that stderr contains every one of `words`.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is not in:\n{}", self.stderr);
        }
        self
    }

    /// Stdout as one JSON object.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in {}", self.stdout))
    }
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder can be made");
        fs::write(&path, text).expect("a file can be written");
        path
    }

    /// The program with `args`, to be run in this place.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        // The user's cache folder, where choices of a GPU's kernels are kept, is no affair of tests.
        command.env("XDG_CACHE_HOME", self.path("cache"));
        command
    }

    /// Runs the program to its end.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Done {
        self.command(args).output().expect("the program starts").into()
    }

    /// Starts the program and lets it run.
    pub fn start(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    }

    /// Image folders `train` and `val` below this place, with real images: `per_class` and `per_class_val` of each of ten classes.
    pub fn images(&self, per_class: usize, per_class_val: usize) {
        for (half, source, count) in [
            ("train", FashionMnist::train().expect("the embedded images are sound"), per_class),
            ("val", FashionMnist::val().expect("the embedded images are sound"), per_class_val),
        ] {
            let mut left = vec![count; source.classes().len()];
            for index in 0..source.len() {
                let label = source.label(index);
                if left[label] == 0 {
                    continue;
                }
                left[label] -= 1;
                let folder = self.path(half).join(format!("class{label}"));
                fs::create_dir_all(&folder).expect("a folder can be made");
                let bytes = source.read(index).expect("an embedded image can be read");
                fs::write(folder.join(format!("{:04}.png", left[label])), &bytes).expect("an image can be written");
            }
            assert!(left.iter().all(|left| *left == 0), "there are enough embedded images");
        }
    }

    /// A configuration of a very small model on `train` and `val`; `more` is appended.
    pub fn config(&self, more: &str) -> PathBuf {
        self.write("tiny.toml", &format!("{TINY}{more}"))
    }
}

/// A model that trains in seconds, with every kind of attention.
pub const TINY: &str = r#"
[model]
image_size = 28
patch_size = 7
channels = 1
classes = 10
width = 16
depth = 3
heads = 4
mlp_ratio = 2.0
stochastic_depth = 0.2

[[model.attention.overrides]]
kind = "hydra"
layers = [1]

[[model.attention.overrides]]
kind = "linear"
layers = [2]

[data]
train = "train"
val = "val"
mean = [0.286]
std = [0.353]

[optimizer]
learning_rate = 2e-3
reference_batch = 0
clip_norm = 1.0

[schedule]
interval = "step"
warmup_epochs = 0.5
"#;

/// The lines of a run's metrics.
pub fn all_metrics(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).expect("a run has metrics");
    assert!(text.ends_with('\n'), "the last line is whole");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"))).collect()
}

/// The lines of a run's metrics without what depends on the clock or the machine.
pub fn metrics(run: &Path) -> Vec<Value> {
    let mut lines = all_metrics(run);
    for line in &mut lines {
        let object = line.as_object_mut().expect("a line is an object");
        object.retain(|key, _| !key.starts_with("time_") && !key.starts_with("rate_"));
    }
    lines
}

/// The losses of the lines of kind `train`.
pub fn losses(run: &Path) -> Vec<f64> {
    let lines = metrics(run);
    lines.iter().filter(|line| line["kind"] == "train").map(|line| line["loss"].as_f64().expect("a number")).collect()
}

/// The bytes of a file of a run's last checkpoint.
pub fn last(run: &Path, file: &str) -> Vec<u8> {
    fs::read(run.join("checkpoints/last").join(file)).unwrap_or_else(|e| panic!("{file} of {}: {e}", run.display()))
}

/// Names of the checkpoint folders of a run, oldest first.
pub fn steps(run: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(run.join("checkpoints"))
        .expect("a run has checkpoints")
        .map(|entry| entry.expect("an entry can be read").file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("step-"))
        .collect();
    names.sort();
    names
}

/// Asserts that two runs ended alike, bit for bit.
#[track_caller]
pub fn assert_same_end(a: &Path, b: &Path) {
    for file in ["model.safetensors", "optimizer.safetensors"] {
        assert!(last(a, file) == last(b, file), "{file} of {} and {} differ", a.display(), b.display());
    }
    let average = |run: &Path| fs::read(run.join("checkpoints/last/ema.safetensors")).ok();
    assert!(average(a) == average(b), "ema.safetensors of {} and {} differ", a.display(), b.display());
    assert_eq!(metrics(a), metrics(b));
}
