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
            if WORKING.load(Ordering::Relaxed) == 0 {
                return before(info);
            }
            let said = info.payload_as_str().unwrap_or("no message");
            let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
            let lines = said.lines().map(str::trim).filter(|line| !line.is_empty()).take(4).collect::<Vec<_>>();
            lock(&FIRST).get_or_insert_with(|| lines.join("; ") + &place);
        }));
    });
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
            let first = lock(&FIRST).take().filter(|first| !first.starts_with(last));
            Err(failed(&gpu, &first.map_or(last.to_owned(), |first| format!("{last}; before that: {first}"))))
        }
    })
}

/// Asks a driver that may panic.
#[cfg(any(feature = "wgpu-unfused", feature = "cuda"))]
pub(super) fn quietly<T>(ask: impl FnOnce() -> T) -> Option<T> {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let answer = catch_unwind(AssertUnwindSafe(ask)).ok();
    std::panic::set_hook(before);
    answer
}

fn failed(gpu: &str, said: &str) -> Error {
    let lower = said.to_lowercase();
    let full =
        ["out of memory", "out of device memory", "outofmemory", "not enough memory", "can't allocate", "buffertoobig"];
    let advice = match full.iter().any(|words| lower.contains(words)) {
        true => "out of memory: lower train.micro_batch_size, data.context_length or model.d_model",
        false => "the device failed; a run goes on from its last checkpoint with --resume",
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
    fn errors_and_results_pass() {
        assert_eq!(caught(|| Ok(3)).unwrap(), 3);
        assert!(matches!(caught::<()>(|| Err(Error::Input("x".into()))), Err(Error::Input(_))));
    }
}
