//! What makes two runs the same run.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use tiebreak_data::DataInfo;

use super::RunConfig;
use crate::device::DeviceKind;

/// Version of the run's meaning: raised when the same configuration would give other numbers.
pub const FORMAT: u32 = 1;

/// Every resolved key that can change a number, dotted, with its value.
///
/// Left out: the name, threads, paths (their content counts), logging, checkpoints and how often evaluation happens.
pub fn numeric_keys(config: &RunConfig) -> BTreeMap<String, Value> {
    let mut keys = BTreeMap::new();
    flatten("", serde_json::to_value(config).unwrap_or_default(), &mut keys);
    keys.retain(|key, _| match key.as_str() {
        "name" | "threads" | "device" | "data.corpus" | "data.fallback" | "data.tokenizer" | "eval.every" => false,
        "log.tables_at" | "log.provenance_every" => true,
        key => !key.starts_with("log.") && !key.starts_with("checkpoint."),
    });
    keys
}

/// SHA-256 (hex) over the [`numeric_keys`], the data's content hashes and [`FORMAT`].
pub fn identity(config: &RunConfig, data: &DataInfo, device: DeviceKind) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("tiebreak run v{FORMAT}\ncorpus {}\ntokenizer {}\n", data.corpus_hash, data.tokenizer_hash));
    hash.update(format!("device {}\n", device.name()));
    for (key, value) in numeric_keys(config) {
        hash.update(format!("{key} = {value}\n"));
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn flatten(prefix: &str, value: Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(&path, value, into);
            }
        }
        leaf => _ = into.insert(prefix.into(), leaf),
    }
}

/// `<name>-s<seed>-<hash8>`, the name reduced to characters that every file system and shell takes.
pub fn run_folder_name(config: &RunConfig, identity: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._=+,-".contains(c) { c } else { '_' };
    let name: String = config.name.chars().map(plain).collect();
    format!("{name}-s{}-{}", config.seed, &identity[..8])
}
