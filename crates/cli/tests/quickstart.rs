//! The README's first command, as a newcomer runs it.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use support::{Place, metrics};

#[test]
fn the_quickstart_reaches_85_percent_in_three_minutes_and_eval_repeats_its_figure() {
    let place = Place::new();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/quickstart.toml");
    let start = Instant::now();
    let result = place.run(&["train", config.to_str().unwrap(), "--device", "cpu", "--json"]).expect(0).json();
    let elapsed = start.elapsed();
    let top1 = result["top1"].as_f64().unwrap();
    println!("top-1 {top1} % after {elapsed:?}");
    assert!(top1 >= 85.0, "top-1 {top1} %");
    assert!(elapsed <= Duration::from_secs(180), "it took {elapsed:?}");
    let eval = place.run(&["eval", "runs/quickstart", "--json"]).expect(0).json();
    for key in ["top1", "top5", "loss", "n"] {
        assert_eq!(eval[key], result[key], "{key}");
    }
    assert_eq!(eval["n"], 2000);
    let evaluations = metrics(&place.path("runs/quickstart")).into_iter().filter(|line| line["kind"] == "eval").count();
    assert!(evaluations > 1, "it is evaluated on the way");
}
