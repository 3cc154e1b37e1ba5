//! The kernels chosen for a GPU, kept from run to run.
//!
//! CubeCL times several kernels for each shape of a product or a sum and takes the fastest, which makes the first step of a run slow. It can
//! keep its choices in a database, by default in the `target` folder of whatever Cargo project lies above the working directory. Here they go
//! into the user's cache folder, into a file for each machine. They only ever save time: where that folder cannot be written, or what it holds
//! is damaged, kernels are chosen anew. Compiled kernels are not kept: CubeCL names them by the build of the program and never removes one, and
//! drivers keep their own.

use std::ffi::OsString;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cubecl::config::autotune::AutotuneLevel;
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::environment;
use cubecl::records::RecordLevel;

/// Free bytes without which nothing is kept; the database of a run takes about one hundredth.
const ROOM: u64 = 64 << 20;

/// Below a file there is no folder: where CubeCL cannot open a database it keeps everything in memory. To turn its caches off instead would
/// have it measure the same things again and again in one process.
const NOWHERE: &str = if cfg!(windows) { "NUL/manyheads" } else { "/dev/null/manyheads" };

/// How long a database without choices has to have been left alone before it counts as damaged: another run may just be making it.
const ALONE: Duration = Duration::from_secs(60);

/// Tells CubeCL where to keep its choices. To be called before a GPU is opened; later calls change nothing.
///
/// What CubeCL's own variables say wins, and so does another folder than `target` in a `cubecl.toml` or `burn.toml`.
pub(super) fn keep() {
    let mut config = CubeClRuntimeConfig::from_current_dir();
    let ours = matches!(config.environment.path, CacheConfig::Target);
    if ours {
        // The user's cache is no affair of this crate's tests.
        let folder = if cfg!(test) { None } else { folder(std::env::var_os("XDG_CACHE_HOME"), std::env::home_dir()) };
        let folder = folder.filter(|folder| has_room(folder)).unwrap_or_else(|| NOWHERE.into());
        config.environment.path = CacheConfig::Directory(folder);
        // Machines that share a home folder cannot share a database, which they map into memory; nor would one choose for the other.
        config.environment.name = machine();
    }
    if cfg!(test) {
        config.autotune.level = AutotuneLevel::Minimal;
    }
    // An account of how long each kernel took, which is written with every choice and read by nothing here.
    if config.environment.records.level == RecordLevel::Basic {
        config.environment.records.level = RecordLevel::Off;
    }
    if CubeClRuntimeConfig::try_set(config.override_from_env()) && ours {
        remove_damaged();
    }
}

/// Removes a database that cannot be read, so that choices are kept again from now on: CubeCL goes on without one that it cannot open.
fn remove_damaged() {
    let database = environment::path();
    let changed = std::fs::metadata(&database).and_then(|file| file.modified());
    let Ok(changed) = changed else { return };
    if SystemTime::now().duration_since(changed).is_ok_and(|since| since < ALONE) {
        return;
    }
    // What cannot be read is said to hold nothing.
    if catch_unwind(|| !environment::namespaces().is_empty()).unwrap_or(false) {
        return;
    }
    for end in ["", "-wal", "-tshm"] {
        let mut file = database.clone().into_os_string();
        file.push(end);
        // A file that stays is as bad as it was: nothing is kept.
        let _ = std::fs::remove_file(file);
    }
}

/// Whether the disk of a folder, there or not yet, has some space left. The database maps files into memory, and a page that a full disk cannot
/// hold ends the process.
fn has_room(folder: &Path) -> bool {
    #[cfg(unix)]
    if let Some(Ok(stat)) = folder.ancestors().find(|folder| folder.exists()).map(rustix::fs::statvfs) {
        return stat.f_bavail.saturating_mul(stat.f_frsize) >= ROOM;
    }
    let _ = folder;
    true
}

/// `manyheads` in the user's cache folder, after the XDG Base Directory Specification: a relative `$XDG_CACHE_HOME` does not count.
fn folder(cache_home: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let cache = cache_home.map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = cache.or_else(|| home.filter(|home| home.is_absolute()).map(|home| home.join(".cache")));
    Some(cache?.join("manyheads"))
}

/// The name of this machine where the system tells it, otherwise CubeCL's word for any.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => environment::DEFAULT.into(),
        name => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_lie_in_the_users_cache_folder() {
        let folder = |cache: Option<&str>, home: Option<&str>| folder(cache.map(OsString::from), home.map(PathBuf::from));
        let path = |path: &str| Some(PathBuf::from(path));
        assert_eq!(folder(Some("/cache"), Some("/home/me")), path("/cache/manyheads"));
        for nothing in [None, Some(""), Some("relative/cache")] {
            assert_eq!(folder(nothing, Some("/home/me")), path("/home/me/.cache/manyheads"), "{nothing:?}");
            assert_eq!(folder(nothing, None), None);
            assert_eq!(folder(nothing, Some("")), None);
        }
    }
}
