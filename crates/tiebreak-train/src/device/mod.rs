//! Devices by name, chosen at run time.

mod failure;
mod fits;
#[cfg(feature = "wgpu-unfused")]
mod gpu;

use std::str::FromStr;
use std::sync::OnceLock;

use burn::tensor::Device;
use serde::Serialize;
use tiebreak_data::Error;
use tiebreak_kernels::{Bf16Kernel, Precision};

use crate::config;

pub use failure::caught;
pub use fits::fits;

/// What `device = "..."` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A real GPU if the build has one and it answers, else flex.
    Auto,
    /// One of a kind.
    Named(DeviceKind, Which),
}

/// Which device of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The only one, or of GPUs the first discrete one, else the first.
    Best,
    /// The GPU of this number in `tiebreak devices`.
    Nth(usize),
    /// The software adapter, which computes on the CPU.
    Software,
}

/// A backend of this program; identities name devices by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Burn's CPU backend in pure Rust: the default and the reference.
    Flex,
    /// Burn's older CPU backend: deprecated upstream, several times slower than flex.
    NdArray,
    /// A GPU by whichever of Vulkan, Metal and DirectX 12 is there.
    Wgpu,
    /// A GPU by Vulkan, with SPIR-V.
    Vulkan,
    /// A GPU by Metal, with its own shading language.
    Metal,
    /// An NVIDIA GPU by CUDA.
    Cuda,
}

impl DeviceKind {
    /// Every kind this program knows.
    pub const ALL: [DeviceKind; 6] = [
        DeviceKind::Flex,
        DeviceKind::NdArray,
        DeviceKind::Wgpu,
        DeviceKind::Vulkan,
        DeviceKind::Metal,
        DeviceKind::Cuda,
    ];

    /// Its name in `device = "..."`.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Flex => "flex",
            DeviceKind::NdArray => "ndarray",
            DeviceKind::Wgpu => "wgpu",
            DeviceKind::Vulkan => "vulkan",
            DeviceKind::Metal => "metal",
            DeviceKind::Cuda => "cuda",
        }
    }

    /// Whether this build has it.
    pub fn compiled_in(self) -> bool {
        match self {
            DeviceKind::Flex => true,
            DeviceKind::NdArray => cfg!(feature = "ndarray"),
            DeviceKind::Wgpu => cfg!(feature = "wgpu-unfused"),
            DeviceKind::Vulkan => cfg!(feature = "vulkan"),
            DeviceKind::Metal => cfg!(feature = "metal"),
            DeviceKind::Cuda => cfg!(feature = "cuda"),
        }
    }

    /// Whether `auto` can stand for it.
    pub fn may_be_auto(self) -> bool {
        matches!(self, DeviceKind::Flex | DeviceKind::Wgpu | DeviceKind::Cuda)
    }

    /// Whether it is no CPU backend.
    pub fn is_gpu(self) -> bool {
        !matches!(self, DeviceKind::Flex | DeviceKind::NdArray)
    }
}

impl FromStr for DeviceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // With a number too, as a device is named.
        match text.parse() {
            Ok(DeviceSpec::Named(kind, _)) => Ok(kind),
            _ => {
                let names = DeviceKind::ALL.map(DeviceKind::name).join(", ");
                Err(Error::Input(format!("device {text:?}: unknown; there are {names}")))
            }
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "auto" {
            return Ok(DeviceSpec::Auto);
        }
        let unknown = || {
            Error::Input(format!(
                "device = {text:?}: unknown; expected auto, flex, ndarray, or wgpu, vulkan, metal or cuda, alone or with the \
                 number of a GPU (wgpu:1) or for the software adapter (wgpu:cpu)"
            ))
        };
        let (name, which) = match text.split_once(':') {
            None => (text, Which::Best),
            Some((name, "cpu")) => (name, Which::Software),
            // Digits alone: "+1" is a number as well.
            Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                (name, Which::Nth(number.parse().map_err(|_| unknown())?))
            }
            Some(_) => return Err(unknown()),
        };
        let kind = DeviceKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(unknown)?;
        let numbered = kind.is_gpu() && (kind != DeviceKind::Cuda || which != Which::Software);
        if numbered || which == Which::Best { Ok(DeviceSpec::Named(kind, which)) } else { Err(unknown()) }
    }
}

fn compiled_in() -> String {
    let names = DeviceKind::ALL.into_iter().filter(|kind| kind.compiled_in()).map(DeviceKind::name);
    names.collect::<Vec<_>>().join(", ")
}

impl DeviceSpec {
    /// What `auto` stands for here; refused if the build lacks it.
    fn resolved(self) -> Result<(DeviceKind, Which), Error> {
        match self {
            DeviceSpec::Auto => Ok(auto()),
            DeviceSpec::Named(kind, which) if kind.compiled_in() => Ok((kind, which)),
            DeviceSpec::Named(kind, which) => Err(missing(kind, which)),
        }
    }

