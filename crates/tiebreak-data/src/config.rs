//! The `[data]` section of a run configuration.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::tokenizer::{BYTES_IDS, GPT2_IDS};
use crate::{Error, Tokenizer, corpus, did_you_mean};

/// `[data]`: which text, which tokenizer, how it is windowed and split. Unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// A name in configs/corpora, `synthetic`, or a path: .txt, .jsonl (field `text`), a folder of them.
    pub corpus: String,
    /// Corpus to use if the first cannot be fetched; empty: none.
    pub fallback: String,
    /// `gpt2`, `bytes`, `bpe:N`, or a path to a tokenizer.json.
    pub tokenizer: String,
    /// Tokens per window (T).
    pub context_length: usize,
    /// Share of the documents, by content hash, that is held out; between 0 and 1.
    pub validation_fraction: f64,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            corpus: "sotu".into(),
            fallback: String::new(),
            tokenizer: "bpe:3144".into(),
            context_length: 128,
            validation_fraction: 0.05,
        }
    }
}

/// Which tokenizer `data.tokenizer` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerSpec {
    /// GPT-2's, 50,257 ids.
    Gpt2,
    /// One id per byte and end-of-text, 257 ids.
    Bytes,
    /// Byte-level BPE trained on the training split; the number counts all ids.
    Bpe(usize),
    /// A tokenizer.json.
    File(PathBuf),
}

/// 256 bytes and end-of-text: the smallest byte-level vocabulary.
const SMALLEST_BPE: usize = BYTES_IDS;
/// Tables of more rows are no vocabulary, but a mistake.
pub(crate) const LARGEST_BPE: usize = 1_000_000;

impl TokenizerSpec {
    /// Reads `gpt2`, `bytes`, `bpe:N` or a path.
    ///
    /// # Errors
    /// [`Error::Input`] for an empty value or a number that is none or out of range.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "" => Err(Error::Input(
                "data.tokenizer is empty: expected gpt2, bytes, bpe:N or a path to a tokenizer.json".into(),
            )),
            "gpt2" => Ok(Self::Gpt2),
            "bytes" => Ok(Self::Bytes),
            _ => match text.strip_prefix("bpe:") {
                None => Ok(Self::File(text.into())),
                Some(number) => match number.parse::<usize>() {
                    // The number's text is kept in the configuration: one spelling for one tokenizer.
                    Ok(n) if (SMALLEST_BPE..=LARGEST_BPE).contains(&n) && number == n.to_string() => Ok(Self::Bpe(n)),
                    _ => Err(Error::Input(format!(
                        "data.tokenizer = \"{text}\": expected bpe:N with a whole number N from {SMALLEST_BPE} (256 bytes and \
                         end-of-text) to {LARGEST_BPE}"
                    ))),
                },
            },
        }
    }

    /// Number of ids, end-of-text among them. Only a tokenizer.json has to be read for it.
    ///
    /// # Errors
    /// [`Error::Input`] for a tokenizer.json that is missing or none.
    pub fn vocabulary(&self) -> Result<usize, Error> {
        Ok(match self {
            Self::Gpt2 => GPT2_IDS,
            Self::Bytes => BYTES_IDS,
            Self::Bpe(ids) => *ids,
            Self::File(path) => Tokenizer::open(path)?.vocabulary(),
        })
    }
}

impl DataConfig {
    /// Number of ids of the tokenizer, without preparing the data.
    ///
    /// # Errors
    /// As [`TokenizerSpec::parse`] and [`TokenizerSpec::vocabulary`].
    pub fn vocabulary(&self) -> Result<usize, Error> {
        TokenizerSpec::parse(&self.tokenizer)?.vocabulary()
    }

    /// Checks everything that can be checked without touching a file.
    ///
    /// # Errors
    /// [`Error::Input`] naming the key.
    pub fn validate(&self) -> Result<(), Error> {
        if self.corpus.is_empty() {
            return Err(Error::Input(format!("data.corpus is empty: expected {}", corpus::expected())));
        }
        TokenizerSpec::parse(&self.tokenizer)?;
        if self.context_length == 0 || self.context_length > 1 << 20 {
            return Err(Error::Input(format!(
                "data.context_length = {}: expected a whole number from 1 to {}",
                self.context_length,
                1 << 20
            )));
        }
        // Written so that NaN fails as well.
        if !(self.validation_fraction > 0.0 && self.validation_fraction < 1.0) {
            return Err(Error::Input(format!(
                "data.validation_fraction = {}: expected a number above 0 and below 1",
                self.validation_fraction
            )));
        }
        Ok(())
    }

    /// Makes every value that is a path, and not a name, absolute; relative ones are relative to `base`, the configuration's folder.
    pub fn resolve_paths(&mut self, base: &Path) {
        let base = std::path::absolute(base).unwrap_or_else(|_| base.to_path_buf());
        let absolute = |value: &mut String| *value = tidy(&base.join(&value)).to_string_lossy().into_owned();
        for value in [&mut self.corpus, &mut self.fallback] {
            if !value.is_empty() && !corpus::is_known(value) {
                absolute(value);
            }
        }
        if let Ok(TokenizerSpec::File(_)) = TokenizerSpec::parse(&self.tokenizer) {
            absolute(&mut self.tokenizer);
        }
    }

