//! A run that is killed, stopped, or starved of disk goes on as if nothing had happened.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use manyheads_trainer::checkpoint::Store;
use support::events;
use support::{Done, Place, assert_same_end, losses, metrics, steps};

const SCHEDULE: &str = r#"
[train]
epochs = 6
batch_size = 8
accumulate = 2
drop_last = false

[checkpoint]
every_steps = 2
every_epochs = 0
keep = 3

[log]
every_steps = 3
"#;

/// A small deterministic generator for moments and bits; the tests' own, so that they have nothing to share with the program.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn signal(child: &Child, name: &str) {
    let status = std::process::Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
    assert!(status.expect("kill runs").success());
}

/// Waits until the run's metrics have `lines` lines, so that a signal meets it at work.
fn wait_for_lines(run: &Path, lines: usize) {
    let start = Instant::now();
    while fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count()) < lines {
        assert!(start.elapsed() < Duration::from_secs(120), "the run writes no metrics");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How often the test below kills; `scripts/crash_test.sh` asks for more.
fn wanted_kills() -> usize {
    std::env::var("MANYHEADS_KILLS").map_or(20, |text| text.parse().expect("MANYHEADS_KILLS is a number"))
}

#[test]
fn killed_at_random_moments_it_ends_as_the_unbroken_run() {
    let place = Place::new();
    place.images(13, 4);
    place.config(&format!("{}\n[ema]\nenabled = true\ndecay = 0.9\n", SCHEDULE.replace("epochs = 6", "epochs = 40")));
    let start = Instant::now();
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
    // How far a run gets between two kills depends on what else the machine does.
    let mut longest = start.elapsed().mul_f64(0.15);
    let (mut random, mut kills, mut runs) = (Random(2), 0, 0);
    while kills < wanted_kills() {
        let killed = killed_and_resumed_to_its_end(&place, longest, wanted_kills() - kills, &mut random);
        assert_same_end(&place.path("whole"), &place.path("broken"));
        assert_eq!(steps(&place.path("whole")), steps(&place.path("broken")));
        assert_eq!(summary(&place.path("whole")), summary(&place.path("broken")));
        assert_eq!(events_without_clock(&place.path("whole")), events_without_clock(&place.path("broken")));
        for leftover in fs::read_dir(place.path("broken/checkpoints")).unwrap() {
            let name = leftover.unwrap().file_name();
            assert!(!name.to_string_lossy().starts_with('.'), "{name:?} is left over");
        }
        (kills, runs) = (kills + killed, runs + 1);
        if killed < 5 {
            longest /= 2;
        }
    }
    println!("{kills} kills in {runs} runs: each ended as the unbroken one");
}

/// Starts the run `broken` anew, kills and resumes it at most `most` times, each within `longest`, until it ends by itself; whatever it leaves
/// visible must be sound. Returns the number of kills.
fn killed_and_resumed_to_its_end(place: &Place, longest: Duration, most: usize, random: &mut Random) -> usize {
    let _ = fs::remove_dir_all(place.path("broken"));
    let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", "broken"];
    let mut kills = 0;
    while kills < most {
        let mut child = place.start(&args);
        if random.below(3) == 0 {
            // A third of the kills hit the writing of a checkpoint: they wait for the folder that is being written.
            let deadline = Instant::now() + 10 * longest;
            while !writing(&place.path("broken")) && Instant::now() < deadline && child.try_wait().unwrap().is_none() {}
            std::thread::sleep(Duration::from_micros(random.below(5000)));
        } else {
            std::thread::sleep(longest.mul_f64(random.below(1000) as f64 / 1000.0));
        }
        if child.try_wait().unwrap().is_some() {
            Done::from(child.wait_with_output().unwrap()).expect(0);
            return kills;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        let store = Store::new(&place.path("broken"));
        for step in store.steps().unwrap() {
            let checkpoint = store.load(step).unwrap_or_else(|e| panic!("after kill {kills}, checkpoint {step}: {e}"));
            assert_eq!(checkpoint.manifest.step, step);
        }
        // Killed before its configuration was there, it has to be started again; afterwards it is resumed.
        if place.path("broken/config.toml").exists() {
            args = vec!["resume", "broken", "--device", "cpu"];
        } else {
            let _ = fs::remove_dir_all(place.path("broken"));
        }
    }
    place.run(&args).expect(0);
    kills
}

/// The summary without its columns of time.
fn summary(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("summary.csv")).unwrap();
    text.lines().map(|line| line.rsplitn(3, ',').last().unwrap().to_owned()).collect()
}

/// TensorBoard's events without what depends on the clock.
fn events_without_clock(run: &Path) -> Vec<(u64, String, events::Value)> {
    events::lasting(&run.join("tensorboard/events.out.tfevents.manyheads"))
}

fn writing(run: &Path) -> bool {
    let Ok(entries) = fs::read_dir(run.join("checkpoints")) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(".writing"))
}