    /// The kind to use, refused if the build lacks it.
    pub fn kind(self) -> Result<DeviceKind, Error> {
        Ok(self.resolved()?.0)
    }

    /// What `device = "..."` says for the same device, never `auto`; refused if the build lacks it.
    pub fn name(self) -> Result<String, Error> {
        self.resolved().map(|(kind, which)| name(kind, which))
    }

    /// The device, refused if the build or the machine lacks it.
    pub fn present(self) -> Result<Present, Error> {
        let (kind, which) = self.resolved()?;
        match kind {
            #[cfg(feature = "wgpu-unfused")]
            DeviceKind::Wgpu | DeviceKind::Vulkan | DeviceKind::Metal => gpu::present(kind, which),
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda => {
                cuda(which).map(|index| Present { name: format!("cuda (CUDA device {index})"), largest: u64::MAX })
            }
            _ => Ok(Present { name: name(kind, which), largest: u64::MAX }),
        }
    }
}

/// A device that is there; whether it comes up is known when it is opened.
#[derive(Clone, Debug)]
pub struct Present {
    /// For messages.
    pub name: String,
    /// Bytes of the largest tensor it binds.
    pub largest: u64,
}

/// Asked once: whether a GPU answers is known only when it has been brought up.
fn auto() -> (DeviceKind, Which) {
    static FOUND: OnceLock<(DeviceKind, Which)> = OnceLock::new();
    *FOUND.get_or_init(|| {
        #[cfg(feature = "wgpu-unfused")]
        if let Some(n) = gpu::first() {
            return (DeviceKind::Wgpu, Which::Nth(n));
        }
        #[cfg(feature = "cuda")]
        if cuda(Which::Best).is_ok() {
            return (DeviceKind::Cuda, Which::Best);
        }
        (DeviceKind::Flex, Which::Best)
    })
}

/// How many CUDA devices answer; asking panics where there is no driver.
#[cfg(feature = "cuda")]
fn cuda_devices() -> usize {
    use burn::tensor::DeviceType;
    static FOUND: OnceLock<usize> = OnceLock::new();
    *FOUND.get_or_init(|| failure::quietly(|| Device::enumerate(DeviceType::Cuda).into_vec().len()).unwrap_or(0))
}

/// The index of a CUDA device that is there.
#[cfg(feature = "cuda")]
fn cuda(which: Which) -> Result<usize, Error> {
    let (index, there) = (if let Which::Nth(n) = which { n } else { 0 }, cuda_devices());
    match index < there {
        true => Ok(index),
        false => Err(Error::Input(format!(
            "CUDA device {index} does not answer: there are {there} (without any, is NVIDIA's driver installed?). Use one that is there, or \
             device = \"flex\""
        ))),
    }
}

/// What `train.precision` means here, refused where a device or this processor lacks it or would be slower with it.
pub fn precision(wanted: config::Precision, kind: DeviceKind) -> Result<Precision, Error> {
    let refused =
        |why: &str| Err(Error::Input(format!("train.precision = \"bf16\": {why}; use train.precision = \"f32\"")));
    match (wanted, kind) {
        (config::Precision::F32, _) => Ok(Precision::F32),
        (config::Precision::Bf16, DeviceKind::Flex) => match Bf16Kernel::fastest() {
            Some(kernel) => Ok(Precision::Bf16(kernel)),
            None => refused(
                "this processor has no bf16 product that is faster than f32 (AMX-BF16, or a fast AVX512-BF16), \
                 or TIEBREAK_SIMD keeps it from being used",
            ),
        },
        (config::Precision::Bf16, _) => {
            refused(&format!("device \"{}\" has no bf16 products (\"flex\" has, where the processor has)", kind.name()))
        }
    }
}

/// What a bf16 run goes on with that began with these products, as [`Precision::describe`] names them: the kernel that it began
/// with, if the processor has it, though [`precision`] refuses. Whether that kernel pays is measured, and no measurement may
/// keep a run from being finished.
pub fn begun_with(products: &str) -> Option<Precision> {
    Bf16Kernel::usable(products.split(',').next()?).map(Precision::Bf16)
}

/// In `device = "..."`.
fn name(kind: DeviceKind, which: Which) -> String {
    match which {
        Which::Best => kind.name().into(),
        Which::Nth(n) => format!("{}:{n}", kind.name()),
        Which::Software => format!("{}:cpu", kind.name()),
    }
}

fn missing(kind: DeviceKind, which: Which) -> Error {
    Error::Input(format!(
        "device = {:?} is not in this build, which has {}: build with --features {}, or use device = \"flex\"",
        name(kind, which),
        compiled_in(),
        kind.name()
    ))
}

