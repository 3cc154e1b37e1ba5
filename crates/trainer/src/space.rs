//! Whether the disk can hold the run's checkpoints, asked before hours of training rather than after.

use std::path::Path;

use manyheads_model::{Architecture, cost};

use crate::config::Config;
use crate::error::{Error, Result};

/// Bytes of a checkpoint: weights, their average where one is kept, and two moments, in f32.
pub fn checkpoint_bytes(config: &Config, architecture: &Architecture) -> u64 {
    cost(architecture).parameters() * if config.ema.enabled { 16 } else { 12 }
}

/// Compares the free space below `run_dir` with what the kept checkpoints and the one being written take.
///
/// # Errors
/// Where it is too little, with both numbers.
pub fn check(run_dir: &Path, config: &Config, architecture: &Architecture) -> Result<()> {
    let each = checkpoint_bytes(config, architecture);
    // The newest ones, the best one, and the one that is written before an older one goes.
    let lasting = config.train.epochs.checked_div(config.checkpoint.keep_every_epochs).unwrap_or(0);
    let count = config.checkpoint.keep as u64 + u64::from(config.checkpoint.keep_best) + lasting + 1;
    let needed = each.saturating_mul(count);
    #[cfg(unix)]
    if let Ok(stat) = rustix::fs::statvfs(run_dir) {
        let free = stat.f_bavail * stat.f_frsize;
        if free < needed {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            return Err(Error::Failed(format!(
                "{} has {} MiB free, but {count} checkpoints of {} MiB take {} MiB. Free some space, choose another --out, or lower checkpoint.keep{}",
                run_dir.display(),
                mib(free),
                mib(each),
                mib(needed),
                if lasting > 0 { " or raise checkpoint.keep_every_epochs" } else { "" }
            )));
        }
    }
    let _ = (run_dir, needed);
    Ok(())
}