#[test]
fn signals_save_and_leave_with_130_and_resume_adds_nothing_twice() {
    let place = Place::new();
    place.images(13, 4);
    // An interval of checkpoints that is no divisor of the epoch (virtex#18), and lines that fall between them.
    place.config(SCHEDULE);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
    let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", "broken"];
    for (number, name) in ["TERM", "INT", "USR1", "HUP"].into_iter().enumerate() {
        let child = place.start(&args);
        wait_for_lines(&place.path("broken"), 2 + 8 * number);
        signal(&child, name);
        let done = Done::from(child.wait_with_output().unwrap()).expect(130);
        assert!(done.stderr.contains("manyheads resume broken"), "{}", done.stderr);
        args = vec!["resume", "broken", "--device", "cpu"];
    }
    place.run(&args).expect(0);
    assert_same_end(&place.path("whole"), &place.path("broken"));
    // A finished run has nothing left to do, and says its result again.
    let again = place.run(&["resume", "broken", "--json"]).expect(0);
    assert_eq!(again.json()["finished"], true);
    assert_same_end(&place.path("whole"), &place.path("broken"));
}

#[test]
fn sigterm_leaves_within_a_step() {
    let place = Place::new();
    place.images(13, 4);
    place.config("[train]\nepochs = 1000\nbatch_size = 8\naccumulate = 1\n[log]\nevery_steps = 1\n[checkpoint]\nevery_epochs = 0\n[eval]\nevery_epochs = 0\n");
    let child = place.start(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]);
    wait_for_lines(&place.path("run"), 5);
    let before = metrics(&place.path("run")).len();
    signal(&child, "TERM");
    let asked = Instant::now();
    Done::from(child.wait_with_output().unwrap()).expect(130);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    // A line a step: the counting of lines races with the run by a few steps of some milliseconds, not by more.
    let after = metrics(&place.path("run")).len();
    assert!(after - before < 50, "{before} lines before the signal, {after} after");
    assert_eq!(steps(&place.path("run")), [format!("step-{after:08}")]);
}

#[test]
fn a_second_sigint_leaves_at_once() {
    let place = Place::new();
    place.images(13, 4);
    // One step of 130 images in 130 batches: it lasts long enough to be left in the middle.
    place.config("[train]\nepochs = 2000\nbatch_size = 1\naccumulate = 130\n[log]\nevery_steps = 1\n");
    let child = place.start(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]);
    wait_for_lines(&place.path("run"), 2);
    signal(&child, "INT");
    signal(&child, "INT");
    let asked = Instant::now();
    Done::from(child.wait_with_output().unwrap()).expect(130);
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

/// SimpleTuner#2613: the newest checkpoint is broken, and the run must use the one before.
#[test]
fn a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SCHEDULE);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
    let newest = steps(&place.path("whole")).pop().unwrap();
    let mut random = Random(7);
    for file in ["model.safetensors", "optimizer.safetensors", "config.toml", "manifest.json"] {
        for damage in ["flip", "truncate", "delete"] {
            let run = format!("{damage}-{file}");
            copy(&place.path("whole"), &place.path(&run));
            let path = place.path(&run).join("checkpoints").join(&newest).join(file);
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                "flip" => {
                    let bit = random.below(bytes.len() as u64 * 8);
                    bytes[bit as usize / 8] ^= 1 << (bit % 8);
                    fs::write(&path, bytes).unwrap();
                }
                "truncate" => {
                    bytes.truncate(random.below(bytes.len() as u64) as usize);
                    fs::write(&path, bytes).unwrap();
                }
                _ => fs::remove_file(&path).unwrap(),
            }
            let done = place.run(&["resume", &run, "--device", "cpu"]).expect(0);
            done.says(&[&newest, file, "is not sound", "continuing from"]);
            assert_same_end(&place.path("whole"), &place.path(&run));
            assert!(place.path(&run).join("checkpoints").join(format!("{newest}.broken")).is_dir());
        }
    }
}

