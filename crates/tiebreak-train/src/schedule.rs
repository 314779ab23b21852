//! Learning rate over steps.

use crate::config::{ScheduleConfig, ScheduleKind};

/// Factor on the learning rate of the update that completes `step` (1-based) of `steps`.
///
/// Warm-up, step <= w: r + (1 - r) step / w. After it, with p = (step - w) / (steps - w): cosine
/// m + (1 - m) (1 + cos(pi p)) / 2, linear 1 - (1 - m) p, or constant 1.
pub fn learning_rate(config: &ScheduleConfig, step: u64, steps: u64) -> f64 {
    warm_up(config, config.warmup_steps, step) * decay(config, step, steps)
}

/// The same for the interface's tables, with a warm-up of `warmup_steps` of their own instead of the schedule's (0: the schedule's).
/// The way down is the schedule's.
pub fn table_learning_rate(config: &ScheduleConfig, warmup_steps: u64, step: u64, steps: u64) -> f64 {
    match warmup_steps {
        0 => learning_rate(config, step, steps),
        own => warm_up(config, own, step) * decay(config, step, steps),
    }
}

fn warm_up(config: &ScheduleConfig, warmup_steps: u64, step: u64) -> f64 {
    let r = config.warmup_start_ratio;
    if step <= warmup_steps { r + (1.0 - r) * step as f64 / warmup_steps as f64 } else { 1.0 }
}

fn decay(config: &ScheduleConfig, step: u64, steps: u64) -> f64 {
    let (m, w) = (config.min_lr_ratio, config.warmup_steps);
    if step <= w {
        return 1.0;
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
        let table = |warmup, step| table_learning_rate(&config, warmup, step, 10);
        assert_eq!((table(0, 2), table(0, 7)), (at(&config, 2), at(&config, 7)));
        assert!((table(2, 1) - 0.55).abs() < 1e-15 && table(2, 3) == 1.0, "shorter than the schedule's");
        assert!((table(8, 4) - 0.55).abs() < 1e-15, "longer");
        assert!((table(8, 7) - at(&config, 7) * (0.1 + 0.9 * 7.0 / 8.0)).abs() < 1e-15, "and the way down as well");
        config.kind = ScheduleKind::Linear;
        assert!((at(&config, 7) - 0.55).abs() < 1e-15 && (at(&config, 10) - 0.1).abs() < 1e-15);
        config.kind = ScheduleKind::Constant;
        assert_eq!(at(&config, 10), 1.0);
        config.warmup_steps = 0;
        assert_eq!(at(&config, 1), 1.0);
    }
}
