//! From a configuration to two open shards, through a cache that is keyed by content.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::documents::{Loaded, Network, load};
use crate::fetch::{Store, replace_dir};
use crate::files::{Lock, failed, write_atomic};
use crate::hash::{hex, sha256, sha256_hex, unhex};
use crate::sampler::window_count;
use crate::split::split;
use crate::{DataConfig, Document, Error, Shard, ShardWriter, Tokenizer, TokenizerSpec};

/// Part of the key: raise it when the same text and configuration would give other shards.
const FORMAT: u32 = 1;

/// Documents encoded at a time, so that their ids need not all lie in memory.
const CHUNK: usize = 512;

/// One side of the split.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitInfo {
    /// Number of documents.
    pub documents: u64,
    /// Bytes of text, UTF-8.
    pub bytes: u64,
    /// Number of tokens, one end-of-text per document among them.
    pub tokens: u64,
}

/// What a run records about its data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataInfo {
    /// The corpus actually used.
    pub corpus: String,
    /// Why it is the fallback, if it is.
    pub fallback_reason: Option<String>,
    /// SHA-256 over the documents in their order, hexadecimal.
    pub corpus_hash: String,
    /// The tokenizer asked for.
    pub tokenizer: String,
    /// SHA-256 of the tokenizer, hexadecimal.
    pub tokenizer_hash: String,
    /// Number of ids.
    pub vocabulary: usize,
    /// The training side.
    pub train: SplitInfo,
    /// The held-out side.
    pub validation: SplitInfo,
    /// Documents whose bytes repeat an earlier document's. A split by content puts all copies on one side.
    pub exact_duplicates: usize,
    /// Validation documents that equal a training document but for case and white space.
    pub near_duplicates_across_split: usize,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Tokenised data, ready to be read.
#[derive(Debug)]
pub struct Prepared {
    /// Tokens to train on.
    pub train: Shard,
    /// Tokens held out.
    pub validation: Shard,
    /// The tokenizer they were made with.
    pub tokenizer: Tokenizer,
    /// Tokens per window, from the configuration.
    pub context_length: usize,
    /// What they are.
    pub info: DataInfo,
}

/// Loads (and where needed fetches) the corpus, splits it, trains or loads the tokenizer, writes the shards into the cache and opens
/// them. A second call only reads and hashes the text and opens the shards; two processes never build the same thing at once, and
/// what is damaged is built anew. Warnings are logged.
///
/// # Errors
/// [`Error::Input`] for a bad configuration, text or tokenizer, or a split shorter than one window; [`Error::Failed`] if the corpus
/// cannot be fetched (and there is no fallback) or the cache cannot be written.
pub fn prepare(config: &DataConfig) -> Result<Prepared, Error> {
    let store = Store::of_user()?;
    match prepare_in(config, &store, Network::Allowed)? {
        Some(prepared) => {
            for warning in &prepared.info.warnings {
                tracing::warn!("{}: {warning}", prepared.info.corpus);
            }
            Ok(prepared)
        }
        None => Err(Error::Failed(format!("the corpus {} is not in the cache", config.corpus))),
    }
}

/// As [`prepare`], if it needs neither the network nor a tokenizer's training nor any tokenising: `None` if it does.
///
/// # Errors
/// As [`prepare`].
pub fn prepared_if_cached(config: &DataConfig) -> Result<Option<Prepared>, Error> {
    prepare_in(config, &Store::of_user()?, Network::Never)
}

/// The hash that [`DataInfo::corpus_hash`] would be now; `None` if the corpus would have to be fetched first.
///
/// # Errors
/// [`Error::Input`] for a text that is missing or none.
pub fn corpus_hash_now(config: &DataConfig) -> Result<Option<String>, Error> {
    config.check_sources()?;
    let loaded = load(config, &Store::of_user()?, Network::Never)?;
    Ok(loaded.map(|loaded| hex(&corpus_hash(&loaded.documents))))
}

