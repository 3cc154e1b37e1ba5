//! Kernels chosen for a GPU are kept from one process to the next, and nothing that happens to what is kept stops a run.
#![cfg(feature = "wgpu")]

mod support;

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use support::{Done, Place};

/// Where CubeCL writes a line for every choice made by timing.
const CHOICES: &str = "choices.jsonl";

struct Runs {
    place: Place,
}

impl Runs {
    fn new() -> Self {
        let place = Place::new();
        // A Cargo project, in whose `target` folder CubeCL would keep its choices by itself.
        place.write("Cargo.toml", "[workspace]\n");
        place.write("cubecl.toml", &format!("[autotune.decisions]\nfile = \"{CHOICES}\"\n"));
        Self { place }
    }

    /// Forward passes of a very small network on wgpu; how many choices were made by timing.
    #[track_caller]
    fn choices(&self) -> usize {
        let _ = fs::remove_file(self.place.path(CHOICES));
        let sizes = ["image_size=8", "patch_size=4", "width=16", "heads=2", "depth=1", "classes=4"];
        let mut args = vec!["bench", "infer", "--json", "--device", "wgpu", "--batch", "2", "--steps", "1", "--warmup", "0"];
        let sizes: Vec<String> = sizes.iter().map(|size| format!("model.{size}")).collect();
        args.extend(sizes.iter().flat_map(|size| ["--set", size]));
        let mut command = self.place.command(&args);
        command.env("CUBECL_AUTOTUNE_LEVEL", "0");
        Done::from(command.output().unwrap()).expect(0);
        fs::read_to_string(self.place.path(CHOICES)).unwrap_or_default().lines().count()
    }

    /// The files that keep the choices.
    fn kept(&self) -> Vec<PathBuf> {
        let folder = fs::read_dir(self.place.path("cache/manyheads")).into_iter().flatten();
        folder.map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn choices_are_kept_and_what_is_damaged_is_made_anew() {
    let runs = Runs::new();
    let made = runs.choices();
    assert!(made > 0, "an empty cache leaves everything to choose");
    assert!(runs.kept().iter().any(|file| file.extension().is_some_and(|end| end == "db")), "{:?}", runs.kept());
    assert!(!runs.place.path("target").exists(), "nothing is put into a Cargo project");
    assert_eq!(runs.choices(), 0);

    for path in runs.kept() {
        // Neither a database nor one's log, and memory to share that says nothing.
        let damage = if path.extension().is_some_and(|end| end == "db") { b"no database".to_vec() } else { vec![0; 100_000] };
        fs::write(&path, &damage).unwrap();
        // What was written a moment ago may be another run's beginning.
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }
    assert_eq!(runs.choices(), made);
    assert_eq!(runs.choices(), 0);
}

#[test]
fn a_folder_that_cannot_be_made_keeps_nothing_and_stops_nothing() {
    let runs = Runs::new();
    runs.place.write("cache", "a file where a folder should be");
    assert!(runs.choices() > 0);
}
