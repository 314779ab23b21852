//! What a run wrote down about itself, checked before it is believed.

use std::path::Path;

use serde::Deserialize;
use tiebreak_data::{
    DataInfo, Error, Prepared, Tokenizer, TokenizerSpec, cached_training_split, corpus_hash_now, frequencies, prepare,
};

use crate::config::{self, RunConfig};
use crate::device::DeviceKind;
use crate::folder::RunFolder;

/// Keys that the identity does not cover and that say what is read: without them a default would stand in silently.
const NEEDED: [&str; 4] = ["name", "data.corpus", "data.fallback", "data.tokenizer"];

/// A run's folder, and its configuration and data as they were when it was trained.
#[derive(Debug)]
pub struct Records {
    /// The folder.
    pub folder: RunFolder,
    /// The resolved configuration.
    pub config: RunConfig,
    /// Text and tokenizer.
    pub data: DataInfo,
    /// The run's identity.
    pub identity: String,
}

/// `env.json`, as far as it is read here.
#[derive(Deserialize)]
struct Environment {
    device: String,
    data: DataInfo,
}

impl Records {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// [`Error::Input`] if it is no run, a file cannot be read, or `config.toml` and `env.json` do not give the identity that
    /// `status.json` holds.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let name = folder.display();
        if !RunFolder::is_run(folder) {
            return Err(Error::Input(format!(
                "{name}: no run (it lacks config.toml or status.json); give a run's folder, as `train` prints it"
            )));
        }
        let folder = RunFolder(folder.to_path_buf());
        let path = folder.config();
        let written = config::flatten(&config::read_table(&path)?);
        if let Some(key) = NEEDED.iter().find(|key| !written.contains_key(**key)) {
            return Err(Error::Input(format!(
                "{}: lacks {key}, and a run writes every key: not the file that the run wrote; put that back",
                path.display()
            )));
        }
        let mut config = config::load(&path, &[])?.config;
        let env = folder.env();
        let unreadable = |e: &dyn std::fmt::Display| {
            Error::Input(format!("{}: {e}: not a run's record; train the run again", env.display()))
        };
        let bytes = std::fs::read(&env).map_err(|e| unreadable(&e))?;
        let Environment { device, data } = serde_json::from_slice(&bytes).map_err(|e| unreadable(&e))?;
        let kind = DeviceKind::ALL.into_iter().find(|kind| kind.name() == device);
        let kind = kind.ok_or_else(|| unreadable(&format!("device {device:?} is unknown")))?;
        let (found, status) = (config::identity(&config, &data, kind), folder.status()?);
        if config.device == "auto" {
            // What it was then.
            config.device = device;
        }
        match status {
            Some(status) if status.identity == found => Ok(Self { folder, config, data, identity: found }),
            status => Err(Error::Input(format!(
                "{}: not what the run was trained with: its keys and env.json make the identity {found:.8}, status.json \
                 holds {:.8}; put both files back as the run wrote them, or train it again",
                path.display(),
                status.map_or_else(|| "none".into(), |status| status.identity)
            ))),
        }
    }

    /// The run's tokenizer; the text is needed for those of runs that did not keep theirs.
    ///
    /// # Errors
    /// [`Error::Input`] if it is not the one that the run was trained with.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        let kept = self.folder.tokenizer();
        let tokenizer = match TokenizerSpec::parse(&self.config.data.tokenizer)? {
            TokenizerSpec::Bytes => Tokenizer::bytes(),
            TokenizerSpec::Gpt2 => Tokenizer::gpt2(),
            _ if kept.is_file() => Tokenizer::open(&kept)?,
            _ => text(&self.folder, &self.config, &self.data)?.tokenizer,
        };
        if tokenizer.hash() != self.data.tokenizer_hash {
            return Err(Error::Input(format!(
                "{}: not the tokenizer that the run was trained with ({:.12} instead of {:.12}), so ids would stand for other \
                 text; put it back, or train the run again",
                kept.display(),
                tokenizer.hash(),
                self.data.tokenizer_hash
            )));
        }
        Ok(tokenizer)
    }

    /// How often the run's training text holds each id; `None`, and a warning, if that cannot be known any more. A text that
    /// has changed since is warned of, and not counted.
    pub fn counts(&self, tokenizer: &Tokenizer) -> Option<Vec<u64>> {
        let (run, config) = (self.folder.0.display(), &self.config.data);
        let now = corpus_hash_now(config);
        let unchanged = matches!(&now, Ok(Some(hash)) if *hash == self.data.corpus_hash);
        if let (Ok(Some(hash)), false) = (&now, unchanged) {
            tracing::warn!(
                "{run}: data.corpus = {:?} has changed since the run was trained on it ({hash:.12} instead of {:.12})",
                config.corpus,
                self.data.corpus_hash
            );
        }
        if let Some(shard) = cached_training_split(config, &self.data.corpus_hash, tokenizer) {
            return Some(frequencies(&shard));
        }
        let again = if unchanged { prepare(config).ok() } else { None };
        if again.is_none() {
            tracing::warn!(
                "{run}: the text that the run was trained on is not here, so it is not known which tokens never occur in it"
            );
        }
        again.map(|data| frequencies(&data.train))
    }
}

/// The text that a run was trained on.
///
/// # Errors
/// [`Error::Input`] if it has changed or gone, naming the run; else as [`prepare`].
pub fn text(folder: &RunFolder, config: &RunConfig, recorded: &DataInfo) -> Result<Prepared, Error> {
    let run = folder.0.display();
    let data = prepare(&config.data).map_err(|e| match e {
        Error::Input(what) => Error::Input(format!("{run}: the text that the run was trained on is needed: {what}")),
        Error::Failed(what) => Error::Failed(format!("{run}: the text that the run was trained on is needed: {what}")),
    })?;
    for (key, value, now, then) in [
        ("data.corpus", &config.data.corpus, &data.info.corpus_hash, &recorded.corpus_hash),
        ("data.tokenizer", &config.data.tokenizer, &data.info.tokenizer_hash, &recorded.tokenizer_hash),
    ] {
        if now != then {
            return Err(Error::Input(format!(
                "{run}: {key} = {value:?} is no longer what the run was trained on ({now:.12} instead of {then:.12}); put it \
                 back, or train the run again"
            )));
        }
    }
    Ok(data)
}
