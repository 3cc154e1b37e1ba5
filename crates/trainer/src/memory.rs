//! Whether the memory can hold the run, asked before it starts rather than when the system ends it.

use std::fs;
use std::path::Path;

use manyheads_model::{Architecture, training_memory_bytes};

use crate::config::{Config, OptimizerKind};
use crate::environment::value_of;
use crate::error::{Error, Result};

/// Bytes that a run takes on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    /// What is there at every moment: weights, gradients, the optimizer's means, the average.
    least: u64,
    /// With activations, the batches that wait, and the copy that a checkpoint is written from.
    likely: u64,
}

impl Need {
    fn new(config: &Config, architecture: &Architecture) -> Self {
        let memory = training_memory_bytes(architecture, config.train.batch_size, config.training());
        let weights = memory.weights;
        let means = match config.optimizer.kind {
            OptimizerKind::Adamw | OptimizerKind::Lamb => 2,
            OptimizerKind::Sgd => u64::from(config.optimizer.momentum > 0.0),
        };
        let state = weights.saturating_mul(1 + means + u64::from(config.ema.enabled));
        let least = state.saturating_add(memory.gradients);
        let [height, width] = architecture.image;
        let image = (height * width * architecture.channels) as u64 * 4;
        let batches = image.saturating_mul(config.train.batch_size as u64).saturating_mul(config.data.prefetch as u64 + 2);
        let likely = [least, memory.activations, batches, state].into_iter().fold(0, u64::saturating_add);
        Self { least, likely }
    }
}

/// Compares what a run takes on the CPU with what the machine, or the limit of its control group, has; returns what people should know.
///
/// # Errors
/// Where even what is there at every moment is more than that.
pub fn check(config: &Config, architecture: &Architecture) -> Result<Option<String>> {
    let Some(limit) = limit() else { return Ok(None) };
    judge(Need::new(config, architecture), limit)
}

fn judge(Need { least, likely }: Need, limit: u64) -> Result<Option<String>> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    if least > limit {
        return Err(Error::Failed(format!(
            "the run needs {:.1} GiB of memory for weights, gradients and the optimizer's state alone, but there are {:.1} GiB. Take a \
             smaller model, another machine, or ema.enabled = false where an average is kept. To try all the same, set \
             run.check_resources = false",
            gib(least),
            gib(limit)
        )));
    }
    Ok((likely > limit / 10 * 9).then(|| {
        format!(
            "warning: the run takes about {:.1} GiB of memory, and there are {:.1} GiB. If it is ended for that, set \
             train.recompute = true, lower train.batch_size and raise train.accumulate by as much, or lower data.prefetch",
            gib(likely),
            gib(limit)
        )
    }))
}

/// Main memory that this process holds now, where the system tells.
pub(crate) fn resident_bytes() -> Option<u64> {
    of_process("VmRSS")
}

/// Most main memory that this process ever held, where the system tells.
pub(crate) fn peak_bytes() -> Option<u64> {
    of_process("VmHWM")
}

fn of_process(key: &str) -> Option<u64> {
    let size = value_of(Path::new("/proc/self/status"), key)?;
    size.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Has the system count the greatest memory of this process from now on, as proc(5) says of `clear_refs`. False where it does not.
pub(crate) fn forget_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Bytes of memory that this process may use, where the system tells.
fn limit() -> Option<u64> {
    let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let group = group_limit(Path::new("/sys/fs/cgroup"), &fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    total.into_iter().chain(group).min()
}

/// The machine's memory by `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least limit of a control group and of those around it, in bytes. `groups` is a `/proc/PID/cgroup`.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let (folder, file) = match controllers {
                "" => (root.to_owned(), "memory.max"),
                _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
                _ => return None,
            };
            let path = path.trim_start_matches('/');
            // In a container the path may be one of the machine outside: then only the root is there.
            Path::new(path).ancestors().filter_map(|ancestor| read(&folder.join(ancestor).join(file))).min()
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_on_the_way_to_the_root_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(group_limit(root.path(), "0::/a/b\n"), None);
        put("a/memory.max", "5000\n");
        put("a/b/memory.max", "max\n");
        assert_eq!(group_limit(root.path(), "0::/a/b\n"), Some(5000));
        put("a/b/memory.max", "400\n");
        assert_eq!(group_limit(root.path(), "0::/a/b\n"), Some(400));
        put("memory/x/memory.limit_in_bytes", "30\n");
        assert_eq!(group_limit(root.path(), "3:cpu,memory:/x\n2:cpu:/y\n0::/a\n"), Some(30));
        assert_eq!(group_limit(root.path(), "0::/elsewhere/outside\n"), None);
    }

    #[test]
    fn the_machines_memory_is_read_in_bytes() {
        assert_eq!(total("MemTotal:       24689764 kB\nMemFree: 1 kB\n"), Some(24_689_764 * 1024));
        assert_eq!(total("nothing"), None);
    }

    #[test]
    fn what_cannot_fit_is_refused_and_what_hardly_fits_is_told() {
        let gib = |count: u64| count << 30;
        let error = judge(Need { least: gib(9), likely: gib(20) }, gib(8)).unwrap_err().to_string();
        assert!(error.contains("9.0 GiB") && error.contains("8.0 GiB") && error.contains("check_resources"), "{error}");
        assert!(judge(Need { least: gib(1), likely: gib(8) }, gib(8)).unwrap().unwrap().contains("train.batch_size"));
        assert_eq!(judge(Need { least: gib(1), likely: gib(7) }, gib(8)).unwrap(), None);
    }
}
