//! GPUs by wgpu: which there are, and opening one without a panic.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use burn::tensor::wgpu::{WgpuBackend, wgpu};
use burn::tensor::{Device, DeviceKind as Selector};
use tiebreak_data::Error;

use super::{DeviceKind, Listed, Opened, Present, Which, failure, named};

/// One adapter by one graphics API.
struct Adapter {
    info: wgpu::AdapterInfo,
    api: WgpuBackend,
    /// As Burn counts it: by class.
    selector: Selector,
    largest: u64,
}

impl Adapter {
    fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    fn class(&self) -> &'static str {
        match self.info.device_type {
            wgpu::DeviceType::DiscreteGpu => "discrete",
            wgpu::DeviceType::IntegratedGpu => "integrated",
            wgpu::DeviceType::VirtualGpu => "virtual",
            wgpu::DeviceType::Cpu => "software",
            wgpu::DeviceType::Other => "other",
        }
    }

    /// Why this build cannot use it.
    fn unusable(&self) -> Option<&'static str> {
        // Seen with Mesa 22.3 and 25.0: a segmentation fault in its translation, which nothing here can catch.
        let dies = cfg!(feature = "vulkan") && self.info.driver.trim() == "llvmpipe";
        dies.then_some("Mesa's software adapter dies over this build's SPIR-V; build with --features wgpu alone")
    }

    /// Name, driver and API.
    fn describe(&self) -> String {
        let driver = [&self.info.driver, &self.info.driver_info].map(|s| s.trim()).join(" ");
        let what = if self.is_software() { "adapter" } else { "GPU" };
        format!("{}, {} {what}, {:?}, {}", self.info.name.trim(), self.class(), self.api, driver.trim())
    }
}

/// Native enumeration is done when it is first asked.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Adapters in the order of their APIs, each in its driver's order, as Burn finds them too.
fn adapters() -> &'static [Adapter] {
    // Instances stay: loaders crash where they come and go on several threads.
    static FOUND: OnceLock<(Vec<wgpu::Instance>, Vec<Adapter>)> = OnceLock::new();
    let find = || {
        let (mut instances, mut adapters) = (Vec::new(), Vec::new());
        for (backend, api) in [
            (wgpu::Backend::Vulkan, WgpuBackend::Vulkan),
            (wgpu::Backend::Metal, WgpuBackend::Metal),
            (wgpu::Backend::Dx12, WgpuBackend::Dx12),
        ] {
            let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
                backends: backend.into(),
                ..wgpu::InstanceDescriptor::new_without_display_handle()
            });
            let mut counts = [0; 3];
            for adapter in now(instance.enumerate_adapters(backend.into())).unwrap_or_default() {
                let (info, limits) = (adapter.get_info(), adapter.limits());
                let mut next = |class: usize| {
                    counts[class] += 1;
                    counts[class] - 1
                };
                let selector = match info.device_type {
                    wgpu::DeviceType::DiscreteGpu => Selector::DiscreteGpu(next(0)),
                    wgpu::DeviceType::IntegratedGpu => Selector::IntegratedGpu(next(1)),
                    wgpu::DeviceType::VirtualGpu => Selector::VirtualGpu(next(2)),
                    wgpu::DeviceType::Cpu => Selector::Cpu,
                    // Burn has no selector for it.
                    wgpu::DeviceType::Other => continue,
                };
                let largest = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
                adapters.push(Adapter { info, api, selector, largest });
            }
            instances.push(instance);
        }
        (instances, adapters)
    };
    &FOUND.get_or_init(find).1
}

fn of(kind: DeviceKind) -> impl Iterator<Item = &'static Adapter> {
    adapters().iter().filter(move |adapter| match kind {
        DeviceKind::Vulkan => adapter.api == WgpuBackend::Vulkan,
        DeviceKind::Metal => adapter.api == WgpuBackend::Metal,
        _ => true,
    })
}

fn gpus(kind: DeviceKind) -> impl Iterator<Item = &'static Adapter> {
    of(kind).filter(|adapter| !adapter.is_software())
}

/// Classes of GPUs, the best first.
const CLASSES: [&str; 3] = ["discrete", "integrated", "virtual"];

