//! Texts of `config` and `data`.

use std::fmt::Write;
use std::path::Path;

use comfy_table::{Table, presets};
use tiebreak_data::{FetchReport, Prepared};
use tiebreak_sweep::Sweep;
use tiebreak_train::Error;
use tiebreak_train::config::{self, Loaded, Origin, flatten, read_table};

fn is_sweep(file: &Path) -> Result<bool, Error> {
    Ok(read_table(file)?.contains_key("sweep"))
}

/// Loads a run or sweep file as running it would, short of its data.
pub fn check(file: &Path, sets: &[String]) -> Result<(), Error> {
    if is_sweep(file)? { Sweep::load(file, sets).map(|_| ()) } else { config::load(file, sets).map(|_| ()) }
}

/// Every key, its value and its origin; for a sweep, its cells.
pub fn show(file: &Path, sets: &[String]) -> Result<String, Error> {
    if is_sweep(file)? {
        return Sweep::load(file, sets)?.describe();
    }
    let Loaded { config, origins } = config::load(file, sets)?;
    let table = match toml::Value::try_from(&config) {
        Ok(toml::Value::Table(table)) => table,
        other => return Err(Error::Failed(format!("the configuration does not serialise: {other:?}"))),
    };
    let flat = flatten(&table);
    let line = |key: &str, value: &toml::Value| {
        let origin = match origins.get(key) {
            Some(Origin::File) => file.display().to_string(),
            Some(Origin::Set) => "--set".into(),
            Some(Origin::Default) | None => "default".into(),
        };
        let name = key.rsplit('.').next().unwrap_or(key);
        format!("{:<44} # {origin}\n", format!("{name} = {value}"))
    };
    // TOML wants the top level's own keys before any section.
    let mut text: String = flat.iter().filter(|(k, _)| !k.contains('.')).map(|(k, v)| line(k, v)).collect();
    let mut section = "";
    for (key, value) in flat.iter().filter(|(k, _)| k.contains('.')) {
        let (name, _) = key.rsplit_once('.').unwrap_or(("", key));
        if name != section {
            section = name;
            let _ = writeln!(text, "\n[{section}]");
        }
        text += &line(key, value);
    }
    Ok(text)
}

/// The known corpora.
pub fn corpora() -> Result<String, Error> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["name", "title", "licence", "from", "fetched"]);
    for c in tiebreak_data::corpora()? {
        table.add_row([c.name, c.title, c.licence, c.packages.join(", "), if c.fetched { "yes" } else { "no" }.into()]);
    }
    Ok(table.to_string())
}

/// What a fetch brought.
pub fn fetched(report: &FetchReport) -> String {
    let lines = report.packages.iter().map(|p| format!("{}: {}\n", p.name, p.path.display()));
    lines.collect()
}

/// What was prepared.
pub fn prepared(prepared: &Prepared) -> String {
    let info = &prepared.info;
    let mut text = format!("corpus      {}\nvocabulary  {}\n", info.corpus, info.vocabulary);
    for (name, split) in [("train", &info.train), ("validation", &info.validation)] {
        let _ = writeln!(
            text,
            "{name:<11} {} documents, {} bytes, {} tokens",
            split.documents, split.bytes, split.tokens
        );
    }
    for warning in &info.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}
