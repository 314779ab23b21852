//! Loading a corpus, by name or from local files, as a list of documents.

use std::fs;
use std::path::Path;

use walkdir::WalkDir;

use crate::blocks::{CutAt, cut};
use crate::corpus::{self, DocumentRule, SYNTHETIC};
use crate::fetch::Store;
use crate::synthetic::synthetic_documents;
use crate::{DataConfig, Error};

/// One text that stands on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Where it comes from: a path, with a line or block number where a file holds several.
    pub name: String,
    /// Its text, unchanged but for what the corpus definition says.
    pub text: String,
}

/// Documents and how they were come by.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub corpus: String,
    pub fallback_reason: Option<String>,
    pub documents: Vec<Document>,
    pub warnings: Vec<String>,
}

/// Whether the network may be asked.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Network {
    Allowed,
    Never,
}

/// Loads `config.corpus`, whose sources are checked, or the fallback where that cannot be fetched. `None`: it would have to be fetched first.
pub(crate) fn load(config: &DataConfig, store: &Store, network: Network) -> Result<Option<Loaded>, Error> {
    let asked = match &store.fallback {
        Some(reason) if !config.fallback.is_empty() => Available::Failed(Error::Failed(reason.clone())),
        _ => available(&config.corpus, store, network)?,
    };
    let (corpus, fallback_reason) = match asked {
        Available::Yes => (&config.corpus, None),
        Available::NotYet => return Ok(None),
        Available::Failed(reason) if config.fallback.is_empty() => return Err(reason),
        Available::Failed(reason) => {
            tracing::warn!("using the fallback corpus \"{}\": {reason}", config.fallback);
            match available(&config.fallback, store, network)? {
                Available::Yes => (&config.fallback, Some(reason.to_string())),
                Available::NotYet => return Ok(None),
                Available::Failed(error) => return Err(error),
            }
        }
    };
    let mut documents = if corpus == SYNTHETIC {
        synthetic_documents()
    } else if corpus::is_known(corpus) {
        packaged(corpus, store)?
    } else {
        local(Path::new(corpus))?
    };
    let all = documents.len();
    documents.retain(|d| !d.text.trim().is_empty());
    let mut warnings = Vec::new();
    if documents.is_empty() {
        return Err(Error::Input(format!("the corpus {corpus} is empty: none of its {all} documents has any text")));
    }
    if documents.len() < all {
        warnings.push(format!("{} of {all} documents of {corpus} are empty and left out", all - documents.len()));
    }
    Ok(Some(Loaded { corpus: corpus.clone(), fallback_reason, documents, warnings }))
}

enum Available {
    Yes,
    NotYet,
    Failed(Error),
}

fn available(corpus: &str, store: &Store, network: Network) -> Result<Available, Error> {
    if corpus == SYNTHETIC || !corpus::is_known(corpus) {
        return Ok(Available::Yes);
    }
    if network == Network::Never {
        let here = corpus::definition(corpus)?.packages.iter().all(|p| store.has(p));
        return Ok(if here { Available::Yes } else { Available::NotYet });
    }
    match store.fetch(corpus) {
        Ok(_) => Ok(Available::Yes),
        Err(Error::Input(message)) => Err(Error::Input(message)),
        Err(error) => Ok(Available::Failed(error)),
    }
}

fn packaged(name: &str, store: &Store) -> Result<Vec<Document>, Error> {
    let mut documents = Vec::new();
    for package in &corpus::definition(name)?.packages {
        for (path, bytes) in store.read_files(package)? {
            let mut text = if package.latin1.iter().any(|p| corpus::matches(p, &path)) {
                latin1(&bytes)
            } else {
                utf8(bytes, &format!("{path} of {}@{}", package.package, package.version))?
            };
            if package.crlf_to_lf {
                text = text.replace("\r\n", "\n");
            }
            let name = format!("{}/{path}", package.id());
            match package.documents {
                DocumentRule::File => documents.push(Document { name, text }),
                DocumentRule::BlankLines => {
                    documents.extend(blocks(&name, &text, package.block_bytes, CutAt::BlankLine))
                }
            }
        }
    }
    Ok(documents)
}

