//! Devices by name, chosen at run time.

use std::str::FromStr;

use burn::tensor::Device;
use tiebreak_data::Error;
use tiebreak_kernels::{Bf16Kernel, Precision};

use crate::config;

/// What `device = "..."` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A real GPU if the build has one and it answers, else flex.
    Auto,
    /// One kind.
    Kind(DeviceKind),
}

/// A backend of this build; identities name devices by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Burn's CPU backend in pure Rust: the default and the reference.
    Flex,
    /// Burn's older CPU backend: deprecated upstream, several times slower than flex.
    NdArray,
}

impl DeviceKind {
    /// Every kind this program knows.
    pub const ALL: [DeviceKind; 2] = [DeviceKind::Flex, DeviceKind::NdArray];

    /// Its name in `device = "..."`.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Flex => "flex",
            DeviceKind::NdArray => "ndarray",
        }
    }

    /// Whether this build has it.
    pub fn compiled_in(self) -> bool {
        match self {
            DeviceKind::Flex => true,
            DeviceKind::NdArray => cfg!(feature = "ndarray"),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "auto" {
            return Ok(DeviceSpec::Auto);
        }
        if let Some(kind) = DeviceKind::ALL.into_iter().find(|kind| kind.name() == text) {
            return Ok(DeviceSpec::Kind(kind));
        }
        let base = text.split(':').next().unwrap_or(text);
        if ["wgpu", "vulkan", "metal", "cuda"].contains(&base) {
            return Err(Error::Input(format!(
                "device = {text:?}: this build has no GPU backend; it has {}. Use device = \"auto\" or \"flex\"",
                compiled_in()
            )));
        }
        Err(Error::Input(format!("device = {text:?}: unknown; this build has auto, {}", compiled_in())))
    }
}

fn compiled_in() -> String {
    let names = DeviceKind::ALL.into_iter().filter(|kind| kind.compiled_in()).map(DeviceKind::name);
    names.collect::<Vec<_>>().join(", ")
}

impl DeviceSpec {
    /// The kind to use, refused if the build lacks it.
    pub fn kind(self) -> Result<DeviceKind, Error> {
        match self {
            DeviceSpec::Auto => Ok(DeviceKind::Flex),
            DeviceSpec::Kind(kind) if kind.compiled_in() => Ok(kind),
            DeviceSpec::Kind(kind) => Err(missing(kind)),
        }
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
        (config::Precision::Bf16, _) => refused(&format!("device \"{}\" has no bf16 products", kind.name())),
    }
}

fn missing(kind: DeviceKind) -> Error {
    Error::Input(format!(
        "device = \"{0}\" is not in this build: build with --features {0}, or use device = \"flex\"",
        kind.name()
    ))
}

/// Opens a device of a compiled-in kind, without autodiff.
pub fn open(kind: DeviceKind) -> Result<Device, Error> {
    match kind {
        DeviceKind::Flex => Ok(Device::flex()),
        #[cfg(feature = "ndarray")]
        DeviceKind::NdArray => Ok(Device::ndarray()),
        #[cfg(not(feature = "ndarray"))]
        DeviceKind::NdArray => Err(missing(kind)),
    }
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
    fn names_and_refusals() {
        assert_eq!("auto".parse::<DeviceSpec>().unwrap(), DeviceSpec::Auto);
        assert_eq!("flex".parse::<DeviceSpec>().unwrap().kind().unwrap(), DeviceKind::Flex);
        for text in ["wgpu", "wgpu:1", "vulkan", "cuda:0"] {
            let error = text.parse::<DeviceSpec>().unwrap_err().to_string();
            assert!(error.contains("no GPU backend") && error.contains("flex"), "{error}");
        }
        assert!("gpu".parse::<DeviceSpec>().is_err());
        #[cfg(not(feature = "ndarray"))]
        assert!(
            "ndarray".parse::<DeviceSpec>().unwrap().kind().unwrap_err().to_string().contains("--features ndarray")
        );
    }
}
