//! Console progress on stderr: a bar on a terminal, a plain line now and then elsewhere.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{FormattedDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// The bar on the screen, which [`LogWriter`] has to step around.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn shown() -> MutexGuard<'static, Option<ProgressBar>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows how far a run is. A console that cannot be written to never stops the run.
pub struct Progress {
    label: String,
    total: u64,
    start: u64,
    started: Instant,
    out: Out,
}

enum Out {
    Bar(ProgressBar),
    Plain { every: Duration, last: Option<Instant>, sink: Box<dyn Write + Send> },
}

impl Progress {
    /// Progress of a run called `label` that has `start_step` of `total_steps` steps behind it.
    pub fn new(label: &str, total_steps: u64, start_step: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total_steps), ProgressDrawTarget::stderr_with_hz(10));
        if bar.is_hidden() {
            return Self::plain(label, total_steps, start_step, PLAIN_EVERY, Box::new(io::stderr()));
        }
        if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:16}] {pos}/{len}  {wide_msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(label.to_owned());
        bar.set_position(start_step);
        *shown() = Some(bar.clone());
        Self::with(label, total_steps, start_step, Out::Bar(bar))
    }

    fn plain(label: &str, total: u64, start: u64, every: Duration, sink: Box<dyn Write + Send>) -> Self {
        let mut progress = Self::with(label, total, start, Out::Plain { every, last: None, sink });
        progress.message(&format!("{label}: step {start} of {total}"));
        progress
    }

    fn with(label: &str, total: u64, start: u64, out: Out) -> Self {
        Self { label: label.to_owned(), total, start, started: Instant::now(), out }
    }

    /// Reports `step` completed steps, the loss in nats per token and the speed in tokens per second.
    pub fn step(&mut self, step: u64, loss: f64, tokens_per_second: f64) {
        let left = time_left(self.started.elapsed(), step.saturating_sub(self.start), self.total.saturating_sub(step));
        let state = || {
            let left = left.map_or("?".to_owned(), |left| FormattedDuration(left).to_string());
            format!("loss {loss:.4}  {tokens_per_second:.0} tokens/s  {left} left")
        };
        match &mut self.out {
            Out::Bar(bar) => {
                bar.set_position(step);
                bar.set_message(state());
            }
            Out::Plain { every, last, sink } => {
                if last.is_none_or(|last| last.elapsed() >= *every) {
                    *last = Some(Instant::now());
                    let _ = writeln!(sink, "{}: step {step}/{}  {}", self.label, self.total, state());
                }
            }
        }
    }

    /// Prints a line of its own above the bar.
    pub fn message(&mut self, text: &str) {
        match &mut self.out {
            Out::Bar(bar) => bar.suspend(|| {
                let _ = writeln!(io::stderr(), "{text}");
            }),
            Out::Plain { sink, .. } => {
                let _ = writeln!(sink, "{text}");
            }
        }
    }

    /// Removes the bar and leaves `text` as the last line.
    pub fn finish(mut self, text: &str) {
        self.clear();
        self.message(text);
    }

    fn clear(&self) {
        if let Out::Bar(bar) = &self.out {
            *shown() = None;
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Time for `left` more steps at the mean speed of the `done` steps so far; none before the first.
fn time_left(elapsed: Duration, done: u64, left: u64) -> Option<Duration> {
    let seconds = elapsed.as_secs_f64() * left as f64 / done as f64;
    (done > 0).then(|| Duration::try_from_secs_f64(seconds.round()).ok()).flatten()
}

/// Stderr for log lines (`tracing_subscriber`'s `with_writer(LogWriter::default)`): lines appear above a bar that is on
/// the screen instead of tearing it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A console that is full or gone takes no line, and cannot be told so.
        let _ = match &*shown() {
            Some(bar) => bar.suspend(|| io::stderr().write_all(bytes)),
            None => io::stderr().write_all(bytes),
        };
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(every: Duration) -> Vec<String> {
        let captured = Captured::default();
        let mut progress = Progress::plain("tied-s0", 100, 40, every, Box::new(captured.clone()));
        for step in 41..=43 {
            progress.step(step, 5.0, 1234.4);
        }
        progress.message("note");
        progress.finish("done");
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn plain_lines_come_at_start_end_and_intervals() {
        let seldom = lines(Duration::from_secs(3600));
        assert_eq!(seldom.len(), 4, "{seldom:?}");
        assert_eq!(seldom[0], "tied-s0: step 40 of 100");
        assert!(seldom[1].starts_with("tied-s0: step 41/100  loss 5.0000  1234 tokens/s  "), "{}", seldom[1]);
        assert!(seldom[1].ends_with(" left"), "{}", seldom[1]);
        assert_eq!(seldom[2..], ["note", "done"]);
        assert_eq!(lines(Duration::ZERO).len(), 6);
    }

    #[test]
    fn time_left_counts_only_the_steps_of_this_session() {
        assert_eq!(time_left(Duration::from_secs(20), 10, 30), Some(Duration::from_secs(60)));
        assert_eq!(time_left(Duration::from_secs(20), 0, 30), None);
        assert_eq!(time_left(Duration::MAX, 1, u64::MAX), None);
    }
}
