//! Plain lines about a sweep on stderr.

use std::io::Write;
use std::time::{Duration, Instant};

/// Counts cells and estimates the time left from the work done.
pub(crate) struct Progress {
    cells: usize,
    pub done: usize,
    pub failed: usize,
    /// FLOPs that were left at the start.
    work: f64,
    /// FLOPs of cells that have ended since.
    worked: f64,
    started: Instant,
    told: Instant,
    every: Duration,
}

impl Progress {
    pub fn new(cells: usize, done: usize, failed: usize, work: f64) -> Self {
        let every = Duration::from_secs(if crate::launch::watched() { 10 } else { 30 });
        let now = Instant::now();
        Self { cells, done, failed, work, worked: 0.0, started: now, told: now, every }
    }

    /// A cell ended that had this much left when it began.
    pub fn worked(&mut self, flops: f64) {
        self.worked += flops;
    }

    /// Prints a line; a console that is gone never stops the sweep.
    pub fn line(&mut self, text: &str) {
        self.told = Instant::now();
        let _ = writeln!(std::io::stderr(), "[{}/{}] {text}", self.done + self.failed, self.cells);
    }

    /// Now and then says where the running cells are: label, step and last step of each, and the FLOPs they have done.
    pub fn tick(&mut self, cells: impl FnOnce() -> Vec<(String, u64, u64)>, running: impl FnOnce() -> f64) {
        if self.told.elapsed() < self.every {
            return;
        }
        let cells: Vec<String> = cells().iter().map(|(label, step, steps)| format!("{label} {step}/{steps}")).collect();
        let cells =
            if cells.is_empty() { "waiting for cells that another process runs".into() } else { cells.join(", ") };
        let left = time_left(self.started.elapsed(), self.worked + running(), self.work);
        let left = left.map(|left| format!("; about {} left", minutes(left))).unwrap_or_default();
        self.line(&format!("{cells}{left}"));
    }
}

/// Time for the rest at the mean speed so far.
fn time_left(elapsed: Duration, done: f64, all: f64) -> Option<Duration> {
    let seconds = elapsed.as_secs_f64() * (all - done).max(0.0) / done;
    (done > 0.0).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

/// A duration in minutes, or in seconds if it is short.
pub(crate) fn minutes(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 60.0 { format!("{seconds:.0} s") } else { format!("{:.1} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_its_share() {
        let ten = Duration::from_secs(10);
        assert_eq!(time_left(ten, 0.25, 1.0), Some(Duration::from_secs(30)));
        assert_eq!(time_left(ten, 0.0, 1.0), None);
        assert_eq!((minutes(ten), minutes(Duration::from_secs(90))), ("10 s".into(), "1.5 min".into()));
    }
}
