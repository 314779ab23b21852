use serde::{Deserialize, Serialize};

use super::ModeKind;
use crate::ConfigError;

/// `[head]`: the mode, its own keys, and what happens to the logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeadConfig {
    /// Which rule makes the pair.
    pub mode: ModeKind,
    /// `partial`: columns that both sides share.
    pub shared_width: usize,
    /// `dual_head`: the part of E in U; where it is learned, its start.
    pub gate: f64,
    /// `dual_head`: how many gates.
    pub gate_per: GatePer,
    /// `dual_head`: whether the gate is trained.
    pub gate_learned: bool,
    /// `tie_then_untie`: completed steps at which the matrix becomes two, or, below 1, the fraction of all steps.
    pub untie_at: f64,
    /// `low_rank_private`, `factorised`: inner width of the factors.
    pub rank: usize,
    /// `factorised`: whether U has a right factor of its own.
    pub output_factor: OutputFactor,
    /// `partial_rows`: rows that both sides share.
    pub rows: usize,
    /// `partial_rows`: which end of the frequency ranking they are from.
    pub rows_which: RowsWhich,
    /// Every mode: c of c tanh(z / c) on the logits; 0: off.
    pub logit_softcap: f64,
    /// Every mode: weight of the squared log-partition per token; 0: off.
    pub z_loss: f64,
}

impl Default for HeadConfig {
    fn default() -> Self {
        Self {
            mode: ModeKind::Tied,
            shared_width: 64,
            gate: 0.5,
            gate_per: GatePer::Model,
            gate_learned: false,
            untie_at: 0.5,
            rank: 16,
            output_factor: OutputFactor::Shared,
            rows: 1000,
            rows_which: RowsWhich::Frequent,
            logit_softcap: 0.0,
            z_loss: 0.0,
        }
    }
}

/// How many gates a dual head has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatePer {
    /// One.
    Model,
    /// One for each row.
    Row,
}

/// The right factor of U.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFactor {
    /// That of E.
    Shared,
    /// Its own.
    Own,
}

/// Which rows are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowsWhich {
    /// Those of the most frequent ids.
    Frequent,
    /// Those of the rarest.
    Rare,
}

/// Keys that every mode has.
const COMMON: [&str; 3] = ["mode", "logit_softcap", "z_loss"];

impl HeadConfig {
    /// Whether a key of `[head]` says something for this mode.
    pub fn uses(&self, key: &str) -> bool {
        COMMON.contains(&key) || self.mode.mode().keys.contains(&key)
    }

    /// The mode's name as in TOML.
    pub fn mode_name(&self) -> String {
        name(self.mode)
    }

    /// Refuses keys of other modes and values that cannot be, naming the key. `vocabulary`: `usize::MAX` while it is unknown.
    pub fn validate(&self, vocabulary: usize, d: usize) -> Result<(), ConfigError> {
        let keys = |config: &HeadConfig| match serde_json::to_value(config) {
            Ok(serde_json::Value::Object(keys)) => keys,
            other => unreachable!("a section of plain keys: {other:?}"),
        };
        let defaults = keys(&HeadConfig::default());
        for (key, value) in keys(self) {
            if defaults.get(&key) != Some(&value) && !self.uses(&key) {
                let users = ModeKind::ALL.into_iter().filter(|kind| kind.mode().keys.contains(&key.as_str()));
                let users = users.map(|kind| format!("{:?}", name(kind))).collect::<Vec<_>>().join(" or ");
                return Err(ConfigError(format!(
                    "head.{key} = {value}, but head.mode = {:?} has no such key: remove it, or choose the mode {users}",
                    self.mode_name()
                )));
            }
        }
        self.check_logits()?;
        (self.mode.mode().check)(self, vocabulary, d)
    }
}

fn name(mode: ModeKind) -> String {
    match serde_json::to_value(mode) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable!("a unit variant: {other:?}"),
    }
}