/// A device that answers.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Without autodiff.
    pub device: Device,
    /// Its kind.
    pub kind: DeviceKind,
    /// The adapter's name, driver and API; none for CPU backends.
    pub adapter: Option<String>,
    /// Bytes of the largest tensor it binds.
    pub largest: u64,
}

impl Opened {
    fn cpu(kind: DeviceKind, device: Device) -> Self {
        Self { device, kind, adapter: None, largest: u64::MAX }
    }

    /// For messages.
    pub fn name(&self) -> String {
        named(self.kind, self.adapter.as_deref())
    }

    /// What messages and [`fits`] ask for.
    pub fn present(&self) -> Present {
        Present { name: self.name(), largest: self.largest }
    }

    /// The arithmetic of a step here, for records.
    pub fn products(&self, precision: Precision) -> String {
        match self.kind {
            kind if !kind.is_gpu() => precision.describe(),
            DeviceKind::Cuda => format!("tensor operations, products in tf32 where there is, on {}", self.name()),
            _ => format!("f32 by tensor operations on {}", self.name()),
        }
    }
}

fn named(kind: DeviceKind, adapter: Option<&str>) -> String {
    adapter.map_or(kind.name().into(), |adapter| format!("{} ({adapter})", kind.name()))
}

/// Keeps Mesa's layer from ordering adapters for a display, which prints errors where there is none, unless its variables are set. At
/// the start of a program.
pub fn without_display() {
    if ["DRI_PRIME", "MESA_VK_DEVICE_SELECT", "NODEVICE_SELECT"].iter().any(|name| std::env::var_os(name).is_some()) {
        return;
    }
    // SAFETY: called before there is another thread.
    #[allow(unsafe_code)]
    unsafe {
        std::env::set_var("NODEVICE_SELECT", "1");
    }
}

/// Opens a device; the smallest limit of those that a process opened holds for all of it.
///
/// # Errors
/// [`Error::Input`] for one that the build lacks or that does not answer, naming those that do.
pub fn open(spec: DeviceSpec) -> Result<Opened, Error> {
    let (kind, which) = spec.resolved()?;
    let opened = match kind {
        DeviceKind::Flex => Opened::cpu(DeviceKind::Flex, Device::flex()),
        #[cfg(feature = "ndarray")]
        DeviceKind::NdArray => Opened::cpu(DeviceKind::NdArray, Device::ndarray()),
        #[cfg(feature = "wgpu-unfused")]
        DeviceKind::Wgpu | DeviceKind::Vulkan | DeviceKind::Metal => gpu::open(kind, which)?,
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => {
            let index = cuda(which)?;
            let adapter = Some(format!("CUDA device {index}"));
            Opened { device: Device::cuda(index), kind: DeviceKind::Cuda, adapter, largest: u64::MAX }
        }
        #[allow(unreachable_patterns)]
        _ => return Err(missing(kind, which)),
    };
    tiebreak_kernels::set_largest_tensor(opened.largest.min(tiebreak_kernels::largest_tensor()));
    if let Some(adapter) = &opened.adapter {
        failure::watch(opened.name());
        tracing::info!(adapter, "device {:?}", opened.kind.name());
    } else if spec == DeviceSpec::Auto && cfg!(any(feature = "wgpu-unfused", feature = "cuda")) {
        tracing::info!("device \"auto\": no GPU answers, so flex");
    }
    Ok(opened)
}

/// The device of a run's records, to look at it; flex, with a warning, where it is not here or cannot hold what looking takes.
///
/// # Errors
/// [`Error::Input`] for a name that is none.
pub fn open_to_look(config: &config::RunConfig, vocabulary: usize) -> Result<Device, Error> {
    let spec: DeviceSpec = config.device.parse()?;
    let fitting = spec.present().and_then(|there| fits(config, vocabulary, true, &there));
    Ok(match fitting.and_then(|()| open(spec)) {
        Ok(opened) => opened.device,
        Err(e) => {
            tracing::warn!("{e}; looking at the run on flex");
            open(DeviceSpec::Named(DeviceKind::Flex, Which::Best))?.device
        }
    })
}

/// What `tiebreak devices` says of one.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// As `device = "..."` names it.
    pub device: String,
    /// Whether it can be used; else what the build lacks.
    pub ready: bool,
    /// What it is.
    pub name: String,
    /// cpu, discrete, integrated, virtual, software; none for kinds that are not in this build.
    pub class: Option<&'static str>,
    /// Graphics API.
    pub api: Option<String>,
    /// Bytes of the largest tensor.
    pub largest_tensor_bytes: Option<u64>,
}

