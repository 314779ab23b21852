//! From a TOML file and `--set` to a checked configuration, with the origin of every key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tiebreak_data::{Error, nearest};
use toml::{Table, Value};

use super::RunConfig;

/// Where a key's value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Built in.
    Default,
    /// The file.
    File,
    /// `--set`, or an arm's `set`.
    Set,
}

/// A resolved configuration and the origin of each dotted key (a key that is absent has its default).
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Resolved and valid.
    pub config: RunConfig,
    /// Keys that were given.
    pub origins: BTreeMap<String, Origin>,
}

/// Reads a run's TOML file and applies `sets` (`key=value` each).
pub fn load(path: &Path, sets: &[String]) -> Result<Loaded, Error> {
    let file = read_table(path)?;
    let mut given = Table::new();
    for set in sets {
        let (key, value) = parse_set(set)?;
        insert(&mut given, &key, value)?;
    }
    let folder = folder_of(path);
    resolve(&path.display().to_string(), &[(&file, Origin::File, &folder), (&given, Origin::Set, Path::new("."))])
}

/// The folder that relative paths in `path` start from.
pub fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf()
}

/// Reads a TOML file as a table.
pub fn read_table(path: &Path) -> Result<Table, Error> {
    let name = path.display();
    let bytes = std::fs::read(path)
        .map_err(|e| Error::Input(format!("{name}: cannot be read ({e}); give the path of a TOML file")))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        Error::Input(format!("{name}: byte {} is not UTF-8; TOML files are UTF-8 text", e.utf8_error().valid_up_to()))
    })?;
    text.parse::<Table>().map_err(|e| Error::Input(format!("{name}: {}", e.to_string().trim_end())))
}

/// Splits `key=value`; the value is TOML if it parses as such, else a string.
pub fn parse_set(text: &str) -> Result<(String, Value), Error> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| Error::Input(format!("--set {text:?}: expected key=value, for example --set optim.lr=0.001")))?;
    let (key, value) = (key.trim(), value.trim());
    if key.split('.').any(str::is_empty) {
        return Err(Error::Input(format!("--set {text:?}: {key:?} is no key; expected a name such as optim.lr")));
    }
    let parsed = format!("x = {value}").parse::<Table>().ok().filter(|t| t.len() == 1).and_then(|mut t| t.remove("x"));
    Ok((key.into(), parsed.unwrap_or_else(|| Value::String(value.into()))))
}

/// Puts a value at a dotted key, making the sections on the way.
pub fn insert(table: &mut Table, key: &str, value: Value) -> Result<(), Error> {
    let (section, rest) = match key.split_once('.') {
        None if key.is_empty() => return Err(Error::Input("an empty key: expected a name such as optim.lr".into())),
        None => {
            table.insert(key.into(), value);
            return Ok(());
        }
        Some(parts) => parts,
    };
    match table.entry(section.to_owned()).or_insert_with(|| Value::Table(Table::new())) {
        Value::Table(inner) => insert(inner, rest, value),
        other => Err(Error::Input(format!("{key}: {section} is {}, not a section", other.type_str()))),
    }
}

/// Merges layers, later over earlier, and checks the result. Each layer has the folder its relative paths start from.
pub fn resolve(source: &str, layers: &[(&Table, Origin, &Path)]) -> Result<Loaded, Error> {
    let mut known = match Value::try_from(RunConfig::default()) {
        Ok(Value::Table(table)) => flatten(&table),
        other => return Err(Error::Failed(format!("the default configuration does not serialise: {other:?}"))),
    };
    for key in ["intervene.input_scale", "intervene.output_scale"] {
        for part in ["kind", "start", "end", "until"] {
            known.insert(format!("{key}.{part}"), Value::Boolean(true));
        }
    }
    let (mut merged, mut origins) = (Table::new(), BTreeMap::new());
    for (table, origin, folder) in layers {
        refuse_dotted(source, table)?;
        for (key, mut value) in flatten(table) {
            check_key(source, &key, &value, &known)?;
            if key.ends_with('.') {
                continue;
            }
            absolute_paths(&key, &mut value, folder);
            // A number in an earlier layer makes room for a table that replaces it.
            if let Some((parent, _)) = key.rsplit_once('.')
                && known.contains_key(parent)
                && origins.remove(parent).is_some()
            {
                insert(&mut merged, parent, Value::Table(Table::new()))?;
            }
            insert(&mut merged, &key, value)?;
            origins.insert(key, *origin);
        }
    }
    let mut config: RunConfig = serde_path_to_error::deserialize(Value::Table(merged)).map_err(|e| {
        let key = e.path().to_string();
        Error::Input(format!("{source}: {key}: {}", e.into_inner().to_string().trim_end()))
    })?;
    config.resolve().map_err(|e| e.at(source))?;
    Ok(Loaded { config, origins })
}

