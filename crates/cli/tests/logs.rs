//! What a run writes down beside `metrics.jsonl` tells the same, whatever happened to the run: TensorBoard's events, read here by a reader
//! that shares nothing with the program, the summary, and the environment.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::events::{self, Event};
use support::{Done, Place, assert_same_end, metrics};

const SCHEDULE: &str = r#"
[train]
epochs = 6
batch_size = 8
accumulate = 2
drop_last = false

[mix]
mixup = 0.8

[ema]
enabled = true
decay = 0.9

[eval]
every_epochs = 2

[checkpoint]
every_steps = 2
every_epochs = 0
keep = 3

[log]
every_steps = 3
"#;

const EVENTS: &str = "tensorboard/events.out.tfevents.manyheads";

/// A run of [`SCHEDULE`] to its end.
fn whole(place: &Place) {
    place.images(13, 4);
    place.config(SCHEDULE);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
}

/// The numbers of the metrics as TensorBoard has them: wall time, step and value by tag.
fn told_by_metrics(run: &Path) -> BTreeMap<String, Vec<(f64, u64, f32)>> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let mut tags: BTreeMap<String, Vec<(f64, u64, f32)>> = BTreeMap::new();
    for line in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let kind = line["kind"].as_str().unwrap();
        if kind != "train" && kind != "eval" {
            continue;
        }
        for (key, value) in line.as_object().unwrap() {
            let silent = ["kind", "step", "images", "n", "skipped"].contains(&key.as_str()) || (kind == "eval" && key == "epoch");
            if silent || key.starts_with("time_") {
                continue;
            }
            let tag = format!("{kind}/{}", key.trim_start_matches("rate_"));
            let event = (line["time_unix"].as_f64().unwrap(), line["step"].as_u64().unwrap(), value.as_f64().unwrap() as f32);
            tags.entry(tag).or_default().push(event);
        }
    }
    tags
}

/// The numbers of the event file.
fn told_by_events(run: &Path) -> BTreeMap<String, Vec<(f64, u64, f32)>> {
    let mut tags: BTreeMap<String, Vec<(f64, u64, f32)>> = BTreeMap::new();
    for Event { time, step, tag, value } in events::read(&run.join(EVENTS)) {
        if let events::Value::Scalar(value) = value {
            tags.entry(tag).or_default().push((time, step, value));
        }
    }
    tags
}

/// Everything in the event file that two equal runs have in common.
fn without_clock(run: &Path) -> Vec<(u64, String, events::Value)> {
    events::lasting(&run.join(EVENTS))
}

/// The summary without its columns of time.
fn summary(run: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(run.join("summary.csv")).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>()).map(|row| row[..10].to_vec()).collect()
}

#[track_caller]
fn assert_same_logs(whole: &Path, broken: &Path) {
    assert_eq!(told_by_events(broken), told_by_metrics(broken));
    assert_eq!(without_clock(whole), without_clock(broken));
    assert_eq!(summary(whole), summary(broken));
}

