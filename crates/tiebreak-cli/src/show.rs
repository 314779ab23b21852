//! Texts of `config` and `data`.

use std::fmt::Write;
use std::path::Path;

use tiebreak_data::{DataInfo, FetchReport, InspectReport, PathReport};
use tiebreak_sweep::Sweep;
use tiebreak_train::Error;
use tiebreak_train::config::{self, Loaded, Origin, flatten, read_table};
use tiebreak_train::device::DeviceSpec;

fn is_sweep(file: &Path) -> Result<bool, Error> {
    Ok(read_table(file)?.contains_key("sweep"))
}

/// Loads a run or sweep file as running it would, short of its data.
pub fn check(file: &Path, sets: &[String]) -> Result<(), Error> {
    if is_sweep(file)? { Sweep::load(file, sets).map(|_| ()) } else { runnable(file, sets).map(|_| ()) }
}

/// Loads a run file and refuses a device that this build lacks and sources of data that are not there.
pub fn runnable(file: &Path, sets: &[String]) -> Result<Loaded, Error> {
    let loaded = config::load(file, sets)?;
    let device = loaded.config.device.parse::<DeviceSpec>().and_then(DeviceSpec::kind);
    device.and_then(|_| loaded.config.data.check_sources()).map_err(|e| e.at(file.display()))?;
    Ok(loaded)
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
    let mut text = String::new();
    for c in tiebreak_data::corpora()? {
        let state = if c.available { "ready" } else { "to fetch" };
        let from = if c.packages.is_empty() { "built in".into() } else { c.packages.join(", ") };
        let _ = writeln!(text, "{:<10} {state:<9} {} ({}; {from})", c.name, c.title, c.licence);
    }
    Ok(text)
}

/// What a fetch brought.
pub fn fetched(report: &FetchReport) -> String {
    if report.packages.is_empty() {
        return format!("{}: built in, nothing to fetch", report.corpus);
    }
    let line = |p: &tiebreak_data::FetchedPackage| {
        let before = if p.already_there { " (was there)" } else { "" };
        format!("{}: {}{before}\n", p.package, p.folder.display())
    };
    report.packages.iter().map(line).collect()
}

/// What was prepared.
pub fn prepared(info: &DataInfo) -> String {
    let mut text = format!("corpus      {}\n", info.corpus);
    if let Some(reason) = &info.fallback_reason {
        let _ = writeln!(text, "FALLBACK    {reason}");
    }
    let _ = writeln!(text, "tokenizer   {} ({} ids)", info.tokenizer, info.vocabulary);
    for (name, split) in [("train", &info.train), ("validation", &info.validation)] {
        let per_token = split.bytes as f64 / split.tokens.max(1) as f64;
        let _ = writeln!(
            text,
            "{name:<11} {} documents, {} bytes, {} tokens, {per_token:.2} bytes per token",
            split.documents, split.bytes, split.tokens
        );
    }
    let _ = writeln!(
        text,
        "duplicates  {} exact, {} near ones across the split",
        info.exact_duplicates, info.near_duplicates_across_split
    );
    for warning in &info.warnings {
        let _ = writeln!(text, "warning     {warning}");
    }
    text
}

/// `data inspect` of a configuration.
pub fn data(report: &InspectReport) -> String {
    let (c, b) = (&report.coverage, &report.baselines);
    format!(
        "{}windows     {} per epoch\ncoverage    {} ids seen in training ({:.1} %), {} validation tokens unseen ({:.3} %)\n\
         baselines   unigram perplexity {:.2}, interpolated bigram {:.2} (validation, {} targets)\n",
        prepared(&report.info),
        report.train_windows,
        c.ids_seen_in_train,
        100.0 * c.share_seen_in_train,
        c.validation_tokens_unseen,
        100.0 * c.share_of_validation_unseen,
        b.unigram_ppl,
        b.bigram_ppl,
        b.targets
    )
}

/// `data inspect` of a path.
pub fn path(report: &PathReport) -> String {
    match report {
        PathReport::Text { documents, bytes, words, exact_duplicates, empty } => format!(
            "text: {documents} documents ({empty} empty, {exact_duplicates} exact duplicates), {bytes} bytes, {words} words"
        ),
        PathReport::Shards { shards } => {
            let line = |s: &tiebreak_data::ShardReport| {
                format!(
                    "{}: {} tokens, {} of {} ids seen, {} documents, {} bytes, corpus {:.12}, tokenizer {:.12}\n",
                    s.file, s.tokens, s.ids_seen, s.vocabulary, s.documents, s.bytes, s.corpus_hash, s.tokenizer_hash
                )
            };
            shards.iter().map(line).collect()
        }
    }
}