/// The adapter of that name; [`Which::Best`] is no software adapter.
fn find(kind: DeviceKind, which: Which) -> Result<&'static Adapter, Error> {
    let class = |class: &'static str| gpus(kind).find(move |adapter| adapter.class() == class);
    let (name, found) = match which {
        Which::Best => (kind.name().to_owned(), CLASSES.into_iter().find_map(class)),
        Which::Nth(n) => (format!("{}:{n}", kind.name()), gpus(kind).nth(n)),
        Which::Software => (format!("{}:cpu", kind.name()), of(kind).find(|adapter| adapter.is_software())),
    };
    if let Some(why) = found.and_then(Adapter::unusable) {
        return Err(Error::Input(format!("device = {name:?}: {why}, or use device = \"flex\"")));
    }
    found.ok_or_else(|| {
        let there: Vec<String> = list(kind).into_iter().filter(|l| l.ready).map(|l| format!("{} ({})", l.device, l.name)).collect();
        let there = match there.is_empty() {
            true => "this machine has none of the kind; is a driver installed (on Debian mesa-vulkan-drivers or the vendor's)?".into(),
            false => format!("there is {}.", there.join(", ")),
        };
        Error::Input(format!("device = {name:?} does not answer: {there} Use one that does, or device = \"flex\""))
    })
}

/// The adapter of that name, not brought up where its limits are the device's.
pub(super) fn present(kind: DeviceKind, which: Which) -> Result<Present, Error> {
    let adapter = find(kind, which)?;
    match cfg!(feature = "vulkan") && adapter.api == WgpuBackend::Vulkan {
        // For SPIR-V Burn can ask for more than wgpu says there is.
        true => bring_up(kind, adapter).map(|opened| opened.present()),
        false => Ok(Present { name: named(kind, Some(&adapter.describe())), largest: adapter.largest }),
    }
}

/// Brings up the adapter of that name.
pub(super) fn open(kind: DeviceKind, which: Which) -> Result<Opened, Error> {
    bring_up(kind, find(kind, which)?)
}

/// The number of the first GPU that comes up, the best class first.
pub(super) fn first() -> Option<usize> {
    let class = |adapter: &Adapter| CLASSES.iter().position(|class| *class == adapter.class());
    let mut numbered: Vec<(usize, &Adapter)> = gpus(DeviceKind::Wgpu).enumerate().collect();
    numbered.sort_by_key(|(_, adapter)| class(adapter));
    let comes_up = |adapter| {
        let refused = |e| tracing::warn!("device \"auto\": {e}");
        bring_up(DeviceKind::Wgpu, adapter).map_err(refused).is_ok()
    };
    numbered.into_iter().find(|(_, adapter)| comes_up(adapter)).map(|(n, _)| n)
}

/// Once in a process.
fn bring_up(kind: DeviceKind, adapter: &Adapter) -> Result<Opened, Error> {
    static OPENED: Mutex<Vec<(WgpuBackend, Selector, Opened)>> = Mutex::new(Vec::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let same =
        |(api, selector, _): &&(WgpuBackend, Selector, Opened)| *api == adapter.api && *selector == adapter.selector;
    if let Some((_, _, found)) = opened.iter().find(same) {
        return Ok(Opened { kind, ..found.clone() });
    }
    let options = Device::wgpu_options().device_kind(adapter.selector.clone()).graphics_api(adapter.api);
    let refused = |e: &dyn std::fmt::Display| {
        Error::Input(format!("device {}: {e}; use another, or device = \"flex\"", adapter.describe()))
    };
    let (device, setup) = failure::quietly(|| options.init_with_setup())
        .ok_or_else(|| refused(&"its driver failed"))?
        .map_err(|e| refused(&e))?;
    let limits = setup.device.limits();
    let largest = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    let found = Opened { device, kind, adapter: Some(adapter.describe()), largest };
    opened.push((adapter.api, adapter.selector.clone(), found.clone()));
    Ok(found)
}

/// The adapters of a kind, by name.
pub(super) fn list(kind: DeviceKind) -> Vec<Listed> {
    let mut number = 0;
    let mut listed: Vec<Listed> = of(kind)
        .map(|adapter| {
            let device = match adapter.is_software() {
                true => format!("{}:cpu", kind.name()),
                false => {
                    number += 1;
                    format!("{}:{}", kind.name(), number - 1)
                }
            };
            Listed {
                device,
                ready: adapter.unusable().is_none(),
                name: match adapter.unusable() {
                    None => adapter.info.name.trim().into(),
                    Some(why) => format!("{}: {why}", adapter.info.name.trim()),
                },
                class: Some(adapter.class()),
                api: Some(format!("{:?}", adapter.api)),
                largest_tensor_bytes: Some(adapter.largest),
            }
        })
        .collect();
    if listed.is_empty() {
        listed.push(Listed {
            device: kind.name().into(),
            ready: false,
            name: "no adapter answers (is a driver installed?)".into(),
            class: None,
            api: None,
            largest_tensor_bytes: None,
        });
    }
    listed
}