#[test]
fn events_and_summary_hold_what_the_metrics_hold() {
    let place = Place::new();
    whole(&place);
    let run = place.path("whole");
    assert_eq!(told_by_events(&run), told_by_metrics(&run));
    assert!(told_by_events(&run).contains_key("eval/ema_top1"));

    // The weights after each evaluation, by name; the last ones are those of the last checkpoint.
    let weights = events::tensors(&fs::read(run.join("checkpoints/last/model.safetensors")).unwrap());
    let mut histograms: BTreeMap<(u64, String), events::Histogram> = BTreeMap::new();
    for Event { step, tag, value, .. } in events::read(&run.join(EVENTS)) {
        if let events::Value::Histogram(histogram) = value {
            let name = tag.strip_prefix("weights").unwrap().trim_start_matches(['.', '/']).replace('/', ".");
            assert!(histograms.insert((step, name), histogram).is_none(), "{tag} twice at {step}");
        }
    }
    let evaluations: Vec<u64> =
        metrics(&run).iter().filter(|line| line["kind"] == "eval").map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(evaluations, [18, 36, 54]);
    assert_eq!(histograms.len(), weights.len() * evaluations.len());
    for (name, values) in &weights {
        let events::Histogram { numbers: [min, max, count, sum, squares], limits, counts } = &histograms[&(54, name.clone())];
        let values = || values.iter().map(|value| f64::from(*value));
        assert_eq!((*min, *max), (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max)), "{name}");
        assert_eq!(*count, values().count() as f64);
        assert!(
            (sum - values().sum::<f64>()).abs() < 1e-6
                && (squares - values().map(|value| value * value).sum::<f64>()).abs() < 1e-6
        );
        assert_eq!((limits.len(), counts.iter().sum::<f64>()), (counts.len(), *count));
        assert!(limits.is_sorted() && limits.last() == Some(max));
    }

    // Sixteen images of 28 pixels, each enlarged fourfold, as the loader and mixup made them: not the plain ones.
    let pictures: Vec<_> = events::read(&run.join(EVENTS))
        .into_iter()
        .filter_map(|event| {
            if let events::Value::Image(width, height, png) = event.value { Some((event.tag, width, height, png)) } else { None }
        })
        .collect();
    let [(tag, width, height, png)] = pictures.as_slice() else { panic!("{} pictures", pictures.len()) };
    assert_eq!((tag.as_str(), *width, *height), ("samples", 3 * 112, 3 * 112));
    let pixels = manyheads_data::decode_rgb(png, "samples").unwrap();
    assert_eq!((pixels.width, pixels.height), (336, 336));
    let bright = pixels.data.iter().filter(|value| **value > 40).count();
    assert!(bright > pixels.data.len() / 8, "there is something to see");

    let texts: Vec<_> = events::read(&run.join(EVENTS))
        .into_iter()
        .filter_map(|event| if let events::Value::Text(text) = event.value { Some((event.tag, text)) } else { None })
        .collect();
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    assert_eq!(texts, [("config".to_owned(), format!("```toml\n{config}```\n"))]);

    // A row an epoch; what was measured in it stands in the metrics' own digits.
    let rows = summary(&run);
    assert_eq!(rows.len(), 1 + 6);
    assert_eq!(rows[0].join(","), "step,epoch,train_loss,learning_rate,eval_loss,top1,top5,ema_loss,ema_top1,ema_top5");
    for (epoch, row) in rows[1..].iter().enumerate() {
        assert_eq!(row[..2], [(9 * (epoch + 1)).to_string(), epoch.to_string()]);
        assert_eq!(row[4..].iter().all(String::is_empty), epoch % 2 == 0, "{row:?}");
        let train: Vec<(f64, f64)> = metrics(&run)
            .iter()
            .filter(|line| line["kind"] == "train" && line["epoch"] == epoch)
            .map(|line| (line["loss"].as_f64().unwrap(), line["images"].as_f64().unwrap()))
            .collect();
        let images: f64 = train.iter().map(|(_, images)| images).sum();
        let mean = train.iter().map(|(loss, images)| loss * images).sum::<f64>() / images;
        assert_eq!(images, 130.0);
        assert!((row[2].parse::<f64>().unwrap() - mean).abs() < 1e-12);
    }
}

#[test]
fn killed_five_times_the_logs_are_the_unbroken_runs() {
    let place = Place::new();
    place.images(13, 4);
    place.config(&SCHEDULE.replace("epochs = 6", "epochs = 24"));
    let start = Instant::now();
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
    let whole = start.elapsed();
    // How far a run gets between two kills depends on what else the machine does; where five do not fit in, they come faster.
    let tried = [0.3, 0.12, 0.04].into_iter().any(|share| killed_five_times(&place, whole.mul_f64(share)));
    assert!(tried, "the run is too short for five kills");
    assert_same_end(&place.path("whole"), &place.path("broken"));
    assert_same_logs(&place.path("whole"), &place.path("broken"));
}

