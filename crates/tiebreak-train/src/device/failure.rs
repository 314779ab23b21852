//! What a GPU's failure becomes: Burn panics where a device is lost or full.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use tiebreak_data::Error;

/// The GPU that was opened last.
static GPU: Mutex<Option<String>> = Mutex::new(None);

/// The first panic of the work in progress.
static FIRST: Mutex<Option<String>> = Mutex::new(None);

/// Works in progress.
static WORKING: AtomicUsize = AtomicUsize::new(0);

fn lock(text: &Mutex<Option<String>>) -> std::sync::MutexGuard<'_, Option<String>> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, panics inside [`caught`] are this GPU's, and are kept instead of printed: threads of the driver panic first, and
/// their messages say more than the caller's.
pub(super) fn watch(gpu: String) {
    static HOOK: Once = Once::new();
    *lock(&GPU) = Some(gpu);
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let kept = WORKING.load(Ordering::Relaxed) > 0 && lock(&GPU).is_some();
            if !kept || std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
                before(info);
            }
            if !kept {
                return;
            }
            let said = info.payload_as_str().unwrap_or("no message");
            let place = info.location().map(|at| format!(" at {}:{}", short(at.file()), at.line())).unwrap_or_default();
            let lines = said.lines().map(str::trim).filter(|line| !["", "Caused by:"].contains(line));
            let lines = lines.take(6).collect::<Vec<_>>();
            lock(&FIRST).get_or_insert_with(|| lines.join("; ") + &place);
        }));
    });
}

/// A package's file from the package's name on.
fn short(file: &str) -> &str {
    let (_, in_registry) = file.rsplit_once("/registry/src/").unwrap_or_default();
    in_registry.split_once('/').map_or(file, |(_, rest)| rest)
}

/// Does work that may reach a GPU; its panic becomes [`Error::Failed`]. Without a GPU a panic stays one.
///
/// # Errors
/// Those of the work.
pub fn caught<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    WORKING.fetch_add(1, Ordering::Relaxed);
    // A panic that the driver caught by itself earlier has nothing to do with this work.
    *lock(&FIRST) = None;
    let done = catch_unwind(AssertUnwindSafe(work));
    WORKING.fetch_sub(1, Ordering::Relaxed);
    done.unwrap_or_else(|panic| match lock(&GPU).clone() {
        None => resume_unwind(panic),
        Some(gpu) => {
            let last = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let last = last.and_then(|text| text.lines().next()).unwrap_or("no message");
            let said = match lock(&FIRST).take() {
                None => last.to_owned(),
                Some(first) if first.starts_with(last.trim()) => first,
                Some(first) => format!("{last}; before that: {first}"),
            };
            Err(failed(&gpu, &said))
        }
    })
}

/// Asks a driver that may panic.
#[cfg(any(feature = "wgpu-unfused", feature = "cuda"))]
pub(super) fn quietly<T>(ask: impl FnOnce() -> T) -> Option<T> {
    static ASKING: Mutex<()> = Mutex::new(());
    let _one = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let answer = catch_unwind(AssertUnwindSafe(ask)).ok();
    std::panic::set_hook(before);
    answer
}

fn failed(gpu: &str, said: &str) -> Error {
    let lower = said.to_lowercase();
    let full = [
        "out of memory",
        "out-of-memory",
        "out of device memory",
        "outofmemory",
        "not enough memory",
        "can't allocate",
        "buffertoobig",
    ];
    let advice = match full.iter().any(|words| lower.contains(words)) {
        true => "out of memory: lower train.micro_batch_size, data.context_length or model.d_model",
        false => {
            "the device, or tiebreak at the place below, failed; a run goes on from its last checkpoint with --resume"
        }
    };
    Error::Failed(format!("device {gpu}: {advice} ({said})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_says_what_to_lower() {
        for said in [
            "Out of memory",
            "An out-of-memory error happened during launch",
            "allocation: OutOfMemory { size: 3 }",
            "can't allocate buffer of size: 7",
            "out of device memory allocating 7 bytes",
        ] {
            let error = failed("wgpu (H)", said).to_string();
            assert!(error.contains("micro_batch_size") && error.contains("wgpu (H)"), "{error}");
        }
        let error = failed("wgpu (H)", "the wgpu device was lost").to_string();
        assert!(error.contains("--resume") && error.contains("was lost"), "{error}");
    }

    #[test]
    fn a_place_in_a_package_is_told_without_the_way_there() {
        assert_eq!(
            short("/root/.cargo/registry/src/index.crates.io-1949/burn-0.22.1/src/a.rs"),
            "burn-0.22.1/src/a.rs"
        );
        assert_eq!(short("crates/tiebreak-train/src/step.rs"), "crates/tiebreak-train/src/step.rs");
    }

    /// One test, for what is watched is the process's.
    #[test]
    fn results_and_errors_pass_and_a_panic_becomes_the_watched_gpus() {
        assert_eq!(caught(|| Ok(3)).unwrap(), 3);
        assert!(matches!(caught::<()>(|| Err(Error::Input("x".into()))), Err(Error::Input(_))));
        let panics = || caught::<()>(|| panic!("out of\nmemory")).map_err(|e| e.to_string());
        assert!(catch_unwind(panics).is_err(), "without a GPU a panic of ours stays one");
        watch("wgpu (H)".into());
        let error = panics().unwrap_err();
        for part in ["device wgpu (H)", "out of; memory at ", "failure.rs:"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
        *lock(&GPU) = None;
    }
}
