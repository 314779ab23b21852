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
mod prepare;
mod rng;
mod sampler;
mod shard;
mod split;
mod synthetic;
mod tokenizer;

pub use baseline::{Baselines, baselines};
pub use config::{DataConfig, TokenizerSpec};
pub use corpus::{CorpusEntry, corpora};
pub use documents::{Document, OFFLINE};
pub use fetch::{FetchReport, FetchedPackage, fetch};
pub use files::{Lock, cache_dir, write_atomic};
pub use frequency::{frequencies, loss_deciles};
pub use inspect::{Coverage, InspectReport, PathReport, ShardReport, inspect, inspect_path};
pub use prepare::{DataInfo, Prepared, SplitInfo, check_context, prepare, prepared_if_cached};
pub use sampler::{Sampler, evaluation_windows, window_count};
pub use shard::{Shard, ShardWriter};
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