/// The training split as it was prepared from the text with the hash `corpus_hash` and with `tokenizer`, if the cache holds
/// it still. The text itself is not needed.
pub fn cached_training_split(config: &DataConfig, corpus_hash: &str, tokenizer: &Tokenizer) -> Option<Shard> {
    cached_training_split_in(config, &Store::of_user().ok()?, corpus_hash, tokenizer)
}

fn cached_training_split_in(
    config: &DataConfig,
    store: &Store,
    corpus_hash: &str,
    tokenizer: &Tokenizer,
) -> Option<Shard> {
    let key = match TokenizerSpec::parse(&config.tokenizer).ok()? {
        TokenizerSpec::File(_) => tokenizer.hash(),
        _ => &config.tokenizer,
    };
    let shard = Shard::open(&entry_folder(store, corpus_hash, key, config).join("train.bin")).ok()?;
    let fits = shard.source_hash() == corpus_hash && shard.tokenizer_hash() == tokenizer.hash();
    (fits && shard.verify().is_ok()).then_some(shard)
}

/// Where the shards of a text, a tokenizer and a split lie.
fn entry_folder(store: &Store, corpus_hash: &str, tokenizer_key: &str, config: &DataConfig) -> PathBuf {
    let fraction = config.validation_fraction.to_bits();
    let key = sha256_hex(format!("{FORMAT} {corpus_hash} {tokenizer_key} {fraction:016x}").as_bytes());
    store.root.join("shards").join(&key[..16])
}

/// Checks that both splits hold at least one window: `context` inputs and the target of the last.
///
/// # Errors
/// [`Error::Input`] naming the split and the keys to change.
pub fn check_context(train: usize, validation: usize, context: usize) -> Result<(), Error> {
    for (name, tokens) in [("training", train), ("validation", validation)] {
        if window_count(tokens, context) == 0 {
            return Err(Error::Input(format!(
                "the {name} split has {tokens} tokens, one window of data.context_length = {context} needs {}: shorten \
                 data.context_length, change data.validation_fraction or use more text",
                context + 1
            )));
        }
    }
    Ok(())
}

pub(crate) fn prepare_in(config: &DataConfig, store: &Store, network: Network) -> Result<Option<Prepared>, Error> {
    config.validate()?;
    config.check_sources()?;
    let Some(mut loaded) = load(config, store, network)? else { return Ok(None) };
    let corpus_hash = corpus_hash(&loaded.documents);
    let spec = TokenizerSpec::parse(&config.tokenizer)?;
    // A tokenizer.json counts by what it holds and not by its name.
    let tokenizer_key = match &spec {
        TokenizerSpec::File(path) => Tokenizer::open(path)?.hash().to_string(),
        _ => config.tokenizer.clone(),
    };
    let entry = Entry { folder: entry_folder(store, &hex(&corpus_hash), &tokenizer_key, config), spec, corpus_hash };

    let prepared = match entry.open(config, &loaded) {
        Ok(found) => found,
        Err(damage) => {
            tracing::warn!("the cached shards are not used: {damage}");
            None
        }
    };
    let prepared = match prepared {
        Some(prepared) => prepared,
        None if network == Network::Never => return Ok(None),
        None => {
            store.create_dir(&store.root.join("shards"))?;
            let _lock = Lock::acquire(&entry.folder.with_extension("lock"))?;
            // Another process may have built it in the meantime.
            match entry.open(config, &loaded) {
                Ok(Some(prepared)) => prepared,
                _ => {
                    entry.build(config, &loaded.corpus, std::mem::take(&mut loaded.documents))?;
                    entry
                        .open(config, &loaded)?
                        .ok_or_else(|| failed("open", &entry.folder, "it was removed while it was made"))?
                }
            }
        }
    };
    check_context(prepared.train.len(), prepared.validation.len(), config.context_length)?;
    Ok(Some(prepared))
}