/// deit#173: a checkpoint without one of its parts must not be resumed without a word.
#[test]
fn without_any_sound_checkpoint_resume_fails_naming_every_file() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SCHEDULE);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
    for file in ["model.safetensors", "optimizer.safetensors", "config.toml", "manifest.json"] {
        copy(&place.path("whole"), &place.path(file));
        let folders = steps(&place.path(file));
        for folder in &folders {
            fs::remove_file(place.path(file).join("checkpoints").join(folder).join(file)).unwrap();
        }
        let done = place.run(&["resume", file, "--device", "cpu"]).expect(1).says(&["no sound checkpoint", "is missing"]);
        for folder in &folders {
            assert!(done.stderr.contains(&format!("{folder}/{file} is missing")), "{}", done.stderr);
        }
        assert_eq!(steps(&place.path(file)), folders, "nothing was touched");
    }
    copy(&place.path("whole"), &place.path("emptied"));
    for folder in steps(&place.path("emptied")) {
        fs::remove_dir_all(place.path("emptied/checkpoints").join(folder)).unwrap();
    }
    place.run(&["resume", "emptied", "--device", "cpu"]).expect(1).says(&["have been removed"]);
}

/// open_lm#154: the disk is full after hours.
#[test]
fn a_full_disk_keeps_the_checkpoint_before_and_says_what_happened() {
    let place = Place::new();
    place.images(13, 4);
    // Without TensorBoard's events, which would be the first to meet the limit.
    place.config(&format!("{SCHEDULE}tensorboard = false\n"));
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
    let size = fs::metadata(place.path("whole/checkpoints/last/optimizer.safetensors")).unwrap().len();
    // A file may grow to half of what a checkpoint needs from the second checkpoint on: the limit stands for the disk's end.
    let child = place.start(&["train", "tiny.toml", "--device", "cpu", "--out", "full"]);
    let start = Instant::now();
    while steps_or_none(&place.path("full")).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    let limit = std::process::Command::new("prlimit")
        .args(["--pid", &child.id().to_string(), &format!("--fsize={}", size / 2)])
        .output()
        .expect("prlimit (util-linux) runs");
    let done = Done::from(child.wait_with_output().unwrap());
    assert!(limit.status.success(), "the run ended before the limit was set: {}", done.stderr);
    let done = done.expect(1).says(&["was not written", "optimizer.safetensors", "manyheads resume full"]);
    assert!(done.stderr.contains("untouched"), "{}", done.stderr);
    assert!(!writing(&place.path("full")), "nothing half-written is left");
    place.run(&["resume", "full", "--device", "cpu"]).expect(0);
    assert_same_end(&place.path("whole"), &place.path("full"));
}

fn steps_or_none(run: &Path) -> Vec<String> {
    if run.join("checkpoints").is_dir() { steps(run) } else { Vec::new() }
}