    /// Checks that what is named exists: a misspelt corpus or tokenizer is told the nearest known name. Call it after
    /// [`resolve_paths`](Self::resolve_paths). [`prepare`](crate::prepare) does so itself.
    ///
    /// # Errors
    /// [`Error::Input`] naming the key.
    pub fn check_sources(&self) -> Result<(), Error> {
        corpus::check_exists("data.corpus", &self.corpus)?;
        if !self.fallback.is_empty() {
            corpus::check_exists("data.fallback", &self.fallback)?;
        }
        if let TokenizerSpec::File(path) = TokenizerSpec::parse(&self.tokenizer)?
            && !path.is_file()
        {
            let hint = did_you_mean(&name_of(&self.tokenizer), ["gpt2", "bytes", "bpe:3144"].into_iter());
            return Err(Error::Input(format!(
                "data.tokenizer = \"{}\": no such file{hint}; expected gpt2, bytes, bpe:N or a path to a tokenizer.json",
                self.tokenizer
            )));
        }
        Ok(())
    }
}

/// `a/./b/../c` without the dots, as far as names tell.
fn tidy(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// The last part of a path, as the user may have typed it.
pub(crate) fn name_of(value: &str) -> String {
    Path::new(value).file_name().map_or_else(|| value.to_string(), |n| n.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(config: DataConfig) -> String {
        match config.validate() {
            Err(Error::Input(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ranges_name_their_key() {
        let base = DataConfig::default();
        assert!(base.validate().is_ok());
        assert!(message(DataConfig { context_length: 0, ..base.clone() }).contains("data.context_length = 0"));
        for bad in [f64::NAN, 0.0, 1.0, -0.1, f64::INFINITY] {
            let config = DataConfig { validation_fraction: bad, ..base.clone() };
            assert!(message(config).contains("data.validation_fraction"));
        }
        for bad in ["bpe:x", "bpe:", "bpe:+300", "bpe:0300", "bpe:256", "bpe:-1", "bpe:99999999999", ""] {
            assert!(message(DataConfig { tokenizer: bad.into(), ..base.clone() }).contains("data.tokenizer"), "{bad}");
        }
        assert!(message(DataConfig { corpus: String::new(), ..base }).contains("data.corpus"));
    }

    #[test]
    fn unknown_keys_are_refused_and_defaults_filled_in() {
        assert!(toml::from_str::<DataConfig>("corpsu = \"sotu\"").unwrap_err().to_string().contains("corpsu"));
        let config: DataConfig = toml::from_str("tokenizer = \"gpt2\"").unwrap();
        assert_eq!(config, DataConfig { tokenizer: "gpt2".into(), ..DataConfig::default() });
    }

    #[test]
    fn vocabularies_are_those_of_the_tokenizers() {
        let ids = |tokenizer: &str| DataConfig { tokenizer: tokenizer.into(), ..DataConfig::default() }.vocabulary();
        assert_eq!(ids("gpt2"), Ok(Tokenizer::gpt2().vocabulary()));
        assert_eq!(ids("bytes"), Ok(Tokenizer::bytes().vocabulary()));
        assert_eq!(ids("bpe:300"), Ok(300));
        assert!(matches!(ids("none.json"), Err(Error::Input(m)) if m.contains("none.json")));
    }

    #[test]
    fn only_paths_become_absolute() {
        let mut config = DataConfig {
            corpus: "../texts/a.txt".into(),
            fallback: "synthetic".into(),
            tokenizer: "./tok.json".into(),
            ..DataConfig::default()
        };
        config.resolve_paths(Path::new("/base/runs"));
        assert_eq!(config.corpus, "/base/texts/a.txt");
        assert_eq!(config.fallback, "synthetic");
        assert_eq!(config.tokenizer, "/base/runs/tok.json");
        let mut names = DataConfig { tokenizer: "bytes".into(), ..DataConfig::default() };
        let before = names.clone();
        names.resolve_paths(Path::new("/base"));
        assert_eq!(names, before);
    }

    #[test]
    fn a_misspelt_name_is_told_the_nearest() {
        let mut config = DataConfig { corpus: "sotuu".into(), ..DataConfig::default() };
        config.resolve_paths(Path::new("/nowhere"));
        let error = config.check_sources().unwrap_err().to_string();
        assert!(error.contains("did you mean \"sotu\"") && error.contains("/nowhere/sotuu"), "{error}");
        let config = DataConfig { tokenizer: "gtp2".into(), ..DataConfig::default() };
        let error = config.check_sources().unwrap_err().to_string();
        assert!(error.contains("did you mean \"gpt2\""), "{error}");
    }
}