/// Over the documents in their order, because the order shapes the token stream.
fn corpus_hash(documents: &[Document]) -> [u8; 32] {
    let hashes: Vec<[u8; 32]> = documents.par_iter().map(|d| sha256(d.text.as_bytes())).collect();
    sha256(&hashes.concat())
}

/// One folder of the cache: train.bin, validation.bin, info.json and, where there is one, tokenizer.json.
struct Entry {
    folder: PathBuf,
    spec: TokenizerSpec,
    corpus_hash: [u8; 32],
}

impl Entry {
    /// Opens what is cached; `None` if nothing is, an error if it is damaged.
    fn open(&self, config: &DataConfig, loaded: &Loaded) -> Result<Option<Prepared>, Error> {
        let info_path = self.folder.join("info.json");
        if !self.folder.exists() {
            return Ok(None);
        }
        let info = fs::read(&info_path).map_err(|e| failed("read", &info_path, e))?;
        let mut info: DataInfo = serde_json::from_slice(&info).map_err(|e| failed("read", &info_path, e))?;
        let tokenizer = match self.spec {
            TokenizerSpec::Bytes => Tokenizer::bytes(),
            TokenizerSpec::Gpt2 => Tokenizer::gpt2(),
            TokenizerSpec::Bpe(_) | TokenizerSpec::File(_) => Tokenizer::open(&self.folder.join("tokenizer.json"))?,
        };
        let open = |name: &str, expected: &SplitInfo| {
            let path = self.folder.join(name);
            let shard = Shard::open(&path)?;
            shard.verify()?;
            let fits = shard.source_hash() == hex(&self.corpus_hash)
                && shard.tokenizer_hash() == tokenizer.hash()
                && shard.vocabulary() == tokenizer.vocabulary()
                && shard.len() as u64 == expected.tokens;
            if fits { Ok(shard) } else { Err(failed("use", &path, "it belongs to other text or another tokenizer")) }
        };
        let train = open("train.bin", &info.train)?;
        let validation = open("validation.bin", &info.validation)?;
        info.corpus = loaded.corpus.clone();
        info.fallback_reason = loaded.fallback_reason.clone();
        info.tokenizer = config.tokenizer.clone();
        info.warnings.splice(0..0, loaded.warnings.iter().cloned());
        Ok(Some(Prepared { train, validation, tokenizer, context_length: config.context_length, info }))
    }

    /// Makes the folder, whole or not at all.
    fn build(&self, config: &DataConfig, corpus: &str, documents: Vec<Document>) -> Result<(), Error> {
        let started = Instant::now();
        let split = split(documents, config.validation_fraction)?;
        tracing::info!("tokenising {corpus} with {}", config.tokenizer);
        let tokenizer = match &self.spec {
            TokenizerSpec::Bytes => Tokenizer::bytes(),
            TokenizerSpec::Gpt2 => Tokenizer::gpt2(),
            TokenizerSpec::Bpe(vocabulary) => Tokenizer::train(&split.train, *vocabulary)?,
            TokenizerSpec::File(path) => Tokenizer::open(path)?,
        };
        let mut warnings = split.warnings;
        if let Some(warning) = lossy(&tokenizer, &split.train) {
            warnings.push(warning);
        }
        let shards = self.folder.parent().unwrap_or(Path::new("."));
        let temporary = tempfile::Builder::new()
            .prefix(".tmp-")
            .tempdir_in(shards)
            .map_err(|e| failed("create a folder in", shards, e))?;
        let write =
            |name: &str, documents: &[Document]| self.write(&temporary.path().join(name), documents, &tokenizer);
        let info = DataInfo {
            corpus: corpus.into(),
            fallback_reason: None,
            corpus_hash: hex(&self.corpus_hash),
            tokenizer: config.tokenizer.clone(),
            tokenizer_hash: tokenizer.hash().into(),
            vocabulary: tokenizer.vocabulary(),
            train: write("train.bin", &split.train)?,
            validation: write("validation.bin", &split.validation)?,
            exact_duplicates: split.exact_duplicates,
            near_duplicates_across_split: split.near_duplicates_across,
            warnings,
        };
        if let Some(json) = tokenizer.json() {
            write_atomic(&temporary.path().join("tokenizer.json"), json)?;
        }
        let json = serde_json::to_vec_pretty(&info).map_err(|e| failed("write", &self.folder, e))?;
        write_atomic(&temporary.path().join("info.json"), &json)?;
        replace_dir(temporary, &self.folder)?;
        tracing::info!(
            "{} training and {} validation tokens of {} ids in {:.1} s",
            info.train.tokens,
            info.validation.tokens,
            info.vocabulary,
            started.elapsed().as_secs_f64()
        );
        Ok(())
    }