/// A text as numbered documents of about `size` bytes.
pub(crate) fn blocks(name: &str, text: &str, size: usize, at: CutAt) -> Vec<Document> {
    let parts = cut(text, size, at).into_iter().enumerate();
    parts.map(|(i, text)| Document { name: format!("{name}#{}", i + 1), text: text.into() }).collect()
}

/// ISO-8859-1: every byte is the character of that number.
fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

fn utf8(bytes: Vec<u8>, what: &str) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::Input(format!(
            "{what} is not valid UTF-8: byte 0x{:02x} at offset {at}; convert the file to UTF-8 (for example with iconv)",
            e.as_bytes()[at]
        ))
    })
}

/// Loads a .txt file (one document), a .jsonl file (one document a line) or a folder of them (in order of their paths).
pub(crate) fn local(path: &Path) -> Result<Vec<Document>, Error> {
    if !path.exists() {
        return Err(Error::Input(format!("no such file or folder: {}", path.display())));
    }
    if !path.is_dir() && !path.is_file() {
        return Err(Error::Input(format!(
            "{} is no regular file and no folder; copy its text into a .txt file",
            path.display()
        )));
    }
    if !path.is_dir() {
        return file(path).unwrap_or_else(|| {
            Err(Error::Input(format!(
                "cannot read {} as text: expected a .txt file, a .jsonl file or a folder of them",
                path.display()
            )))
        });
    }
    let mut files = Vec::new();
    for entry in WalkDir::new(path).follow_links(true) {
        let entry = entry.map_err(|e| Error::Input(format!("cannot read the folder {}: {e}", path.display())))?;
        if entry.file_type().is_file() && kind(entry.path()).is_some() {
            files.push(entry.into_path());
        }
    }
    // By path and not in the order of the file system, which differs between machines.
    files.sort();
    if files.is_empty() {
        return Err(Error::Input(format!("the folder {} holds no .txt or .jsonl file", path.display())));
    }
    let mut documents = Vec::new();
    for path in &files {
        if let Some(loaded) = file(path) {
            documents.extend(loaded?);
        }
    }
    Ok(documents)
}

enum Kind {
    Text,
    JsonLines,
}

fn kind(path: &Path) -> Option<Kind> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "txt" => Some(Kind::Text),
        "jsonl" => Some(Kind::JsonLines),
        _ => None,
    }
}

/// The documents of one file; `None` for a kind that is not text.
fn file(path: &Path) -> Option<Result<Vec<Document>, Error>> {
    let kind = kind(path)?;
    Some(read(path).and_then(|text| match kind {
        Kind::Text => Ok(vec![Document { name: path.display().to_string(), text }]),
        Kind::JsonLines => json_lines(&text, path),
    }))
}