/// Every device of the machine that this build reaches, and every kind that it lacks.
pub fn list() -> Vec<Listed> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut listed = Vec::new();
    for kind in DeviceKind::ALL {
        let one = |name: String, class| Listed {
            device: kind.name().into(),
            ready: kind.compiled_in(),
            name,
            class,
            api: None,
            largest_tensor_bytes: None,
        };
        listed.extend(match kind {
            _ if !kind.compiled_in() => {
                vec![one(format!("not in this build: cargo build --release --features {}", kind.name()), None)]
            }
            DeviceKind::Flex => {
                vec![one(format!("{cores} threads; the reference, and what auto is without a GPU"), Some("cpu"))]
            }
            DeviceKind::NdArray => vec![one("deprecated upstream, several times slower than flex".into(), Some("cpu"))],
            #[cfg(feature = "wgpu-unfused")]
            DeviceKind::Wgpu | DeviceKind::Vulkan | DeviceKind::Metal => gpu::list(kind),
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda => {
                let named =
                    |n: usize| Listed { device: format!("cuda:{n}"), ..one("by CUDA".into(), Some("discrete")) };
                match cuda_devices() {
                    0 => {
                        vec![Listed { ready: false, ..one("no device answers (is a driver installed?)".into(), None) }]
                    }
                    there => (0..there).map(named).collect(),
                }
            }
            #[allow(unreachable_patterns)]
            _ => vec![],
        });
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_a_kernel_that_the_processor_has_or_is_refused() {
        assert_eq!(precision(config::Precision::F32, DeviceKind::NdArray).unwrap(), Precision::F32);
        let mut refused = vec![precision(config::Precision::Bf16, DeviceKind::NdArray)];
        match precision(config::Precision::Bf16, DeviceKind::Flex) {
            Ok(found) => assert!(matches!(found, Precision::Bf16(kernel) if kernel.available())),
            error => refused.push(error),
        }
        for error in refused.into_iter().map(|r| r.unwrap_err().to_string()) {
            assert!(error.contains("train.precision = \"bf16\"") && error.contains("\"f32\""), "{error}");
        }
    }

    #[test]
    fn a_run_goes_on_with_the_kernel_that_it_began_with() {
        for products in ["", "f32 by gemm, loops avx512", "plain-bf16, loops avx512", "of another build"] {
            assert_eq!(begun_with(products), None, "{products}");
        }
        if let Ok(Precision::Bf16(_)) = precision(config::Precision::Bf16, DeviceKind::Flex) {
            for kernel in [Bf16Kernel::Amx, Bf16Kernel::Avx512] {
                let found = begun_with(&Precision::Bf16(kernel).describe());
                assert_eq!(found, kernel.available().then_some(Precision::Bf16(kernel)));
            }
        }
    }

    #[test]
    fn names_and_refusals() {
        assert_eq!("auto".parse::<DeviceSpec>().unwrap(), DeviceSpec::Auto);
        assert_eq!("flex".parse::<DeviceSpec>().unwrap().kind().unwrap(), DeviceKind::Flex);
        for (text, kind, which) in [
            ("wgpu", DeviceKind::Wgpu, Which::Best),
            ("wgpu:1", DeviceKind::Wgpu, Which::Nth(1)),
            ("wgpu:cpu", DeviceKind::Wgpu, Which::Software),
            ("vulkan:0", DeviceKind::Vulkan, Which::Nth(0)),
            ("cuda:12", DeviceKind::Cuda, Which::Nth(12)),
        ] {
            let spec: DeviceSpec = text.parse().unwrap();
            assert_eq!(spec, DeviceSpec::Named(kind, which));
            assert_eq!(text.parse::<DeviceKind>().unwrap(), kind);
            if !kind.compiled_in() {
                let error = spec.kind().unwrap_err().to_string();
                let (found, features) = (format!("device = {text:?}"), format!("--features {}", kind.name()));
                assert!(error.contains(&found) && error.contains(&features) && error.contains("flex"), "{error}");
                assert_eq!(open(spec).unwrap_err().to_string(), error);
            }
        }
        for text in
            ["gpu", "", "wgpu:", "wgpu:x", "wgpu:+1", "wgpu:-1", "flex:0", "cuda:cpu", "wgpu:99999999999999999999999"]
        {
            let error = text.parse::<DeviceSpec>().map(|s| format!("{s:?}")).unwrap_err().to_string();
            assert!(error.contains("unknown; expected auto, flex"), "{text}: {error}");
        }
    }

    #[test]
    fn every_kind_is_listed_or_said_to_be_missing() {
        let listed = list();
        for kind in DeviceKind::ALL {
            let found = listed.iter().any(|l| l.device.split(':').next() == Some(kind.name()));
            assert!(found, "{}", kind.name());
        }
        assert!(listed.iter().any(|l| l.device == "flex" && l.ready));
    }
}
