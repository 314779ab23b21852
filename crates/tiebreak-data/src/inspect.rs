//! What `data inspect` tells.

use std::collections::HashSet;
use std::path::Path;

use serde::Serialize;

use crate::documents::local;
use crate::hash::sha256;
use crate::{Baselines, DataConfig, DataInfo, Error, Prepared, Shard, baselines, frequencies, prepare};

/// How much of the vocabulary the training split shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Coverage {
    /// Ids that occur in the training split.
    pub ids_seen_in_train: usize,
    /// Their share of the vocabulary.
    pub share_seen_in_train: f64,
    /// Validation tokens whose id does not occur in the training split.
    pub validation_tokens_unseen: u64,
    /// Their share of the validation tokens.
    pub share_of_validation_unseen: f64,
}

/// Everything about the data of a run configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InspectReport {
    /// Documents, bytes, tokens, hashes, duplicates and warnings.
    pub info: DataInfo,
    /// Bytes of text per token of the training split.
    pub train_bytes_per_token: f64,
    /// Bytes of text per token of the validation split.
    pub validation_bytes_per_token: f64,
    /// Training windows of the configured length: one epoch.
    pub train_windows: usize,
    /// How much of the vocabulary is seen.
    pub coverage: Coverage,
    /// What counting achieves.
    pub baselines: Baselines,
}

/// Prepares the data of `config` and describes it.
///
/// # Errors
/// As [`prepare`].
pub fn inspect(config: &DataConfig) -> Result<InspectReport, Error> {
    Ok(describe(&prepare(config)?))
}

fn describe(prepared: &Prepared) -> InspectReport {
    let per_token = |bytes: u64, tokens: u64| bytes as f64 / tokens.max(1) as f64;
    let info = prepared.info.clone();
    InspectReport {
        train_bytes_per_token: per_token(info.train.bytes, info.train.tokens),
        validation_bytes_per_token: per_token(info.validation.bytes, info.validation.tokens),
        train_windows: crate::window_count(prepared.train.len(), prepared.context_length),
        coverage: coverage(&frequencies(&prepared.train), &frequencies(&prepared.validation)),
        baselines: baselines(prepared),
        info,
    }
}

fn coverage(train: &[u64], validation: &[u64]) -> Coverage {
    let seen = train.iter().filter(|&&n| n > 0).count();
    let unseen: u64 = train.iter().zip(validation).filter(|(t, _)| **t == 0).map(|(_, v)| v).sum();
    Coverage {
        ids_seen_in_train: seen,
        share_seen_in_train: seen as f64 / train.len().max(1) as f64,
        validation_tokens_unseen: unseen,
        share_of_validation_unseen: unseen as f64 / validation.iter().sum::<u64>().max(1) as f64,
    }
}

/// What a path holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PathReport {
    /// A token shard, or several in one folder of the cache.
    Shards {
        /// One entry per file, in order of name.
        shards: Vec<ShardReport>,
    },
    /// A .txt file, a .jsonl file or a folder of them.
    Text {
        /// Number of documents.
        documents: usize,
        /// Bytes of text.
        bytes: usize,
        /// Words between white space.
        words: usize,
        /// Documents whose bytes repeat an earlier one's.
        exact_duplicates: usize,
        /// Documents without any text.
        empty: usize,
    },
}

/// The header of one shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardReport {
    /// File name.
    pub file: String,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of ids.
    pub vocabulary: usize,
    /// Ids that occur.
    pub ids_seen: usize,
    /// Number of documents.
    pub documents: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// SHA-256 of the corpus.
    pub corpus_hash: String,
    /// SHA-256 of the tokenizer.
    pub tokenizer_hash: String,
}

