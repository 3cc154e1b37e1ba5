//! From `--device` to a device that computes.

use burn::tensor::Device;

use super::quiet::quiet;
use crate::config::{Config, Precision};
use crate::error::{Error, Result};

/// A device as the command line and the configuration name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// The first of CUDA, a hardware GPU through wgpu, the CPU.
    Auto,
    /// Burn's CPU backend.
    Cpu,
    /// The N-th adapter of wgpu, hardware before software.
    Wgpu(usize),
    /// The N-th CUDA device.
    Cuda(usize),
}

/// A device and what to call it.
#[derive(Debug, Clone)]
pub struct OpenDevice {
    /// The device, without autodiff.
    pub device: Device,
    /// Kind and model, as `wgpu:0 (llvmpipe)`.
    pub label: String,
    /// What its kernels are compiled for, where the backend tells.
    pub kernels: Option<String>,
    /// What people should know of it before they wait for it.
    pub notice: Option<String>,
    /// Results are there as soon as an operation returns, so reading a loss costs nothing.
    pub eager: bool,
}

impl DeviceName {
    /// Reads `auto`, `cpu`, `wgpu`, `wgpu:N`, `cuda` or `cuda:N`.
    ///
    /// # Errors
    /// A text that says what is allowed.
    pub fn parse(name: &str) -> std::result::Result<Self, String> {
        let (kind, index) = match name.split_once(':') {
            Some((kind, index)) => (kind, index.parse::<usize>().ok()),
            None => (name, Some(0)),
        };
        match (kind, index, name.contains(':')) {
            ("auto", _, false) => Ok(Self::Auto),
            ("cpu", _, false) => Ok(Self::Cpu),
            ("wgpu", Some(index), _) => Ok(Self::Wgpu(index)),
            ("cuda", Some(index), _) => Ok(Self::Cuda(index)),
            _ => Err(format!("unknown device `{name}`: it is one of auto, cpu, wgpu, wgpu:N, cuda, cuda:N")),
        }
    }

    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::Failed`] where the program was built without that kind or the machine has none; it lists what there is.
    pub fn open(self) -> Result<OpenDevice> {
        if self == Self::Cpu {
            return cpu();
        }
        quiet(|| {
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            super::choices::keep();
            match self {
                Self::Auto => auto(),
                Self::Cpu => cpu(),
                Self::Wgpu(index) => wgpu(index),
                Self::Cuda(index) => cuda(index),
            }
        })
    }
}

impl OpenDevice {
    /// Refuses a training in a precision that the device does not compute in.
    ///
    /// # Errors
    /// As [`Self::computes`], for training and its evaluations.
    pub fn trains(&self, config: &Config) -> Result<()> {
        self.computes(config.train.precision, "train.precision")?;
        self.computes(config.eval.precision, "eval.precision")
    }

    /// Refuses a precision that the device does not compute in; `key` is where the configuration asks for it.
    ///
    /// # Errors
    /// [`Error::Failed`] naming device and key, with what to do.
    pub fn computes(&self, precision: Precision, key: &str) -> Result<()> {
        if self.device.supports_dtype(precision.float()) {
            return Ok(());
        }
        let name = precision.name();
        Err(Error::Failed(format!(
            "device {} does not compute in {name}, which {key} asks for: set {key} = \"f32\", or take another device (the CPU has it, and so \
             have NVIDIA's GPUs from Ampere on with --device cuda)",
            self.label
        )))
    }
}

/// What went wrong on a device, and where its memory has run out, which settings take less of it. `reason` is the backend's.
pub fn failed(when: &str, reason: &str) -> String {
    format!("the device failed {when}: {}{}", reason.trim_end_matches('.'), advice(reason))
}

/// What to do about a backend's error; nothing where its text does not speak of memory.
pub fn advice(reason: &str) -> &'static str {
    let reason = reason.to_lowercase();
    let signs = ["out of memory", "out_of_memory", "outofmemory", "not enough memory", "allocation failed", "failed to allocate"];
    match signs.iter().any(|sign| reason.contains(sign)) {
        true => {
            ". Its memory is full: lower train.batch_size and raise train.accumulate by as much, or set train.recompute = true, which both \
             make the same steps; lower eval.batch_size where it happened in an evaluation; ema.enabled = false saves a copy of the weights"
        }
        false => "",
    }
}

/// Opens the device of a run: `wanted`, as the command line names it, or the configuration's.
///
/// # Errors
/// As [`DeviceName::open`].
pub fn open(config: &Config, wanted: Option<DeviceName>) -> Result<OpenDevice> {
    wanted.map_or_else(|| DeviceName::parse(&config.run.device).map_err(Error::Usage), Ok)?.open()
}

fn auto() -> Result<OpenDevice> {
    #[cfg(feature = "cuda")]
    if !cuda_devices().is_empty() {
        return cuda(0);
    }
    #[cfg(feature = "wgpu")]
    if wgpu_devices().first().is_some_and(|device| !is_software(device)) {
        return wgpu(0);
    }
    cpu()
}

#[cfg(feature = "flex")]
fn cpu() -> Result<OpenDevice> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let label = format!("cpu ({threads} threads)");
    Ok(OpenDevice { device: Device::flex(), label, kernels: None, notice: None, eager: true })
}

#[cfg(not(feature = "flex"))]
fn cpu() -> Result<OpenDevice> {
    Err(not_built("cpu", "flex"))
}

#[cfg(any(not(feature = "flex"), not(feature = "wgpu"), not(feature = "cuda")))]
fn not_built(name: &str, feature: &str) -> Error {
    Error::Failed(format!("device {name}: this program was built without it; build with `--features {feature}`"))
}

/// Adapters that wgpu finds, hardware before software.
#[cfg(feature = "wgpu")]
fn wgpu_devices() -> Vec<Device> {
    let mut devices: Vec<Device> = Device::enumerate(burn::tensor::DeviceType::Wgpu).into_vec();
    devices.sort_by_key(is_software);
    devices
}

/// Whether an adapter is a software rasteriser. Burn tells it only through the kind in the device's debug text.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn is_software(device: &Device) -> bool {
    format!("{device:?}").contains("Cpu")
}

#[cfg(feature = "wgpu")]
fn wgpu(index: usize) -> Result<OpenDevice> {
    pick(
        "wgpu",
        index,
        wgpu_devices(),
        "a driver for Vulkan (on Debian: mesa-vulkan-drivers), Metal or DirectX 12 must be installed",
    )
}

#[cfg(not(feature = "wgpu"))]
fn wgpu(_: usize) -> Result<OpenDevice> {
    Err(not_built("wgpu", "wgpu"))
}

#[cfg(feature = "cuda")]
fn cuda_devices() -> Vec<Device> {
    // Without NVIDIA's driver the enumeration panics in the loader of libcuda.
    std::panic::catch_unwind(|| Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec()).unwrap_or_default()
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<OpenDevice> {
    pick("cuda", index, cuda_devices(), "NVIDIA's driver must be installed")
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: usize) -> Result<OpenDevice> {
    Err(not_built("cuda", "cuda"))
}

/// The `index`-th of the devices found, or an error that lists them.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn pick(kind: &str, index: usize, devices: Vec<Device>, missing: &str) -> Result<OpenDevice> {
    let found = devices.len();
    let Some(device) = devices.into_iter().nth(index) else {
        return Err(Error::Failed(match found {
            0 => format!("device {kind}: none found; {missing}"),
            _ => format!("device {kind}:{index}: there is no such device; found {found}, numbered from 0"),
        }));
    };
    #[cfg(feature = "vulkan")]
    if is_software(&device) {
        // CubeCL's SPIR-V for shared memory is valid only with VK_KHR_workgroup_memory_explicit_layout: without it Mesa's compiler crashes.
        return Err(Error::Failed(format!(
            "device {kind}:{index} is a software renderer, which cannot compile the SPIR-V of a program built with `--features vulkan`: build \
             without that feature, or take --device cpu, which is faster"
        )));
    }
    let identity = device.identity();
    let name = identity.as_ref().map_or(String::new(), |identity| format!(" ({})", identity.name));
    let kernels = identity.map(|identity| identity.fingerprint);
    let notice = is_software(&device).then(|| {
        format!("{kind}:{index} is a software renderer: it computes on the CPU, many times slower than --device cpu, and is of use for tests only")
    });
    Ok(OpenDevice { label: format!("{kind}:{index}{name}"), device, kernels, notice, eager: false })
}

#[cfg(test)]
mod tests {
    use super::DeviceName::{self, *};

    #[test]
    fn a_full_memory_is_answered_with_what_takes_less() {
        let text = super::failed("during training", "Out of memory: cannot reserve 1073741824 bytes.");
        assert!(text.contains("1073741824 bytes. Its memory is full: lower train.batch_size"), "{text}");
        assert_eq!(super::failed("during training", "it is gone."), "the device failed during training: it is gone");
    }

    #[test]
    fn names_are_read_strictly() {
        for (name, device) in
            [("auto", Auto), ("cpu", Cpu), ("wgpu", Wgpu(0)), ("wgpu:2", Wgpu(2)), ("cuda", Cuda(0)), ("cuda:1", Cuda(1))]
        {
            assert_eq!(DeviceName::parse(name), Ok(device));
        }
        for wrong in ["", "gpu", "cpu:0", "auto:1", "wgpu:", "wgpu:x", "cuda:-1", "CPU"] {
            assert!(DeviceName::parse(wrong).unwrap_err().contains("wgpu:N"), "{wrong}");
        }
    }
}