/// OneTrainer#1604, open_clip#413: a schedule silently computed anew makes the learning rate jump.
#[test]
fn a_changed_configuration_is_refused_naming_the_key() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SCHEDULE);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(0);
    let config = fs::read_to_string(place.path("run/config.toml")).unwrap();
    assert!(config.contains("epochs = 6"));
    fs::write(place.path("run/config.toml"), config.replace("\nepochs = 6", "\nepochs = 12")).unwrap();
    place.run(&["resume", "run"]).expect(2).says(&[
        "train.epochs",
        "6 in the checkpoint",
        "12 in the configuration",
        "--allow train.epochs",
    ]);
    place.run(&["resume", "run", "--allow", "train.epoch"]).expect(2).says(&["--allow train.epoch", "no such key"]);
    place.run(&["resume", "run", "--allow", "train.batch_size"]).expect(2).says(&["train.epochs"]);
    let before = losses(&place.path("run")).len();
    place.run(&["resume", "run", "--allow", "train.epochs"]).expect(0).says(&[
        "from now on different: train.epochs: 6 in the checkpoint, 12 in the configuration",
        "from the checkpoint: step 54 of 108",
        "from the configuration: learning rate",
    ]);
    assert!(losses(&place.path("run")).len() > before);
    // The run tells what was changed, and from then on it is what it says.
    let changed: Vec<_> = metrics(&place.path("run")).into_iter().filter(|line| line["event"] == "changed").collect();
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert_eq!((&changed[0]["path"], &changed[0]["step"]), (&"train.epochs".into(), &54.into()));
    // On the command line too; a kill right after it leaves the run as changed.
    place.run(&["resume", "run", "--set", "train.epochs=13"]).expect(2).says(&["12 in the checkpoint", "--allow train.epochs"]);
    assert!(
        fs::read_to_string(place.path("run/config.toml")).unwrap().contains("\nepochs = 12"),
        "what is refused changes nothing"
    );
    // What the checkpoint's tensors do not fit cannot be allowed, and changes nothing either.
    place.run(&["resume", "run", "--set", "model.width=32", "--allow", "model"]).expect(1).says(&["model.safetensors"]);
    assert!(fs::read_to_string(place.path("run/config.toml")).unwrap().contains("\nwidth = 16"));
    place.run(&["resume", "run", "--set", "train.epochs=13", "--allow", "train"]).expect(0);
    assert!(fs::read_to_string(place.path("run/config.toml")).unwrap().contains("\nepochs = 13"));
    place.run(&["resume", "run"]).expect(0);
    // What no number depends on may change.
    let config = fs::read_to_string(place.path("run/config.toml")).unwrap();
    fs::write(place.path("run/config.toml"), config.replace("keep = 3", "keep = 1")).unwrap();
    place.run(&["resume", "run"]).expect(0);
}

#[test]
fn two_processes_cannot_work_on_one_run() {
    let place = Place::new();
    place.images(13, 4);
    place.config("[train]\nepochs = 2000\nbatch_size = 8\naccumulate = 1\n[log]\nevery_steps = 1\n");
    let mut child = place.start(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]);
    wait_for_lines(&place.path("run"), 1);
    place.run(&["resume", "run"]).expect(1).says(&["another process"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn copy(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(status.success());
}

/// A kill between putting a checkpoint in place and pointing the links to it, or removing older ones, must not outlast the resume.
#[test]
fn resume_settles_links_and_folders() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SCHEDULE);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
    let link = |name: &str| fs::read_link(place.path("run/checkpoints").join(name)).unwrap();
    copy(&place.path("whole"), &place.path("run"));
    let (last, best) = (link("last"), link("best"));
    let checkpoints = place.path("run/checkpoints");
    for name in ["last", "best"] {
        fs::remove_file(checkpoints.join(name)).unwrap();
        std::os::unix::fs::symlink("step-00000001", checkpoints.join(name)).unwrap();
    }
    copy(&checkpoints.join(&last), &checkpoints.join("step-00000002"));
    fs::write(checkpoints.join(".link-last"), "").unwrap();
    fs::create_dir(checkpoints.join(".writing-step-00000099")).unwrap();
    // What people leave there is no checkpoint.
    fs::create_dir(checkpoints.join("step-7")).unwrap();
    fs::write(checkpoints.join("step-00000098"), "").unwrap();
    place.run(&["resume", "run", "--device", "cpu"]).expect(0);
    assert_eq!((link("last"), link("best")), (last, best));
    assert!(!checkpoints.join("step-00000002").exists(), "there are more checkpoints than are kept");
    assert!(!checkpoints.join(".link-last").exists() && !checkpoints.join(".writing-step-00000099").exists());
    assert_same_end(&place.path("whole"), &place.path("run"));
    for name in ["", ".", "../x", "/tmp", "step-00000054/model.safetensors"] {
        place.run(&["eval", "run", "--checkpoint", name]).expect(2).says(&["--checkpoint"]);
    }
    place.run(&["eval", "run", "--checkpoint", "step-00000001"]).expect(1).says(&["step-00000054"]);
}

#[test]
fn removed_checkpoints_are_an_error_and_cost_no_metrics() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SCHEDULE);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(0);
    let before = metrics(&place.path("run"));
    fs::remove_dir_all(place.path("run/checkpoints")).unwrap();
    place.run(&["resume", "run"]).expect(1).says(&["has been removed"]);
    assert_eq!(metrics(&place.path("run")), before);
}

