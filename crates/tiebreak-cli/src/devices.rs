//! Texts of `devices`.

use std::fmt::Write;

use tiebreak_train::Error;
use tiebreak_train::device::{self, DeviceSpec, Listed};
use tiebreak_train::parity::{self, Report};

/// A table of devices.
pub fn text(listed: &[Listed]) -> String {
    let mut text = String::new();
    for Listed { device, ready, name, class, api, largest_tensor_bytes } in listed {
        let ready = if *ready { "ready" } else { "-" };
        let what: Vec<String> = [
            class.map(str::to_owned),
            api.clone(),
            largest_tensor_bytes.map(|bytes| format!("tensors up to {} MiB", bytes >> 20)),
        ]
        .into_iter()
        .flatten()
        .chain(std::iter::once(name.clone()))
        .collect();
        let _ = writeln!(text, "{device:<10} {ready:<6} {}", what.join(", "));
    }
    text
}

/// Runs the parity suite on a device.
pub fn check(name: &str) -> Result<Report, Error> {
    let opened = device::open(name.parse::<DeviceSpec>()?)?;
    device::caught(|| Ok(parity::run(&opened)))
}