/// Dotted keys of a table; arrays are leaves.
pub fn flatten(table: &Table) -> BTreeMap<String, Value> {
    let mut flat = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) if !inner.is_empty() => {
                flat.extend(flatten(inner).into_iter().map(|(rest, v)| (format!("{key}.{rest}"), v)));
            }
            // An empty section says nothing, but its name is still checked.
            Value::Table(_) => _ = flat.insert(format!("{key}."), Value::Boolean(true)),
            leaf => _ = flat.insert(key.clone(), leaf.clone()),
        }
    }
    flat
}

/// A quoted key with a dot would be taken for a key in a section, and could silently replace it.
fn refuse_dotted(source: &str, table: &Table) -> Result<(), Error> {
    for (key, value) in table {
        if key.contains('.') {
            return Err(Error::Input(format!(
                "{source}: the quoted key \"{key}\": write it without quotes, or in its section"
            )));
        }
        if let Value::Table(inner) = value {
            refuse_dotted(source, inner)?;
        }
    }
    Ok(())
}

fn check_key(source: &str, key: &str, value: &Value, known: &BTreeMap<String, Value>) -> Result<(), Error> {
    if known.contains_key(key) {
        return Ok(());
    }
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let is_section = |s: &str| known.keys().any(|k| k.strip_prefix(s).is_some_and(|rest| rest.starts_with('.')));
    if is_section(key) {
        return Err(Error::Input(format!(
            "{source}: {key} = {value}: {key} is a section, write [{key}] with keys below it"
        )));
    }
    let top = key.split('.').next().unwrap_or(key);
    if !section.is_empty() && !is_section(top) {
        if known.contains_key(top) {
            return Err(Error::Input(format!("{source}: {key}: {top} is a key, not a section")));
        }
        let sections: std::collections::BTreeSet<&str> =
            known.keys().filter_map(|k| Some(k.split_once('.')?.0)).collect();
        let near = nearest(top, sections.iter().copied()).unwrap_or("train");
        return Err(Error::Input(format!("{source}: unknown section [{top}]; did you mean [{near}]?")));
    }
    if name.is_empty() {
        return Ok(());
    }
    let place = if section.is_empty() { "at the top level".into() } else { format!("in [{section}]") };
    // The same name in another section is the likeliest meaning, then the nearest spelling.
    let same_name = known.keys().filter(|k| k.rsplit_once('.').map_or(k.as_str(), |(_, n)| n) == name);
    let elsewhere = same_name.min_by_key(|k| k.matches('.').count());
    let hint = elsewhere.map(String::as_str).or_else(|| {
        let same_section = known.keys().filter(|k| k.rsplit_once('.').map_or("", |(s, _)| s) == section);
        nearest(key, same_section.map(String::as_str)).or_else(|| nearest(key, known.keys().map(String::as_str)))
    });
    let hint = hint.map(|k| format!("; did you mean {k}?")).unwrap_or_default();
    Err(Error::Input(format!("{source}: unknown key {name} {place}{hint}")))
}