#[test]
fn a_run_shortened_below_what_is_done_is_refused() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SCHEDULE);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(0);
    let config = fs::read_to_string(place.path("run/config.toml")).unwrap();
    fs::write(place.path("run/config.toml"), config.replace("\nepochs = 6", "\nepochs = 2")).unwrap();
    place.run(&["resume", "run", "--allow", "train.epochs"]).expect(2).says(&["54 steps are done", "18 steps"]);
}

/// deit#59: another copy of the data is another dataset, even with as many files.
#[test]
fn a_renamed_image_is_another_dataset() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SCHEDULE);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(0);
    fs::rename(place.path("train/class4/0003.png"), place.path("train/class4/zzz.png")).unwrap();
    place.run(&["resume", "run"]).expect(2).says(&["the training images have other file names", "--allow data.train"]);
    place.run(&["resume", "run", "--allow", "data"]).expect(0).says(&["other file names"]);
}

/// A run whose folder is gone must say so, and not write checkpoints where nobody looks for them.
#[test]
fn a_run_directory_removed_meanwhile_ends_the_run() {
    let place = Place::new();
    place.images(13, 4);
    place.config(
        "[train]\nepochs = 2000\nbatch_size = 8\naccumulate = 1\n[log]\nevery_steps = 1\n[checkpoint]\nevery_steps = 40\n",
    );
    let child = place.start(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]);
    wait_for_lines(&place.path("run"), 2);
    fs::rename(place.path("run"), place.path("gone")).unwrap();
    Done::from(child.wait_with_output().unwrap()).expect(1).says(&["was not written", "run/checkpoints"]);
    assert!(!place.path("run").exists());
}

/// A terminal that is closed asks to stop; a run that was started to outlive it stays.
#[test]
fn nohup_keeps_a_run_alive() {
    let place = Place::new();
    place.images(13, 4);
    place.config("[train]\nepochs = 200\nbatch_size = 8\naccumulate = 1\n[log]\nevery_steps = 1\n[checkpoint]\nevery_epochs = 0\n[eval]\nevery_epochs = 0\n");
    let mut nohup = std::process::Command::new("nohup");
    nohup.arg(support::PROGRAM).args(["train", "tiny.toml", "--device", "cpu", "--out", "run"]).current_dir(place.path(""));
    let child = nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nohup runs");
    wait_for_lines(&place.path("run"), 5);
    signal(&child, "HUP");
    let lines = metrics_lines(&place.path("run"));
    wait_for_lines(&place.path("run"), lines + 20);
    signal(&child, "TERM");
    Done::from(child.wait_with_output().unwrap()).expect(130);
}

fn metrics_lines(run: &Path) -> usize {
    fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

/// Who reads the messages may leave; the run stays.
#[test]
fn a_closed_stderr_does_not_end_a_run() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SCHEDULE);
    let mut child = place.start(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]);
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    place.run(&["resume", "run", "--json"]).expect(0);
}

/// Whoever cannot write into the run says so at once, and one who loses the right meanwhile keeps what is there.
#[test]
fn a_folder_that_cannot_be_written_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.images(13, 4);
    place.config(SCHEDULE);
    fs::create_dir(place.path("locked")).unwrap();
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&place.path("locked"), 0o555);
    // Where the tests run as root, permissions bind nobody; then a file in the folder's place is what cannot be written into.
    if fs::write(place.path("locked/x"), "").is_ok() {
        place.write("file", "");
        place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "file/run"]).expect(1).says(&["file/run"]);
        return;
    }
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "locked/run"]).expect(1).says(&["locked/run"]);
    mode(&place.path("locked"), 0o755);
}

#[test]
fn checkpoints_of_every_so_many_epochs_stay() {
    let place = Place::new();
    place.images(13, 4);
    place.config("[train]\nepochs = 7\nbatch_size = 8\naccumulate = 2\n[checkpoint]\nevery_epochs = 0\nkeep = 1\nkeep_best = false\nkeep_every_epochs = 3\n");
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(0);
    assert_eq!(steps(&place.path("run")), ["step-00000024", "step-00000048", "step-00000056"]);
}