fn killed_five_times(place: &Place, longest: Duration) -> bool {
    let _ = fs::remove_dir_all(place.path("broken"));
    let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", "broken"];
    // Shares of `longest`, in no order.
    for share in [0.71, 0.33, 0.94, 0.52, 0.83] {
        let mut child = place.start(&args);
        std::thread::sleep(longest.mul_f64(share));
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if place.path("broken/config.toml").exists() {
            args = vec!["resume", "broken", "--device", "cpu"];
        } else {
            let _ = fs::remove_dir_all(place.path("broken"));
        }
    }
    place.run(&args).expect(0);
    true
}

#[test]
fn torn_changed_and_removed_logs_are_mended_at_resume() {
    let place = Place::new();
    whole(&place);
    let events = fs::read(place.path("whole").join(EVENTS)).unwrap();
    let table = fs::read(place.path("whole/summary.csv")).unwrap();
    let resume = |run: &str, damage: &dyn Fn(&Path)| {
        copy(&place.path("whole"), &place.path(run));
        damage(&place.path(run));
        let done = place.run(&["resume", run, "--device", "cpu"]).expect(0);
        assert_eq!(fs::read(place.path(run).join("summary.csv")).unwrap(), table);
        assert_eq!(told_by_events(&place.path(run)), told_by_metrics(&place.path("whole")), "{run}");
        let mut names: Vec<_> =
            fs::read_dir(place.path(run).join("tensorboard")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["events.out.tfevents.manyheads"], "nothing else is left");
        (done, fs::read(place.path(run).join(EVENTS)).unwrap())
    };
    // Half a record that the system was still to write, and events of steps that will be done again.
    let append = |run: &Path| {
        let extra = [&events[events.len() / 2..], &events[..20]].concat();
        fs::write(run.join(EVENTS), [&events[..], &extra].concat()).unwrap();
        fs::write(run.join("summary.csv"), [&table[..], b"55,7,0.1"].concat()).unwrap();
    };
    let (done, mended) = resume("appended", &append);
    assert!(mended == events && !done.stderr.contains("histograms"), "{}", done.stderr);
    // A page of zeros, as a machine that lost its power leaves it: the last histograms are gone, and that is said.
    let (done, mended) = resume("zeroed", &|run| {
        let mut bytes = events.clone();
        let from = bytes.len() - 5000;
        bytes[from..].fill(0);
        fs::write(run.join(EVENTS), bytes).unwrap();
        fs::remove_file(run.join("summary.csv")).unwrap();
    });
    assert!(mended.len() < events.len());
    done.says(&["histograms of 1 evaluations", EVENTS]);
    let (done, mended) = resume("removed", &|run| {
        fs::remove_dir_all(run.join("tensorboard")).unwrap();
        fs::write(run.join("summary.csv"), "step;epoch\n").unwrap();
    });
    done.says(&["histograms of 3 evaluations"]);
    assert!(mended.len() < events.len() / 2);
    let pictures =
        |bytes: &[u8]| events::parse(bytes).into_iter().filter(|event| matches!(event.value, events::Value::Image(..))).count();
    assert_eq!(pictures(&mended), 1, "the samples are made anew");

    // Something else stands where the folder belongs: named, and nothing is lost.
    copy(&place.path("whole"), &place.path("blocked"));
    fs::remove_dir_all(place.path("blocked/tensorboard")).unwrap();
    fs::write(place.path("blocked/tensorboard"), "mine").unwrap();
    place.run(&["resume", "blocked", "--device", "cpu"]).expect(1).says(&["cannot write", EVENTS]);
    assert_eq!(fs::read(place.path("blocked/tensorboard")).unwrap(), b"mine");
    assert_eq!(metrics(&place.path("blocked")), metrics(&place.path("whole")));
    place.run(&["resume", "blocked", "--device", "cpu"]).expect(1);
    let config = fs::read_to_string(place.path("blocked/config.toml")).unwrap();
    fs::write(place.path("blocked/config.toml"), config.replace("tensorboard = true", "tensorboard = false")).unwrap();
    place.run(&["resume", "blocked", "--device", "cpu"]).expect(0);
}

