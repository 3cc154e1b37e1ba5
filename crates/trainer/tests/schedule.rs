//! The learning rate of all of DeiT's 300 epochs against timm's scheduler: `scripts/reference/schedule_fixtures.py`.

use manyheads_trainer::config::{Config, Interval};
use manyheads_trainer::recipe::schedule::Schedule;
use serde_json::Value;

const STEPS_PER_EPOCH: u64 = 1251;

fn golden(list: &str) -> Vec<f64> {
    let golden: Value = serde_json::from_str(include_str!("fixtures/schedule.json")).unwrap();
    golden[list].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap()).collect()
}

fn assert_near(place: u64, got: f64, expected: f64) {
    assert!((got / expected - 1.0).abs() < 1e-12, "at {place}: {got} is not {expected}");
}

#[test]
fn every_epoch_has_the_rate_of_deits_script() {
    let schedule = Schedule::new(&Config::default(), STEPS_PER_EPOCH);
    let rates = golden("late");
    assert_eq!(rates.len(), 300);
    for (epoch, rate) in (0..).zip(&rates) {
        for step in [0, 1, 625, STEPS_PER_EPOCH - 1] {
            assert_near(epoch, schedule.learning_rate(epoch * STEPS_PER_EPOCH + step), *rate);
        }
    }
    // What DeiT-B's published log says, in its own digits.
    for (epoch, rate) in [
        (0, "1.000e-6"),
        (1, "1.000e-6"),
        (2, "2.008e-4"),
        (3, "4.006e-4"),
        (4, "6.004e-4"),
        (5, "8.002e-4"),
        (6, "9.993e-4"),
        (150, "5.102e-4"),
        (299, "1.011e-5"),
    ] {
        assert_eq!(format!("{:.3e}", schedule.learning_rate(epoch * STEPS_PER_EPOCH)), rate, "epoch {epoch}");
    }
}

#[test]
fn without_lateness_every_epoch_has_the_rate_of_its_number() {
    let mut config = Config::default();
    config.schedule.epoch_late = Some(false);
    let schedule = Schedule::new(&config, STEPS_PER_EPOCH);
    let (own, late) = (golden("own"), golden("late"));
    for (epoch, rate) in (0..).zip(&own) {
        assert_near(epoch, schedule.learning_rate(epoch * STEPS_PER_EPOCH), *rate);
    }
    assert_eq!(own[..299], late[1..], "one epoch apart");
}

#[test]
fn by_step_every_step_has_the_rate_of_timms_update() {
    let mut config = Config::default();
    config.schedule.interval = Interval::Step;
    let schedule = Schedule::new(&config, STEPS_PER_EPOCH);
    let rates = golden("by_step");
    assert_eq!(rates.len(), 376);
    for (thousand, rate) in (0..).zip(&rates) {
        assert_near(1000 * thousand, schedule.learning_rate(1000 * thousand), *rate);
    }
}