fn absolute_paths(key: &str, value: &mut Value, folder: &Path) {
    if let (Value::Array(runs), "probe.reference") = (&mut *value, key) {
        for run in runs {
            if let Value::String(path) = run
                && !path.is_empty()
            {
                let whole = folder.join(&*path);
                *path = std::path::absolute(&whole).unwrap_or(whole).to_string_lossy().into_owned();
            }
        }
        return;
    }
    // A corpus or tokenizer that is no known name is a path relative to the file that names it.
    let Value::String(text) = value else { return };
    let mut data = tiebreak_data::DataConfig::default();
    let field = match key {
        "data.corpus" => &mut data.corpus,
        "data.fallback" if !text.is_empty() => &mut data.fallback,
        "data.tokenizer" => &mut data.tokenizer,
        _ => return,
    };
    field.clone_from(text);
    data.resolve_paths(folder);
    *text = match key {
        "data.corpus" => data.corpus,
        "data.fallback" => data.fallback,
        _ => data.tokenizer,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<Loaded, Error> {
        resolve("run.toml", &[(&text.parse::<Table>().unwrap(), Origin::File, Path::new("/data"))])
    }

    fn refused(text: &str) -> String {
        match resolved(text) {
            Err(Error::Input(message)) => message,
            other => panic!("{text}: expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn an_empty_file_is_the_defaults_resolved() {
        let config = resolved("").unwrap().config;
        assert_eq!((config.model.d_ff, config.train.micro_batch_size), (512, 32));
        assert_eq!(config.intervene, crate::intervene::InterveneConfig::default());
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known_one() {
        for (text, parts) in [
            ("[optim]\nweight_dekay = 0.1", ["unknown key weight_dekay in [optim]", "optim.weight_decay"]),
            ("[train]\nmode = \"tied\"", ["unknown key mode in [train]", "head.mode"]),
            ("[optimm]\nlr = 1.0", ["unknown section [optimm]", "[optim]"]),
            ("[optimm]", ["unknown section [optimm]", "[optim]"]),
            ("sead = 1", ["unknown key sead at the top level", "seed"]),
            ("lr = 1.0", ["unknown key lr at the top level", "optim.lr"]),
            ("model = 3", ["model is a section", "[model]"]),
            ("[seed]\nx = 1", ["seed is a key, not a section", "run.toml"]),
            ("\"optim.lr\" = 0.5\n[optim]\nlr = 0.1", ["quoted key \"optim.lr\"", "run.toml"]),
            ("[head]\nmode = \"tide\"", ["head.mode", "unknown variant `tide`"]),
            ("[train]\nsteps = \"many\"", ["train.steps", "expected u64"]),
            ("[train]\nsteps = -1", ["train.steps", "-1"]),
            ("[optim]\nbetas = [0.9]", ["optim.betas", "length 1"]),
            ("[optim]\nlr = nan", ["optim.lr = NaN", "from 0"]),
            ("[optim]\ninput_lr_scale = 2", ["optim.input_lr_scale = 2", "\"tied\""]),
            ("[model]\nn_heads = 3", ["model.n_heads = 3", "does not divide"]),
            ("[model]\nd_model = 12", ["even head width", "n_heads"]),
            ("[train]\nmicro_batch_size = 5", ["train.micro_batch_size = 5", "does not divide"]),
            ("[train]\nprecision = \"fp8\"", ["train.precision", "fp8"]),
            ("[probe]\nevery = -5", ["probe.every", "-5"]),
            ("[probe]\npermutations = 10001", ["probe.permutations = 10001", "expected 0 to 10000"]),
            ("[probe]\nreference = [\"\"]", ["probe.reference", "empty name"]),
            ("[probe]\nreference = \"a\"", ["probe.reference", "sequence"]),
            ("[lens]\nrecipe = \"bogus\"", ["lens.recipe", "`bogus`"]),
            ("[lens]\neval_tokens = 5", ["lens.eval_tokens = 5", "one window"]),
            ("name = \"a/b\"", ["name = \"a/b\"", "slashes"]),
        ] {
            let message = refused(text);
            assert!(parts.iter().all(|part| message.contains(part)), "{text}\n{message}");
        }
    }

    #[test]
    fn whole_numbers_stand_for_floats_and_layers_override() {
        let file: Table = "[optim]\nlr = 1\n[data]\ncorpus = \"src/lib.rs\"".parse().unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut set = Table::new();
        for text in ["optim.lr=0.5", "name=x y", "log.tables_at=[1, 2]"] {
            let (key, value) = parse_set(text).unwrap();
            insert(&mut set, &key, value).unwrap();
        }
        let layers = [(&file, Origin::File, folder), (&set, Origin::Set, Path::new("."))];
        let loaded = resolve("run.toml", &layers).unwrap();
        assert_eq!(loaded.config.optim.lr, 0.5);
        assert_eq!(loaded.config.name, "x y");
        assert_eq!(loaded.config.log.tables_at, [1, 2]);
        assert_eq!(
            Path::new(&loaded.config.data.corpus),
            folder.join("src/lib.rs"),
            "relative to the file that names it"
        );
        let text = "[probe]\nreference = [\"a-s1\", \"/b\"]";
        let reference = resolved(text).unwrap().config.probe.reference;
        assert_eq!(reference, ["/data/a-s1", "/b"], "relative to the file that names it");
        assert_eq!(loaded.origins["optim.lr"], Origin::Set);
        assert_eq!(loaded.origins["data.corpus"], Origin::File);
    }

    #[test]
    fn a_value_with_a_newline_or_no_equals_sign_adds_no_key() {
        assert!(parse_set("optim.lr").is_err());
        let (_, value) = parse_set("name=1\nseed=2").unwrap();
        assert_eq!(value, Value::String("1\nseed=2".into()));
    }
}