#[test]
fn logs_removed_during_the_run_are_put_back() {
    let place = Place::new();
    whole(&place);
    let child = place.start(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]);
    let start = Instant::now();
    while fs::read_to_string(place.path("run/metrics.jsonl")).map_or(0, |text| text.lines().count()) < 6 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::remove_dir_all(place.path("run/tensorboard")).unwrap();
    fs::remove_file(place.path("run/summary.csv")).unwrap();
    Done::from(child.wait_with_output().unwrap()).expect(0).says(&["put back", EVENTS, "run/summary.csv"]);
    assert_same_end(&place.path("whole"), &place.path("run"));
    assert_same_logs(&place.path("whole"), &place.path("run"));
}

#[test]
fn a_full_disk_names_the_event_file_and_the_resumed_run_has_all() {
    let place = Place::new();
    whole(&place);
    let size = fs::metadata(place.path("whole").join(EVENTS)).unwrap().len();
    let largest = ["model", "optimizer", "ema"]
        .map(|part| fs::metadata(place.path("whole/checkpoints/last").join(format!("{part}.safetensors"))).unwrap().len());
    let limit = size - 2000;
    assert!(largest.iter().all(|part| *part < limit), "the event file is the largest of the run");
    let limited = format!("--fsize={limit}");
    let program = support::PROGRAM;
    let mut command = std::process::Command::new("prlimit");
    command.args([&limited, program, "train", "tiny.toml", "--device", "cpu", "--out", "full"]).current_dir(place.path(""));
    Done::from(command.output().expect("prlimit (util-linux) runs")).expect(1).says(&["cannot write", EVENTS]);
    assert!(fs::metadata(place.path("full").join(EVENTS)).unwrap().len() <= limit);
    place.run(&["resume", "full", "--device", "cpu"]).expect(0);
    assert_same_end(&place.path("whole"), &place.path("full"));
    assert_same_logs(&place.path("whole"), &place.path("full"));
}

#[test]
fn the_environment_tells_what_the_run_was_computed_with() {
    let place = Place::new();
    whole(&place);
    place.run(&["resume", "whole", "--device", "cpu"]).expect(0);
    let read = || -> Value { serde_json::from_slice(&fs::read(place.path("whole/environment.json")).unwrap()).unwrap() };
    let environment = read();
    assert_eq!(environment["burn"], "0.22.1");
    let sessions = environment["sessions"].as_array().unwrap();
    assert_eq!(sessions.iter().map(|session| session["from_step"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 54]);
    let hash = std::process::Command::new("sha256sum").arg(place.path("whole/config.toml")).output().unwrap();
    for session in sessions {
        assert!(session["rustc"].as_str().unwrap().starts_with("rustc 1."), "{session}");
        assert_eq!(session["version"], env!("CARGO_PKG_VERSION"));
        assert!(String::from_utf8_lossy(&hash.stdout).starts_with(session["config_sha256"].as_str().unwrap()));
        assert!(session["device"].as_str().unwrap().starts_with("cpu"));
        assert!(session["cpus"].as_u64().unwrap() > 0 && session["memory_bytes"].as_u64().unwrap() > 1 << 28);
        assert!(session.get("git").is_none(), "it was started outside of any repository");
    }
    assert_eq!(sessions[1]["command"][1], "resume");
    let host = fs::read_to_string("/etc/hostname").unwrap_or_default();
    let host = host.trim();
    assert!(host.is_empty() || !environment.to_string().contains(host), "the machine's name stays out of it");
}

fn copy(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(status.success());
}
