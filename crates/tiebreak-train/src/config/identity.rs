//! What makes two runs the same run.

use serde_json::Value;
use std::collections::BTreeMap;
use tiebreak_data::{DataInfo, sha256_hex};

use super::{LensConfig, RunConfig};
use crate::device::DeviceKind;

/// Version of the run's meaning: raised when the same configuration would give other numbers.
pub const FORMAT: u32 = 1;

/// Keys that came after format 1, beside those of `[head]` and `[aux]`.
const LATER: [&str; 7] = [
    "intervene.balance_target",
    "intervene.learned",
    "intervene.output_clip",
    "model.embed_norm",
    "model.embed_scale",
    "optim.map_lr_scale",
    "optim.table_warmup_steps",
];

/// Every resolved key that can change a number, dotted, with its value.
///
/// Left out: keys that came later while they have the default that keeps old behaviour, keys of other head modes, the name,
/// threads, paths (their content counts), logging, checkpoints, how often evaluation happens, and whether a lens follows the
/// training and by which recipe: that adds numbers and changes none. What changes a lens's numbers counts where there is a lens,
/// but not at its default.
pub fn numeric_keys(config: &RunConfig) -> BTreeMap<String, Value> {
    let mut keys = BTreeMap::new();
    flatten("", serde_json::to_value(config).unwrap_or_default(), &mut keys);
    let mut defaults = BTreeMap::new();
    flatten("", serde_json::to_value(RunConfig::default()).unwrap_or_default(), &mut defaults);
    keys.retain(|key, value| {
        let changed = defaults.get(key) != Some(value);
        match key.strip_prefix("head.") {
            Some("mode") => true,
            Some("logit_softcap" | "z_loss") => changed,
            Some(own) => config.head.uses(own),
            None => changed || !(LATER.contains(&key.as_str()) || key.starts_with("aux.")),
        }
    });
    let (lens, default) = (&config.lens, LensConfig::default());
    keys.retain(|key, _| match key.as_str() {
        "lens.train_tokens" => lens.after_training && lens.train_tokens != default.train_tokens,
        "lens.eval_tokens" => lens.after_training && lens.eval_tokens != default.eval_tokens,
        "name" | "threads" | "device" | "data.corpus" | "data.fallback" | "data.tokenizer" | "eval.every" => false,
        "log.tables_at" | "log.provenance_every" => true,
        // For histograms too tables in factors are formed.
        "log.histograms_every" => config.log.histograms_every > 0 && config.head.in_factors(),
        key => !["log.", "checkpoint.", "probe.", "lens."].iter().any(|section| key.starts_with(section)),
    });
    keys
}

/// SHA-256 (hex) over the [`numeric_keys`], the data's content hashes and [`FORMAT`].
pub fn identity(config: &RunConfig, data: &DataInfo, device: DeviceKind) -> String {
    let head = format!("tiebreak run v{FORMAT}\ncorpus {}\ntokenizer {}\n", data.corpus_hash, data.tokenizer_hash);
    let keys = numeric_keys(config).into_iter().map(|(key, value)| format!("{key} = {value}\n"));
    sha256_hex((head + &format!("device {}\n", device.name()) + &keys.collect::<String>()).as_bytes())
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

/// `<name>-s<seed>-<hash8>`, the name by [`plain_name`].
pub fn run_folder_name(config: &RunConfig, identity: &str) -> String {
    format!("{}-s{}-{}", plain_name(&config.name), config.seed, &identity[..8])
}

/// A name with every character that is no letter, digit or one of `._=+,-` replaced by `_`.
pub fn plain_name(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || "._=+,-".contains(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> DataInfo {
        serde_json::from_value(serde_json::json!({
            "corpus": "c", "fallback_reason": null, "corpus_hash": "aa", "tokenizer": "bytes", "tokenizer_hash": "bb",
            "vocabulary": 257, "train": {"documents": 1, "bytes": 1, "tokens": 1},
            "validation": {"documents": 1, "bytes": 1, "tokens": 1},
            "exact_duplicates": 0, "near_duplicates_across_split": 0, "warnings": [],
        }))
        .unwrap()
    }

    fn of(change: impl Fn(&mut RunConfig)) -> String {
        let mut config = RunConfig::default();
        change(&mut config);
        identity(&config, &info(), DeviceKind::Flex)
    }

    #[test]
    fn what_changes_a_number_changes_the_identity_and_nothing_else_does() {
        let base = of(|_| {});
        for other in [
            of(|c| c.seed = 1),
            of(|c| c.optim.lr = 1e-3),
            of(|c| c.log.tables_at.push(7)),
            of(|c| c.log.provenance_every = 2),
            of(|c| c.eval.tokens = 7),
            of(|c| c.intervene.input_scale = 5.0.into()),
            of(|c| c.intervene.balance_target = 1.0),
            of(|c| c.model.embed_norm = true),
            of(|c| c.optim.table_warmup_steps = 9),
            of(|c| c.aux.reconstruction = 0.1),
            of(|c| c.head.z_loss = 1e-4),
            of(|c| c.train.precision = crate::config::Precision::Bf16),
            of(|c| (c.lens.after_training, c.lens.eval_tokens) = (true, 7)),
            of(|c| (c.lens.after_training, c.lens.train_tokens) = (true, 7)),
        ] {
            assert_ne!(base, other);
        }
        for same in [
            of(|c| c.name = "other".into()),
            of(|c| c.threads = 2),
            of(|c| c.log.every = 9),
            of(|c| c.checkpoint.keep = 9),
            of(|c| c.eval.every = 9),
            of(|c| c.lens.after_training = true),
            of(|c| c.lens.eval_tokens = 7),
            of(|c| c.data.corpus = "/elsewhere/the-same.txt".into()),
            of(|c| c.head.rank = 9),
        ] {
            assert_eq!(base, same);
        }
        // A mode's own keys count, at their defaults too.
        let with = |width: usize| {
            of(|c| {
                c.head.mode = tiebreak_model::interface::ModeKind::Partial;
                c.head.shared_width = width;
            })
        };
        assert_ne!(with(64), with(32));
        let mut partial = RunConfig::default();
        partial.head.mode = tiebreak_model::interface::ModeKind::Partial;
        assert!(numeric_keys(&partial).contains_key("head.shared_width"));
        assert!(!numeric_keys(&partial).contains_key("head.rank"));
        let mut data = info();
        data.corpus_hash = "cc".into();
        assert_ne!(base, identity(&RunConfig::default(), &data, DeviceKind::Flex));
    }

    #[test]
    fn the_identity_of_the_defaults_is_pinned() {
        // Runs on disk are found by it: a new key must be left out while it has the default that keeps old behaviour.
        assert_eq!(&of(|_| {})[..16], "74bac46a681437cc");
    }

    #[test]
    fn folder_names_are_plain() {
        let config = RunConfig { name: "tied optim.lr=0.003/x".into(), seed: 4, ..RunConfig::default() };
        assert_eq!(run_folder_name(&config, "0123456789abcdef"), "tied_optim.lr=0.003_x-s4-01234567");
    }
}
