//! Learning rate over steps.

use crate::config::{ScheduleConfig, ScheduleKind};

/// Factor on the learning rate of the update that completes `step` (1-based) of `steps`.
///
/// Warm-up, step <= w: r + (1 - r) step / w. After it, with p = (step - w) / (steps - w): cosine
/// m + (1 - m) (1 + cos(pi p)) / 2, linear 1 - (1 - m) p, or constant 1.
pub fn learning_rate(config: &ScheduleConfig, step: u64, steps: u64) -> f64 {
    let (r, m, w) = (config.warmup_start_ratio, config.min_lr_ratio, config.warmup_steps);
    if step <= w {
        return r + (1.0 - r) * step as f64 / w as f64;
    }
    let p = (step - w) as f64 / (steps.max(w + 1) - w) as f64;
    match config.kind {
        ScheduleKind::Cosine => m + (1.0 - m) * 0.5 * (1.0 + (std::f64::consts::PI * p).cos()),
        ScheduleKind::Linear => 1.0 - (1.0 - m) * p,
        ScheduleKind::Constant => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_peak_and_end() {
        let mut config = ScheduleConfig { warmup_steps: 4, ..Default::default() };
        let at = |config: &ScheduleConfig, step| learning_rate(config, step, 10);
        assert!((at(&config, 1) - (0.1 + 0.9 / 4.0)).abs() < 1e-15);
        assert_eq!(at(&config, 4), 1.0);
        assert!((at(&config, 7) - 0.55).abs() < 1e-15);
        assert!((at(&config, 10) - 0.1).abs() < 1e-15);
        config.kind = ScheduleKind::Linear;
        assert!((at(&config, 7) - 0.55).abs() < 1e-15 && (at(&config, 10) - 0.1).abs() < 1e-15);
        config.kind = ScheduleKind::Constant;
        assert_eq!(at(&config, 10), 1.0);
        config.warmup_steps = 0;
        assert_eq!(at(&config, 1), 1.0);
    }
}