/// Describes a shard, a folder of shards, or text.
///
/// # Errors
/// [`Error::Input`] for a path that is none of these, or damaged.
pub fn inspect_path(path: &Path) -> Result<PathReport, Error> {
    let is_shard = |path: &Path| path.extension().is_some_and(|e| e == "bin");
    let mut shards: Vec<_> = match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|e| e.path()).filter(|p| is_shard(p)).collect(),
        Err(_) if is_shard(path) => vec![path.to_path_buf()],
        Err(_) => Vec::new(),
    };
    if !shards.is_empty() {
        shards.sort();
        let reports = shards.iter().map(|p| shard_report(p)).collect::<Result<_, _>>()?;
        return Ok(PathReport::Shards { shards: reports });
    }
    let documents = local(path)?;
    let distinct: HashSet<_> = documents.iter().map(|d| sha256(d.text.as_bytes())).collect();
    Ok(PathReport::Text {
        documents: documents.len(),
        bytes: documents.iter().map(|d| d.text.len()).sum(),
        words: documents.iter().map(|d| d.text.split_whitespace().count()).sum(),
        exact_duplicates: documents.len() - distinct.len(),
        empty: documents.iter().filter(|d| d.text.trim().is_empty()).count(),
    })
}

fn shard_report(path: &Path) -> Result<ShardReport, Error> {
    let shard = Shard::open(path)?;
    shard.verify()?;
    Ok(ShardReport {
        file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        tokens: shard.len(),
        vocabulary: shard.vocabulary(),
        ids_seen: frequencies(&shard).iter().filter(|&&n| n > 0).count(),
        documents: shard.documents(),
        bytes: shard.text_bytes(),
        corpus_hash: shard.source_hash(),
        tokenizer_hash: shard.tokenizer_hash(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::Network;
    use crate::fetch::Store;
    use crate::prepare::prepare_in;

    #[test]
    fn synthetic_has_context_worth_learning() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().into(), Vec::new());
        let config = DataConfig { corpus: "synthetic".into(), ..DataConfig::default() };
        let prepared = prepare_in(&config, &store, Network::Allowed).unwrap().unwrap();
        let report = describe(&prepared);
        assert_eq!(report.info.vocabulary, 3144);
        assert!(report.info.warnings.is_empty(), "{:?}", report.info.warnings);
        assert_eq!(report.info.near_duplicates_across_split, 0);
        let Baselines { unigram_ppl, bigram_ppl, .. } = report.baselines;
        assert!(bigram_ppl < 0.5 * unigram_ppl, "{report:?}");
        let mut folder = std::fs::read_dir(dir.path().join("shards")).unwrap().flatten().map(|e| e.path());
        let folder = folder.find(|p| p.is_dir()).unwrap();
        let PathReport::Shards { shards } = inspect_path(&folder).unwrap() else { panic!() };
        assert_eq!(
            shards.iter().map(|s| s.tokens as u64).sum::<u64>(),
            report.info.train.tokens + report.info.validation.tokens
        );
        assert!(
            matches!(inspect_path(&folder.join("train.bin")), Ok(PathReport::Shards { shards }) if shards.len() == 1)
        );
    }

    #[test]
    fn coverage_of_a_hand_example() {
        let coverage = coverage(&[3, 0, 1, 0], &[1, 2, 0, 1]);
        assert_eq!((coverage.ids_seen_in_train, coverage.validation_tokens_unseen), (2, 3));
        assert_eq!((coverage.share_seen_in_train, coverage.share_of_validation_unseen), (0.5, 0.75));
    }

    #[test]
    fn text_paths_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), "one two").unwrap();
        std::fs::write(dir.path().join("b.txt"), "one two").unwrap();
        let expected = PathReport::Text { documents: 2, bytes: 14, words: 4, exact_duplicates: 1, empty: 0 };
        assert_eq!(inspect_path(dir.path()).unwrap(), expected);
        assert!(inspect_path(&dir.path().join("none")).is_err());
        std::fs::write(dir.path().join("bad.bin"), "x").unwrap();
        assert!(inspect_path(&dir.path().join("bad.bin")).is_err());
    }
}
