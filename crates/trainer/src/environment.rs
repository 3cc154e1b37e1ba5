//! What a run is computed with and on: `environment.json`.
//!
//! It holds what numbers and speed depend on. Names of the machine and of people are left out, since runs are handed around; paths are in
//! the command line alone.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checkpoint::hex;
use crate::config::Config;
use crate::engine::device::OpenDevice;

/// What the run was computed with: `environment.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of the program that started the run.
    pub manyheads: String,
    /// Version of Burn.
    pub burn: String,
    /// Operating system.
    pub os: String,
    /// Processor architecture.
    pub arch: String,
    /// Every process that worked on the run, oldest first.
    pub sessions: Vec<Session>,
}

/// One process that worked on a run. What a system does not tell is left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Seconds since 1970 at its start.
    pub started: u64,
    /// Step it started from.
    pub from_step: u64,
    /// Device it computed on.
    pub device: String,
    /// What the device's kernels are compiled for, and its driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// CPU threads of the machine.
    pub cpus: usize,
    /// Model of the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Main memory of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The command line.
    pub command: Vec<String>,
    /// Version of the program.
    #[serde(default)]
    pub version: String,
    /// The compiler it was built with.
    #[serde(default)]
    pub rustc: String,
    /// SHA-256 of the resolved configuration.
    #[serde(default)]
    pub config_sha256: String,
    /// The git repository that the process was started in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<Git>,
}

/// State of a git repository.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Git {
    /// The commit that is checked out.
    pub commit: String,
    /// Whether files that git knows had been changed since.
    pub changed: bool,
}

impl Environment {
    /// That of a new run.
    pub(crate) fn new() -> Self {
        Self {
            manyheads: env!("CARGO_PKG_VERSION").into(),
            burn: crate::BURN_VERSION.into(),
            os: std::env::consts::OS.into(),
            arch: std::env::consts::ARCH.into(),
            sessions: Vec::new(),
        }
    }
}

impl Session {
    /// This process, which starts to work on a run.
    pub(crate) fn now(from_step: u64, device: &OpenDevice, config: &Config) -> Self {
        Self {
            started: crate::log::jsonl::unix_time() as u64,
            from_step,
            device: device.label.clone(),
            driver: driver(device),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: value_of(Path::new("/proc/cpuinfo"), "model name"),
            memory_bytes: value_of(Path::new("/proc/meminfo"), "MemTotal")
                .and_then(|size| size.strip_suffix("kB")?.trim().parse::<u64>().ok())
                .map(|kib| kib * 1024),
            command: std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect(),
            version: env!("CARGO_PKG_VERSION").into(),
            rustc: env!("MANYHEADS_RUSTC").into(),
            config_sha256: hex(&Sha256::digest(config.to_toml())),
            git: git(Path::new(".")),
        }
    }
}

/// What kernels are compiled for, and NVIDIA's driver where the device is one of its.
fn driver(device: &OpenDevice) -> Option<String> {
    let kernels = device.kernels.clone()?;
    let nvidia = device.label.contains("NVIDIA") || device.label.starts_with("cuda");
    let driver = nvidia.then(|| fs::read_to_string("/proc/driver/nvidia/version").ok()).flatten();
    let line = driver.as_ref().and_then(|text| text.lines().next()).and_then(|line| line.strip_prefix("NVRM version: "));
    Some(line.map_or(kernels.clone(), |line| format!("{kernels}; {}", line.split_whitespace().collect::<Vec<_>>().join(" "))))
}

/// The value of the first line `key: value` of a file of Linux's.
pub(crate) fn value_of(path: &Path, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut values = text.lines().filter_map(|line| line.split_once(':').filter(|(name, _)| name.trim() == key));
    values.next().map(|(_, value)| value.trim().into())
}

/// The state of the repository around `folder`; `None` outside of one, or without git.
fn git(folder: &Path) -> Option<Git> {
    let run = |arguments: &[&str]| -> Option<String> {
        let mut command = Command::new("git");
        command.arg("--no-optional-locks").arg("-C").arg(folder).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
        let output = command.output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()
    };
    let commit = run(&["rev-parse", "--verify", "HEAD"])?.trim().to_owned();
    Some(Git { commit, changed: !run(&["status", "--porcelain", "--untracked-files=no"])?.trim().is_empty() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_told_with_its_changes() {
        let dir = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| {
            let identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"];
            let status =
                Command::new("git").arg("-C").arg(dir.path()).args(identity).args(arguments).stdout(Stdio::null()).status();
            assert!(status.expect("git runs").success());
        };
        assert_eq!(git(dir.path()), None);
        run(&["init", "-q"]);
        assert_eq!(git(dir.path()), None, "there is no commit yet");
        fs::write(dir.path().join("a"), "1").unwrap();
        run(&["add", "a"]);
        run(&["commit", "-q", "-m", "one"]);
        let clean = git(dir.path()).unwrap();
        assert!(clean.commit.len() >= 40 && !clean.changed, "{clean:?}");
        fs::write(dir.path().join("b"), "untracked").unwrap();
        assert!(!git(dir.path()).unwrap().changed);
        fs::write(dir.path().join("a"), "2").unwrap();
        assert_eq!(git(dir.path()).unwrap(), Git { changed: true, ..clean });
    }

    #[test]
    fn an_older_file_is_still_read() {
        let old = r#"{"manyheads":"0.1.0","burn":"0.22.1","os":"linux","arch":"x86_64",
            "sessions":[{"started":1,"from_step":0,"device":"cpu","cpus":2,"command":["manyheads"]}]}"#;
        let environment: Environment = serde_json::from_str(old).unwrap();
        assert_eq!((environment.sessions[0].cpus, &environment.sessions[0].git), (2, &None));
    }
}
