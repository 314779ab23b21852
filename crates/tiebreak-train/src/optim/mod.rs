//! From the two sides' gradients to moved parameters: clip, roles and AdamW.

mod adamw;

pub use adamw::{AdamW, Moments};

use tiebreak_model::Parameter;
use tiebreak_model::interface::Role;

use crate::config::OptimConfig;

/// Whether a role is that of a table; a map is none.
pub fn is_table(role: Option<Role>) -> bool {
    matches!(role, Some(Role::Shared | Role::Input | Role::Output))
}

impl OptimConfig {
    /// Factor on the learning rate of a parameter by its role; trunk parameters have none.
    pub fn lr_scale(&self, role: Option<Role>) -> f64 {
        match role {
            None => 1.0,
            Some(Role::Map) => self.map_lr_scale,
            Some(Role::Shared) => self.table_lr_scale,
            Some(Role::Input) => self.table_lr_scale * self.input_lr_scale,
            Some(Role::Output) => self.table_lr_scale * self.output_lr_scale,
        }
    }

    /// Weight decay of a parameter.
    pub fn decay(&self, parameter: &Parameter, role: Option<Role>) -> f64 {
        if parameter.decays && (self.decay_embeddings || !is_table(role)) { self.weight_decay } else { 0.0 }
    }

    /// Clip factor for a global norm: min(1, clip / (norm + 1e-6)), as PyTorch's `clip_grad_norm_`; 1 when off.
    pub fn clip_factor(&self, norm: f64) -> f64 {
        if self.clip_norm == 0.0 { 1.0 } else { (self.clip_norm / (norm + 1e-6)).min(1.0) }
    }
}
