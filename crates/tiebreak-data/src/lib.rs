//! Text in, tokens out: corpora, tokenizers, memory-mapped token shards, samplers and frequencies.
//!
//! [`prepare`] turns a [`DataConfig`] into a [`Prepared`] pair of shards (training, validation), which are cached by the
//! content of the text, the tokenizer and the split, so that a second call only opens files.

mod baseline;
mod blocks;
mod config;
mod corpus;
mod documents;
mod fetch;
mod files;
mod frequency;
mod hash;
mod inspect;
mod nearest;
mod prepare;
mod rng;
mod sampler;
mod shard;
mod split;
mod stream;
mod synthetic;
mod tokenizer;

pub use baseline::{Baselines, baselines};
pub use config::{DataConfig, TokenizerSpec};
pub use corpus::{CorpusEntry, corpora};
pub use documents::Document;
pub use fetch::{FORCED_FALLBACK, FetchReport, FetchedPackage, fetch};
pub use files::{Lock, cache_dir, check_writable, write_atomic};
pub use frequency::{by_rank, frequencies, frequency_groups, loss_deciles, seen_deciles};
pub use hash::sha256_hex;
pub use inspect::{Coverage, InspectReport, PathReport, ShardReport, inspect, inspect_path};
pub use nearest::{did_you_mean, nearest};
pub use prepare::{
    DataInfo, Prepared, SplitInfo, cached_training_split, check_context, corpus_hash_now, prepare, prepared_if_cached,
};
pub use rng::Stream;
pub use sampler::{Sampler, evaluation_windows, window_count};
pub use shard::{Shard, ShardWriter};
pub use stream::TextStream;
pub use synthetic::synthetic_documents;
pub use tokenizer::Tokenizer;

/// What went wrong, told in one sentence that names the file or key, what was found, what was expected and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bad usage, configuration or input, found before anything was written (exit code 2).
    #[error("{0}")]
    Input(String),
    /// A run or an I/O operation failed (exit code 1).
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// The same with the `place` (a file, an arm, an option) before an input's message; a failure keeps its words.
    pub fn at(self, place: impl std::fmt::Display) -> Self {
        match self {
            Self::Input(text) => Self::Input(format!("{place}: {text}")),
            failed => failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_input_errors_are_told_with_a_place() {
        assert_eq!(Error::Input("x".into()).at("run.toml"), Error::Input("run.toml: x".into()));
        assert_eq!(Error::Failed("x".into()).at("run.toml"), Error::Failed("x".into()));
    }
}