fn read(path: &Path) -> Result<String, Error> {
    let bytes = fs::read(path).map_err(|e| Error::Input(format!("cannot read {}: {e}", path.display())))?;
    let mut text = utf8(bytes, &path.display().to_string())?;
    // A byte order mark says how the file is encoded and is no part of its text.
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

fn json_lines(text: &str, path: &Path) -> Result<Vec<Document>, Error> {
    let mut documents = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |what: String| Error::Input(format!("{} line {}: {what}", path.display(), i + 1));
        let value: serde_json::Value = serde_json::from_str(line).map_err(|e| bad(format!("no JSON: {e}")))?;
        let text = match value.get("text") {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(_) => return Err(bad("the field \"text\" is no string".into())),
            None => return Err(bad("no field \"text\"; expected an object like {\"text\": \"...\"}".into())),
        };
        documents.push(Document { name: format!("{}:{}", path.display(), i + 1), text });
    }
    if documents.is_empty() {
        return Err(Error::Input(format!("{} holds no documents", path.display())));
    }
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, bytes: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let config = DataConfig { corpus: path.display().to_string(), ..DataConfig::default() };
        let store = Store::new(dir.path().join("cache"), Vec::new());
        match load(&config, &store, Network::Never) {
            Err(Error::Input(message)) if message.contains(name) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bad_files_are_refused_with_the_place() {
        assert!(refusal("a.txt", b"").contains("is empty"));
        assert!(refusal("a.txt", b" \n\t ").contains("is empty"));
        assert!(refusal("a.jsonl", b"\n\n").contains("holds no documents"));
        assert!(refusal("a.jsonl", b"{\"text\":\"x\"}\n\n{\"txt\":\"y\"}\n").contains("line 3: no field \"text\""));
        assert!(refusal("a.jsonl", b"{\"text\":7}").contains("line 1: the field \"text\" is no string"));
        assert!(refusal("a.jsonl", b"{\"text\":\"x\"").contains("line 1: no JSON"));
        assert!(refusal("a.txt", b"abc\xffdef").contains("byte 0xff at offset 3"));
        assert!(refusal("a.md", b"text").contains("expected a .txt file"));
    }

    #[test]
    fn folders_are_read_in_order_of_paths() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("z.txt"), "\u{feff}last").unwrap();
        fs::write(dir.path().join("sub/b.jsonl"), "{\"text\":\"one\"}\n{\"text\":\"two\"}\n").unwrap();
        fs::write(dir.path().join("ignored.md"), "no").unwrap();
        let texts: Vec<_> = local(dir.path()).unwrap().into_iter().map(|d| d.text).collect();
        assert_eq!(texts, ["one", "two", "last"]);
        let empty = tempfile::tempdir().unwrap();
        assert!(local(empty.path()).unwrap_err().to_string().contains("holds no .txt"));
        assert!(local(&empty.path().join("x.txt")).unwrap_err().to_string().contains("no such file"));
    }

    #[test]
    fn latin1_becomes_unicode_only_where_the_definition_says_so() {
        assert_eq!(latin1(b"caf\xe9"), "café");
        let error = utf8(b"caf\xe9".to_vec(), "package/a.txt").unwrap_err().to_string();
        assert!(error.contains("package/a.txt") && error.contains("0xe9 at offset 3"), "{error}");
    }

    #[test]
    fn the_fallback_is_used_and_told_when_nothing_can_be_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().into(), vec!["no-such-program".into()]);
        let mut config = DataConfig { fallback: SYNTHETIC.into(), ..DataConfig::default() };
        assert!(load(&config, &store, Network::Never).unwrap().is_none());
        let loaded = load(&config, &store, Network::Allowed).unwrap().unwrap();
        assert_eq!(loaded.corpus, SYNTHETIC);
        assert!(loaded.fallback_reason.unwrap().contains("no-such-program"));
        config.fallback.clear();
        assert!(matches!(load(&config, &store, Network::Allowed), Err(Error::Failed(_))));
    }

    #[test]
    fn a_forced_fallback_holds_although_the_corpus_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("here.txt");
        fs::write(&path, "here").unwrap();
        let store =
            Store { fallback: Some("the sweep had no npm".into()), ..Store::new(dir.path().into(), Vec::new()) };
        let config = |fallback: &str| DataConfig {
            corpus: path.display().to_string(),
            fallback: fallback.into(),
            ..DataConfig::default()
        };
        for network in [Network::Allowed, Network::Never] {
            let loaded = load(&config(SYNTHETIC), &store, network).unwrap().unwrap();
            assert_eq!(loaded.corpus, SYNTHETIC);
            assert_eq!(loaded.fallback_reason.as_deref(), Some("the sweep had no npm"));
        }
        let loaded = load(&config(""), &store, Network::Allowed).unwrap().unwrap();
        assert_eq!((loaded.documents[0].text.as_str(), loaded.fallback_reason), ("here", None));
    }

    #[test]
    fn offline_is_the_reason_told_for_a_corpus_that_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { offline: Some("on a train".into()), ..Store::new(dir.path().into(), Vec::new()) };
        let config = DataConfig { fallback: SYNTHETIC.into(), ..DataConfig::default() };
        let loaded = load(&config, &store, Network::Allowed).unwrap().unwrap();
        let reason = loaded.fallback_reason.unwrap();
        assert_eq!(loaded.corpus, SYNTHETIC);
        assert!(
            ["on a train", "TIEBREAK_OFFLINE", "data.fallback"].iter().all(|part| reason.contains(part)),
            "{reason}"
        );
        assert!(store.fetch("sotu").is_err(), "a fetch by name is kept from the network too");
    }
}
