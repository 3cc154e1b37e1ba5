//! The check of a GPU, with helpers that misbehave as devices and libraries do.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::time::Instant;

use manyheads_trainer::gpu_check::{Listener, Options, run};
use serde_json::{Value, json};

#[derive(Default)]
struct Heard {
    progress: Vec<String>,
    parts: Vec<String>,
}

impl Listener for Heard {
    fn progress(&mut self, line: &str) {
        self.progress.push(line.into());
    }
    fn part(&mut self, markdown: &str) {
        self.parts.push(markdown.into());
    }
}

/// A helper that answers by the first `case` of a shell script that its question fits.
fn helper(folder: &Path, name: &str, cases: &str) -> Vec<String> {
    let path = folder.join(name);
    fs::write(&path, format!("while read -r line; do case \"$line\" in {cases} esac; done")).expect("a script can be written");
    vec!["sh".into(), path.to_str().expect("UTF-8").into()]
}

/// A device that computes in bf16 and multiplies f32 exactly.
fn described() -> String {
    let peak = json!({"flops_per_second": 2e12, "source": "measured", "what": "a product"});
    let device = json!({"name": "cuda:0 (fake)", "f32_products": "f32", "bf16": true, "fused": false, "peak_f32": peak, "peak_bf16": peak});
    json!({ "ok": device }).to_string()
}

fn agrees(gradient: f64) -> String {
    json!({"ok": {"logits": 1e-7, "gradient": gradient, "parameter": "head.weight", "loss": 1e-7}}).to_string()
}

fn fast(images: f64) -> String {
    json!({"ok": {"images_per_second": images, "flops_per_second": 1e12, "device_memory_bytes": 1000, "process_memory_bytes": null}})
        .to_string()
}

#[test]
fn what_does_not_agree_is_told_and_what_fails_is_a_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = format!(
        r#"
*describe*) echo '{}';;
*agree*linear*bf16*) echo 'worker: kernel panic' >&2; exit 3;;
*agree*hydra*f32*) echo '{}';;
*agree*) echo '{}';;
*measure*softmax*train*'"batch":4'*) echo '{{"error": "Out of memory: cannot reserve 7 bytes"}}';;
*measure*linear*) echo '{{"error": "Out of memory: cannot reserve 7 bytes"}}';;
*measure*) echo '{}';;"#,
        described(),
        agrees(0.5),
        agrees(1e-5),
        fast(100.0)
    );
    let peer_cases = format!(
        r#"
*describe*) echo '{}';;
*'"compile":true'*) echo '{{"error": "TorchDynamo failed"}}';;
*) echo '{}';;"#,
        json!({"ok": {"torch": "9.9", "timm": "8.8", "device": "fake"}}),
        json!({"ok": {"images_per_second": 50.0, "device_memory_bytes": 2000, "process_memory_bytes": 3000}})
    );
    let options = Options {
        worker: helper(folder.path(), "worker.sh", &cases),
        peer: helper(folder.path(), "peer.sh", &peer_cases),
        tiny: true,
        seconds: 60.0,
    };
    let mut heard = Heard::default();
    let report = run(&options, &mut heard).expect("the device is described");

    assert!(!report.agreed);
    let passed: Vec<bool> = report.agreement.iter().map(|one| one.passed).collect();
    // softmax, linear, Hydra, each in f32 and bf16: a crash, and a gradient beyond f32's tolerance.
    assert_eq!(passed, [true, true, true, false, false, true]);
    assert_eq!(heard.parts.len(), 3, "device, agreement, speed");
    assert!(heard.parts[1].contains("**2 of 6 comparisons do not agree.**"), "{}", heard.parts[1]);
    assert!(heard.parts[1].contains("worker: kernel panic"), "{}", heard.parts[1]);

    let report: Value = serde_json::to_value(&report).expect("JSON");
    let speed = report["speed"].as_array().expect("a list");
    assert_eq!(speed.len(), 6);
    // The batch is halved until it fits, twice at most.
    assert_eq!((&speed[0]["out_of_memory_at"], &speed[0]["batch"]), (&json!([4]), &json!(2)));
    assert_eq!((&speed[0]["manyheads"]["ok"]["images_per_second"], &speed[0]["mfu"]), (&json!(100.0), &json!(0.5)));
    assert_eq!((&speed[1]["out_of_memory_at"], &speed[1]["batch"]), (&json!([4, 2]), &json!(1)));
    assert!(speed[1]["manyheads"]["error"].as_str().is_some_and(|text| text.contains("Out of memory")), "{}", speed[1]);
    for one in speed {
        assert_eq!(one["eager"]["ok"]["images_per_second"], 50.0);
        assert_eq!(one["compiled"]["error"], "TorchDynamo failed");
    }
    assert_eq!(report["peer"]["ok"]["torch"], "9.9");
    assert!(heard.parts[2].contains("| out of memory |") && heard.parts[2].contains("**2.00**"), "{}", heard.parts[2]);
}

#[test]
fn a_device_that_hangs_does_not_keep_the_check() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = format!("*describe*) echo '{}';; *) exec sleep 60;;", described());
    let options = Options { worker: helper(folder.path(), "worker.sh", &cases), peer: vec![], tiny: true, seconds: 10.0 };
    let begin = Instant::now();
    let report = run(&options, &mut Heard::default()).expect("the device is described");
    assert!(begin.elapsed().as_secs_f64() < 10.0, "{:?}", begin.elapsed());
    assert!(!report.agreed && report.agreement.iter().all(|one| !one.passed));
    let text = serde_json::to_string(&report).expect("JSON");
    assert!(text.contains("no answer within") && text.contains("not begun: the time was over"), "{text}");
}

#[test]
fn without_a_device_nothing_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = helper(folder.path(), "worker.sh", r#"*) echo '{"error": "device cuda: none found"}';;"#);
    let error = run(&Options { worker, peer: vec![], tiny: true, seconds: 30.0 }, &mut Heard::default()).expect_err("no device");
    assert!(error.to_string().contains("device cuda: none found"), "{error}");
}
