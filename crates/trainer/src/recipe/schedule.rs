//! The learning rate as a pure function of the step (law 2).
//!
//! DeiT's cosine: timm's `CosineLRScheduler` with `t_initial` = epochs, `warmup_prefix` off, stepped as DeiT's `main.py` does.

use std::f64::consts::PI;

use crate::config::{Config, Interval, ScheduleKind};

/// Learning rate over a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    kind: ScheduleKind,
    interval: Interval,
    late: bool,
    peak: f64,
    warmup_rate: f64,
    min: f64,
    /// Length of warm-up and run in epochs.
    warmup: f64,
    epochs: f64,
    steps_per_epoch: u64,
}

impl Schedule {
    /// The schedule of a run whose epochs have `steps_per_epoch` steps.
    pub fn new(config: &Config, steps_per_epoch: u64) -> Self {
        Self {
            kind: config.schedule.kind,
            interval: config.schedule.interval,
            late: config.schedule.epoch_late.unwrap_or(true),
            peak: config.peak_learning_rate(),
            warmup_rate: config.schedule.warmup_learning_rate,
            min: config.schedule.min_learning_rate,
            warmup: config.schedule.warmup_epochs,
            epochs: config.train.epochs as f64,
            steps_per_epoch,
        }
    }

    /// Learning rate of step `step`, counted from 0 over the whole run.
    ///
    /// By epoch, the rate of epoch `e` is the curve at `e`, or one epoch late at `e − 1` (and at 0 in epoch 0), since DeiT's script
    /// steps its scheduler after the epoch with that epoch's number. By step, it is the curve at the step's place in epochs.
    pub fn learning_rate(&self, step: u64) -> f64 {
        let at = match self.interval {
            Interval::Epoch => (step / self.steps_per_epoch).saturating_sub(u64::from(self.late)) as f64,
            Interval::Step => step as f64 / self.steps_per_epoch as f64,
        };
        self.curve(at)
    }

    /// The curve at `t` epochs. The cosine starts at 0, not at the end of the warm-up: `warmup_prefix` is off in DeiT.
    fn curve(&self, t: f64) -> f64 {
        if t < self.warmup {
            return self.warmup_rate + t * (self.peak - self.warmup_rate) / self.warmup;
        }
        let done = t.min(self.epochs) / self.epochs;
        match self.kind {
            ScheduleKind::Cosine => self.min + 0.5 * (self.peak - self.min) * (1.0 + (PI * done).cos()),
            ScheduleKind::Linear => self.peak + (self.min - self.peak) * done,
            ScheduleKind::Constant => self.peak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deit() -> Schedule {
        Schedule::new(&Config::default(), 1251)
    }

    /// The rates of DeiT-B's published training log, epoch by epoch.
    #[test]
    fn deit_base_has_the_rates_of_its_training_log() {
        let schedule = deit();
        let expected = [
            (0, 1e-6),
            (1, 1e-6),
            (2, 2.008e-4),
            (3, 4.006e-4),
            (4, 6.004e-4),
            (5, 8.002e-4),
            (6, 9.9932e-4),
            (150, 5.10e-4),
            (299, 1.0109e-5),
        ];
        for (epoch, rate) in expected {
            for step in [epoch * 1251, epoch * 1251 + 1250] {
                let got = schedule.learning_rate(step);
                assert!((got / rate - 1.0).abs() < 5e-4, "epoch {epoch}: {got} is not {rate}");
            }
        }
    }

    #[test]
    fn by_step_the_rate_rises_and_falls_smoothly_between_its_ends() {
        let mut config = Config::default();
        config.schedule.interval = Interval::Step;
        let schedule = Schedule::new(&config, 100);
        let rates: Vec<f64> = (0..=30_000).map(|step| schedule.learning_rate(step)).collect();
        assert_eq!(rates[0], 1e-6);
        assert!(rates[..500].windows(2).all(|w| w[0] < w[1]));
        assert!(rates[500..].windows(2).all(|w| w[0] >= w[1]));
        assert!((rates[30_000] - 1e-5).abs() < 1e-12);
        assert_eq!(schedule.learning_rate(40_000), rates[30_000], "it never rises again after its end");
    }

    #[test]
    fn without_lateness_an_epoch_has_its_own_rate() {
        let mut config = Config::default();
        config.schedule.epoch_late = Some(false);
        let schedule = Schedule::new(&config, 10);
        for epoch in 0..299 {
            assert_eq!(
                schedule.learning_rate(epoch * 10 + 9),
                Schedule::new(&Config::default(), 10).learning_rate(epoch * 10 + 10)
            );
        }
    }

    #[test]
    fn constant_and_linear_hold_their_ends() {
        let mut config = Config::default();
        config.schedule.interval = Interval::Step;
        config.schedule.kind = ScheduleKind::Constant;
        let constant = Schedule::new(&config, 10);
        assert_eq!((constant.learning_rate(0), constant.learning_rate(50), constant.learning_rate(2999)), (1e-6, 1e-3, 1e-3));
        config.schedule.kind = ScheduleKind::Linear;
        let linear = Schedule::new(&config, 10);
        assert!((linear.learning_rate(1500) - (1e-3 + 1e-5) / 2.0).abs() < 1e-12);
        assert!((linear.learning_rate(3000) - 1e-5).abs() < 1e-12);
    }

    #[test]
    fn the_rate_is_scaled_by_the_effective_batch_only() {
        let mut config = Config::default();
        for (batch, accumulate, reference, expected) in
            [(128, 8, 512, 1e-3), (64, 1, 512, 6.25e-5), (64, 16, 512, 1e-3), (1, 1, 0, 5e-4), (256, 2, 256, 1e-3)]
        {
            config.train.batch_size = batch;
            config.train.accumulate = accumulate;
            config.optimizer.reference_batch = reference;
            assert!((config.peak_learning_rate() - expected).abs() < 1e-12, "{}", config.learning_rate_formula());
        }
    }
}