    fn write(&self, path: &Path, documents: &[Document], tokenizer: &Tokenizer) -> Result<SplitInfo, Error> {
        let tokenizer_hash =
            unhex(tokenizer.hash()).ok_or_else(|| failed("write", path, "the tokenizer has no SHA-256"))?;
        let mut shard = ShardWriter::create(path, tokenizer.vocabulary(), self.corpus_hash, tokenizer_hash)?;
        let mut info = SplitInfo::default();
        for chunk in documents.chunks(CHUNK) {
            for (document, ids) in chunk.iter().zip(tokenizer.encode_documents(chunk)?) {
                shard.push(&ids, document.text.len())?;
                info.documents += 1;
                info.bytes += document.text.len() as u64;
                info.tokens += ids.len() as u64;
            }
        }
        shard.finish()?;
        Ok(info)
    }
}

/// A warning if a tokenizer.json loses more than white space and case of the first documents.
fn lossy(tokenizer: &Tokenizer, documents: &[Document]) -> Option<String> {
    tokenizer.json()?;
    let essence =
        |text: &str| text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect::<String>();
    let sample = documents.iter().take(20);
    let changed = sample.filter(|d| essence(&tokenizer.decode(&tokenizer.encode(&d.text))) != essence(&d.text)).count();
    (changed > 0).then(|| {
        format!("the tokenizer does not keep the whole text: {changed} of the first 20 training documents decode to another text")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(dir: &Path, documents: usize) -> DataConfig {
        let path = dir.join("text.jsonl");
        let line = |i: usize| format!("{{\"text\":\"Document {i} has the words {} and {}.\"}}\n", i * 7, i * 13);
        fs::write(&path, (0..documents).map(line).collect::<String>()).unwrap();
        DataConfig {
            corpus: path.display().to_string(),
            tokenizer: "bpe:280".into(),
            context_length: 8,
            validation_fraction: 0.2,
            ..DataConfig::default()
        }
    }

    fn store(dir: &Path) -> Store {
        Store::new(dir.join("cache"), vec!["no-such-program".into()])
    }

    #[test]
    fn shards_hold_the_text_and_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let (config, store) = (corpus(dir.path(), 200), store(dir.path()));
        assert!(prepare_in(&config, &store, Network::Never).unwrap().is_none());
        let first = prepare_in(&config, &store, Network::Allowed).unwrap().unwrap();
        let info = &first.info;
        assert_eq!(info.train.documents + info.validation.documents, 200);
        assert_eq!((info.vocabulary, first.tokenizer.vocabulary()), (280, 280));
        assert_eq!(first.train.len() as u64, info.train.tokens);
        // Every document ends with end-of-text, and the text comes back.
        let ids = first.validation.tokens(0..first.validation.len());
        let end = first.tokenizer.end_of_text();
        assert_eq!(ids.iter().filter(|&&id| id == end).count() as u64, info.validation.documents);
        assert_eq!(*ids.last().unwrap(), end);
        let text = first.tokenizer.decode(&ids);
        assert_eq!(text.len() as u64, info.validation.bytes);
        assert!(text.starts_with("Document ") && text.ends_with('.'));

        let cached = prepare_in(&config, &store, Network::Never).unwrap().unwrap();
        assert_eq!(cached.info, first.info);
        // The training split is found without the text, and by nothing but its own tokenizer and text.
        let split = |corpus: &str, tokenizer| cached_training_split_in(&config, &store, corpus, tokenizer);
        let found = split(&first.info.corpus_hash, &first.tokenizer).unwrap();
        assert_eq!(found.tokens(0..found.len()), first.train.tokens(0..first.train.len()));
        assert!(split(&first.info.tokenizer_hash, &first.tokenizer).is_none());
        assert!(split(&first.info.corpus_hash, &Tokenizer::bytes()).is_none());
        // Another split, tokenizer or text is another entry.
        for other in [
            DataConfig { validation_fraction: 0.3, ..config.clone() },
            DataConfig { tokenizer: "bytes".into(), ..config.clone() },
        ] {
            assert!(prepare_in(&other, &store, Network::Never).unwrap().is_none());
        }
        corpus(dir.path(), 201);
        assert!(prepare_in(&config, &store, Network::Never).unwrap().is_none());
    }

    #[test]
    fn damaged_entries_are_built_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (config, store) = (corpus(dir.path(), 100), store(dir.path()));
        let first = prepare_in(&config, &store, Network::Allowed).unwrap().unwrap();
        let shards = store.root.join("shards");
        let folder = fs::read_dir(&shards).unwrap().flatten().map(|e| e.path()).find(|p| p.is_dir()).unwrap();
        for name in ["train.bin", "validation.bin", "info.json", "tokenizer.json"] {
            let path = folder.join(name);
            let whole = fs::read(&path).unwrap();
            // Replaced and not cut in place, as `first` still maps the old file.
            fs::remove_file(&path).unwrap();
            fs::write(&path, &whole[..whole.len() - 1]).unwrap();
            assert!(prepare_in(&config, &store, Network::Never).unwrap().is_none(), "{name}");
            let again = prepare_in(&config, &store, Network::Allowed).unwrap().unwrap();
            assert_eq!(again.info, first.info, "{name}");
            assert_eq!(fs::read(&path).unwrap(), whole, "{name}");
        }
        let left: Vec<_> = fs::read_dir(&shards).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left.len(), 2, "only the entry and its lock: {left:?}");
    }

    #[test]
    fn a_tokenizer_file_counts_by_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let (config, store) = (corpus(dir.path(), 100), store(dir.path()));
        let trained = prepare_in(&config, &store, Network::Allowed).unwrap().unwrap();
        let paths = ["a.json", "b.json"].map(|name| dir.path().join(name));
        paths.iter().for_each(|path| fs::write(path, trained.tokenizer.json().unwrap()).unwrap());
        let with = |path: &Path| DataConfig { tokenizer: path.display().to_string(), ..config.clone() };
        let from_file = prepare_in(&with(&paths[0]), &store, Network::Allowed).unwrap().unwrap();
        assert_eq!(from_file.info.tokenizer_hash, trained.info.tokenizer_hash);
        assert_eq!(from_file.train.tokens(0..50), trained.train.tokens(0..50));
        assert!(prepare_in(&with(&paths[1]), &store, Network::Never).unwrap().is_some());
    }

    #[test]
    fn splits_shorter_than_a_window_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (config, store) = (corpus(dir.path(), 100), store(dir.path()));
        let long = DataConfig { context_length: 100_000, ..config };
        let error = prepare_in(&long, &store, Network::Allowed).unwrap_err();
        assert!(
            matches!(&error, Error::Input(m) if m.contains("100001") && m.contains("data.context_length")),
            "{error}"
        );
        assert!(check_context(9, 9, 8).is_ok());
        assert!(check_context(9, 8, 8).unwrap_err().to_string().contains("validation split has 8 tokens"));
    }
}
