//! The sweep file: `[sweep]`, its arms and its grid, checked before anything else happens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tiebreak_data::did_you_mean;
use tiebreak_train::Error;
use tiebreak_train::config::{insert, parse_set, plain_name, read_table};
use toml::{Table, Value};

use crate::tags::check_metric;

const SWEEP_KEYS: [&str; 7] = ["name", "base", "seeds", "baseline", "metric", "arms", "grid"];
const ARM_KEYS: [&str; 4] = ["name", "set", "match_parameters", "first_seeds"];

/// One configuration that is compared with others.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// Its name, and its runs' `name`.
    pub name: String,
    /// Dotted keys that it sets over the base.
    pub set: BTreeMap<String, Value>,
    /// The arm whose parameter count `model.d_ff` is solved for.
    pub match_parameters: Option<String>,
    /// How many of the sweep's seeds it runs, from the first; `None`: all.
    pub first_seeds: Option<usize>,
}

impl Arm {
    /// Its seeds among the sweep's.
    pub fn seeds<'a>(&self, all: &'a [u64]) -> &'a [u64] {
        &all[..self.first_seeds.unwrap_or(all.len()).min(all.len())]
    }
}

/// A sweep file, checked. Cells are arms x grid x seeds; the base is no arm of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepConfig {
    /// Name of the sweep's folder.
    pub name: String,
    /// The run configuration that every cell starts from.
    pub base: PathBuf,
    /// Seeds, each run by every arm.
    pub seeds: Vec<u64>,
    /// Arm, or cell name, that the others are compared with.
    pub baseline: String,
    /// Tag that is compared.
    pub metric: String,
    /// The arms in the file's order.
    pub arms: Vec<Arm>,
    /// Keys and their values, crossed with the arms, in the file's order; the first key varies slowest.
    pub grid: Vec<(String, Vec<Value>)>,
    /// `--set` keys that change the base.
    pub base_sets: Table,
}

impl SweepConfig {
    /// Reads a sweep file. Keys of `sets` that begin with `sweep.` change the sweep, others the base.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file and the key.
    pub fn read(path: &Path, sets: &[String]) -> Result<Self, Error> {
        let source = path.display().to_string();
        let fail = |text: String| Error::Input(format!("{source}: {text}"));
        let mut file = read_table(path)?;
        if let Some(key) = file.keys().find(|key| *key != "sweep") {
            return Err(fail(format!(
                "unknown {key:?} at the top level: a sweep file has [sweep], [[sweep.arms]] and [sweep.grid] only; is it a run's \
                 configuration (tiebreak train)?"
            )));
        }
        let mut sweep = match file.remove("sweep") {
            Some(Value::Table(sweep)) => sweep,
            Some(other) => return Err(fail(format!("sweep is {}, expected the section [sweep]", article(&other)))),
            None => return Err(fail("no section [sweep]: expected name, base, seeds and [[sweep.arms]]".into())),
        };
        let mut folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let mut base_sets = Table::new();
        // `[sweep.grid]` may write optim.lr quoted or not; a --set of the same key has to meet it.
        if let Some(Value::Table(grid)) = sweep.get_mut("grid") {
            *grid = in_order("[sweep.grid]", grid).map_err(|e| e.at(&source))?;
        }
        for set in sets {
            let (key, value) = parse_set(set)?;
            let refuse = |why: &str| Err(Error::Input(format!("--set {set}: {why}")));
            match key.strip_prefix("sweep.") {
                Some(key) => match (key.strip_prefix("grid."), sweep.get_mut("grid")) {
                    (Some(key), Some(Value::Table(grid))) => _ = grid.insert(key.into(), value),
                    _ => {
                        if key == "base" {
                            folder = PathBuf::new();
                        }
                        insert(&mut sweep, key, value)?;
                    }
                },
                None if key == "sweep" => return refuse("expected a key of the sweep, for example sweep.seeds=[0, 1]"),
                None if key == "seed" => {
                    return refuse("a sweep takes its seeds from sweep.seeds; use --set sweep.seeds=[0, 1]");
                }
                None if key == "name" => return refuse("a sweep's runs are named after their arms"),
                None => insert(&mut base_sets, &key, value)?,
            }
        }
        Self::parse(sweep, base_sets, &folder).map_err(|e| e.at(&source))
    }

    fn parse(sweep: Table, base_sets: Table, folder: &Path) -> Result<Self, Error> {
        let fail = |text: String| Err(Error::Input(text));
        known_keys("[sweep]", &sweep, &SWEEP_KEYS)?;
        let name = required(&sweep, "name", "the name of the sweep's folder")?;
        if name.is_empty() || name.len() > 100 || name.starts_with(['.', '-']) || plain_name(&name) != name {
            return fail(format!(
                "sweep.name = {name:?}: expected 1 to 100 letters, digits or . _ = + , - (it names a folder)"
            ));
        }
        let base = required(&sweep, "base", "the run configuration that every arm starts from")?;
        let base = folder.join(base);
        if !base.is_file() {
            return fail(format!("sweep.base: no such file: {}; paths are relative to the sweep file", base.display()));
        }
        let seeds = seeds(sweep.get("seeds"))?;
        let arms = arms(sweep.get("arms"))?;
        let grid = grid(sweep.get("grid"), &arms)?;
        let first = arms.iter().find(|arm| arm.name == "tied").unwrap_or(&arms[0]);
        let baseline = string(&sweep, "baseline")?.unwrap_or_else(|| first.name.clone());
        let metric = string(&sweep, "metric")?.unwrap_or_else(|| "eval/ppl".into());
        check_metric(&metric)?;
        Ok(Self { name, base, seeds, baseline, metric, arms, grid, base_sets })
    }

    /// Refuses a baseline that is neither an arm nor one of the cells' names.
    pub(crate) fn check_baseline(&self, cell_names: &[&str]) -> Result<(), Error> {
        let mut names: Vec<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        if names.contains(&self.baseline.as_str()) || cell_names.contains(&self.baseline.as_str()) {
            return Ok(());
        }
        if !self.grid.is_empty() {
            names.extend(cell_names);
        }
        names.dedup();
        Err(Error::Input(format!(
            "sweep.baseline = {:?}: no such arm{}; arms: {}",
            self.baseline,
            did_you_mean(&self.baseline, names.iter().copied()),
            names.join(", ")
        )))
    }
}

/// Dotted keys of a table in the file's order, which says what varies slowest. `"optim.lr"` and `optim.lr` are two keys to
/// TOML and one to us.
fn in_order(place: &str, table: &Table) -> Result<Table, Error> {
    let mut flat = Table::new();
    for (key, value) in table {
        let leaves = match value {
            Value::Table(inner) if !inner.is_empty() => {
                in_order(place, inner)?.into_iter().map(|(rest, value)| (format!("{key}.{rest}"), value)).collect()
            }
            leaf => vec![(key.clone(), leaf.clone())],
        };
        for (key, value) in leaves {
            if flat.insert(key.clone(), value).is_some() {
                return Err(Error::Input(format!("{place}: {key} is given twice, quoted and not: keep one")));
            }
        }
    }
    Ok(flat)
}

fn article(value: &Value) -> String {
    let kind = value.type_str();
    format!("{} {kind}", if kind.starts_with(['a', 'i']) { "an" } else { "a" })
}

fn known_keys(place: &str, table: &Table, known: &[&str]) -> Result<(), Error> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(Error::Input(format!(
            "unknown key {key} in {place}{}; known: {}",
            did_you_mean(key, known.iter().copied()),
            known.join(", ")
        ))),
    }
}

fn string(sweep: &Table, key: &str) -> Result<Option<String>, Error> {
    match sweep.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(Error::Input(format!("sweep.{key} = {other}: expected a string"))),
    }
}

fn required(sweep: &Table, key: &str, what: &str) -> Result<String, Error> {
    string(sweep, key)?.ok_or_else(|| Error::Input(format!("sweep.{key} is missing: expected {what}")))
}

fn seeds(value: Option<&Value>) -> Result<Vec<u64>, Error> {
    let fail = |text: String| Err(Error::Input(text));
    let expected = "expected a list of whole numbers from 0, for example seeds = [0, 1, 2]";
    let list = match value {
        None => return fail(format!("sweep.seeds is missing: {expected}")),
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(other) => return fail(format!("sweep.seeds = {other}: {expected}")),
    };
    let mut seeds = Vec::with_capacity(list.len());
    for value in list {
        let Some(seed) = value.as_integer().and_then(|i| u64::try_from(i).ok()) else {
            return fail(format!("sweep.seeds holds {value}: {expected}"));
        };
        if seeds.contains(&seed) {
            return fail(format!("sweep.seeds holds {seed} twice: a seed counts once"));
        }
        seeds.push(seed);
    }
    Ok(seeds)
}

fn arms(value: Option<&Value>) -> Result<Vec<Arm>, Error> {
    let fail = |text: String| Err(Error::Input(text));
    let tables = match value {
        Some(Value::Array(tables)) if !tables.is_empty() => tables,
        Some(Value::Array(_)) | None => {
            return fail("no arms: expected at least one [[sweep.arms]] with a name".into());
        }
        Some(other) => return fail(format!("sweep.arms is {}: expected [[sweep.arms]]", article(other))),
    };
    let mut arms: Vec<Arm> = Vec::with_capacity(tables.len());
    for (index, value) in tables.iter().enumerate() {
        let Value::Table(table) = value else {
            return fail(format!("sweep.arms holds {value}: expected tables, written [[sweep.arms]]"));
        };
        let place = match table.get("name") {
            Some(Value::String(name)) => format!("arm {name:?}"),
            _ => format!("arm number {}", index + 1),
        };
        known_keys(&place, table, &ARM_KEYS)?;
        let text = |key: &str| match table.get(key) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Err(Error::Input(format!("{place}: {key} = {other}: expected a string"))),
        };
        let name = text("name")?;
        if name.trim().is_empty() || name.trim() != name {
            return fail(format!("{place}: name = {name:?}: expected a name without spaces around it"));
        }
        if arms.iter().any(|arm| arm.name == name) {
            return fail(format!("two arms are named {name:?}: give each arm a name of its own"));
        }
        let set = match table.get("set") {
            None => BTreeMap::new(),
            Some(Value::Table(set)) => in_order(&format!("{place}: set"), set)?.into_iter().collect(),
            Some(other) => {
                return fail(format!(
                    "{place}: set = {other}: expected a table such as {{ \"head.mode\" = \"untied\" }}"
                ));
            }
        };
        for key in set.keys() {
            owned_by_the_sweep(&format!("{place}: set"), key)?;
        }
        let target = text("match_parameters")?;
        let first_seeds = match table.get("first_seeds") {
            None => None,
            Some(Value::Integer(n)) if *n >= 1 => usize::try_from(*n).ok(),
            Some(other) => {
                return fail(format!(
                    "{place}: first_seeds = {other}: expected how many of sweep.seeds it runs, from 1"
                ));
            }
        };
        arms.push(Arm { name, set, match_parameters: Some(target).filter(|t| !t.is_empty()), first_seeds });
    }
    for arm in &arms {
        let Some(target) = &arm.match_parameters else { continue };
        let place = format!("arm {:?}: match_parameters = {target:?}", arm.name);
        let names: Vec<&str> = arms.iter().map(|a| a.name.as_str()).filter(|n| *n != arm.name).collect();
        match arms.iter().find(|a| a.name == *target && a.name != arm.name) {
            None => {
                let what = if *target == arm.name { "is the arm itself" } else { "is no arm" };
                let known = if names.is_empty() { "none".into() } else { names.join(", ") };
                return fail(format!(
                    "{place} {what}{}; other arms: {known}",
                    did_you_mean(target, names.iter().copied())
                ));
            }
            Some(other) if other.match_parameters.is_some() => {
                return fail(format!("{place} is itself matched to another arm: name that arm instead"));
            }
            Some(_) if arm.set.contains_key("model.d_ff") => {
                return fail(format!("{place} solves model.d_ff, which the arm also sets: remove one of the two"));
            }
            Some(_) => {}
        }
    }
    Ok(arms)
}

fn grid(value: Option<&Value>, arms: &[Arm]) -> Result<Vec<(String, Vec<Value>)>, Error> {
    let fail = |text: String| Err(Error::Input(text));
    let table = match value {
        None => return Ok(Vec::new()),
        Some(Value::Table(table)) => in_order("[sweep.grid]", table)?,
        Some(other) => return fail(format!("sweep.grid is {}: expected the section [sweep.grid]", article(other))),
    };
    let mut grid = Vec::with_capacity(table.len());
    for (key, values) in table {
        owned_by_the_sweep("[sweep.grid]", &key)?;
        let Value::Array(values) = values else {
            return fail(format!("[sweep.grid] {key} = {values}: expected a list of values"));
        };
        if values.is_empty() {
            return fail(format!("[sweep.grid] {key} = []: expected at least one value"));
        }
        let shown: Vec<String> = values.iter().map(plain).collect();
        if let Some((i, value)) = shown.iter().enumerate().find(|(i, value)| shown[..*i].contains(value)) {
            return fail(format!("[sweep.grid] {key} holds {value} twice (values {} and before)", i + 1));
        }
        for arm in arms {
            if arm.set.contains_key(&key) {
                return fail(format!("arm {:?} sets {key}, which the grid varies: remove one of the two", arm.name));
            }
            if key == "model.d_ff" && arm.match_parameters.is_some() {
                return fail(format!("arm {:?} solves model.d_ff (match_parameters), which the grid varies", arm.name));
            }
        }
        grid.push((key, values));
    }
    Ok(grid)
}

/// Keys by which the sweep tells its cells apart.
fn owned_by_the_sweep(place: &str, key: &str) -> Result<(), Error> {
    match key {
        "seed" => Err(Error::Input(format!("{place} has seed: a sweep takes its seeds from sweep.seeds"))),
        "name" => Err(Error::Input(format!("{place} has name: a cell is named after its arm and grid values"))),
        "threads" => Err(Error::Input(format!("{place} has threads, which change no result: set it in the base"))),
        _ => Ok(()),
    }
}

/// A value as it stands in a cell's name.
pub(crate) fn plain(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Float(x) => x.to_string(),
        Value::Array(list) => format!("[{}]", list.iter().map(plain).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    };
    text.replace(['/', '\\'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, sets: &[&str]) -> Result<SweepConfig, Error> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("base.toml"), "").unwrap();
        let path = dir.path().join("sweep.toml");
        std::fs::write(&path, text).unwrap();
        SweepConfig::read(&path, &sets.iter().map(|s| s.to_string()).collect::<Vec<_>>())
    }

    const HEAD: &str = "[sweep]\nname = \"s\"\nbase = \"base.toml\"\nseeds = [0, 1]\n";
    const ARMS: &str =
        "[[sweep.arms]]\nname = \"tied\"\n[[sweep.arms]]\nname = \"untied\"\nset = { \"head.mode\" = \"untied\" }\n";

    fn refused(text: &str, sets: &[&str]) -> String {
        match read(text, sets) {
            Err(Error::Input(text)) => text,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_sweep_and_its_defaults() {
        let sweep = read(&format!("{HEAD}{ARMS}"), &[]).unwrap();
        assert_eq!((sweep.name.as_str(), sweep.baseline.as_str(), sweep.metric.as_str()), ("s", "tied", "eval/ppl"));
        assert_eq!(sweep.seeds, [0, 1]);
        assert_eq!(sweep.arms[1].set["head.mode"], Value::String("untied".into()));
        assert!(sweep.grid.is_empty() && sweep.arms[0].set.is_empty());
    }

    #[test]
    fn sets_change_the_sweep_or_the_base() {
        let text = format!("{HEAD}{ARMS}[sweep.grid]\n\"optim.lr\" = [1e-3]\n");
        let sets = ["sweep.seeds=[7]", "sweep.grid.optim.lr=[1e-2, 1e-1]", "train.steps=5"];
        let sweep = read(&text, &sets).unwrap();
        assert_eq!(sweep.seeds, [7]);
        assert_eq!(sweep.grid, [("optim.lr".to_owned(), vec![Value::Float(1e-2), Value::Float(1e-1)])]);
        assert_eq!(tiebreak_train::config::flatten(&sweep.base_sets)["train.steps"], Value::Integer(5));
        assert!(refused(&text, &["seed=3"]).contains("sweep.seeds"));
        assert!(refused(&text, &["sweep.seed=3"]).contains("did you mean \"seeds\""));
    }

    #[test]
    fn each_mistake_is_named() {
        let cases = [
            (format!("{HEAD}seedz = [1]\n{ARMS}"), vec!["seedz", "did you mean \"seeds\""]),
            (format!("steps = 3\n{HEAD}{ARMS}"), vec!["\"steps\"", "tiebreak train"]),
            (HEAD.into(), vec!["no arms"]),
            ("".into(), vec!["no section [sweep]"]),
            ("sweep = 3".into(), vec!["an integer", "[sweep]"]),
            (format!("{}{ARMS}", HEAD.replace("[0, 1]", "[]")), vec!["sweep.seeds = []"]),
            (format!("{}{ARMS}", HEAD.replace("[0, 1]", "[0, 0]")), vec!["0 twice"]),
            (format!("{}{ARMS}", HEAD.replace("[0, 1]", "[-1]")), vec!["-1"]),
            (format!("{}{ARMS}", HEAD.replace("[0, 1]", "3")), vec!["list of whole numbers"]),
            (format!("{}{ARMS}", HEAD.replace("base.toml", "bsae.toml")), vec!["sweep.base", "bsae.toml"]),
            (format!("{}{ARMS}", HEAD.replace("base = \"base.toml\"\n", "")), vec!["sweep.base is missing"]),
            (format!("{}{ARMS}", HEAD.replace("\"s\"", "\"a/b\"")), vec!["sweep.name"]),
            (format!("{HEAD}metric = \"eval/pl\"\n{ARMS}"), vec!["sweep.metric", "\"eval/ppl\""]),
            (format!("{HEAD}metric = \"ppl\"\n{ARMS}"), vec!["sweep.metric", "\"eval/ppl\""]),
            (format!("{HEAD}{ARMS}[[sweep.arms]]\nname = \"tied\"\n"), vec!["two arms are named \"tied\""]),
            (format!("{HEAD}[[sweep.arms]]\nset = {{}}\n"), vec!["arm number 1", "name"]),
            (format!("{HEAD}{ARMS}sets = {{}}\n"), vec!["arm \"untied\"", "did you mean \"set\""]),
            (format!("{HEAD}{ARMS}match_parameters = \"tide\"\n"), vec!["\"tide\" is no arm", "\"tied\""]),
            (format!("{HEAD}{ARMS}match_parameters = \"untied\"\n"), vec!["the arm itself"]),
            (format!("{HEAD}[[sweep.arms]]\nname = \"a\"\nset = {{ seed = 3 }}\n"), vec!["sweep.seeds"]),
            (format!("{HEAD}{ARMS}[sweep.grid]\n\"optim.lr\" = []\n"), vec!["optim.lr", "at least one value"]),
            (format!("{HEAD}{ARMS}[sweep.grid]\noptim.lr = 3\n"), vec!["optim.lr", "list of values"]),
            (format!("{HEAD}{ARMS}[sweep.grid]\n\"optim.lr\" = [1, 1.0]\n"), vec!["optim.lr", "twice"]),
            (
                format!("{HEAD}{ARMS}[sweep.grid]\n\"optim.lr\" = [1]\noptim.lr = [2]\n"),
                vec!["optim.lr", "given twice"],
            ),
            (format!("{HEAD}{ARMS}[sweep.grid]\nhead.mode = [\"tied\"]\n"), vec!["\"untied\"", "head.mode"]),
        ];
        for (text, parts) in cases {
            let message = refused(&text, &[]);
            assert!(message.contains("sweep.toml"), "{message}");
            for part in parts {
                assert!(message.contains(part), "{part:?} not in: {message}");
            }
        }
    }

    #[test]
    fn a_grid_keeps_the_order_of_the_file() {
        let grid = "[sweep.grid]\n\"train.steps\" = [1]\noptim.lr = [1e-3]\n\"data.context_length\" = [8]\noptim.eps = [0.0]\n";
        let order = |sets: &[&str]| -> Vec<String> {
            read(&format!("{HEAD}{ARMS}{grid}"), sets).unwrap().grid.into_iter().map(|(key, _)| key).collect()
        };
        // TOML keeps the keys of one section together.
        let expected = ["train.steps", "optim.lr", "optim.eps", "data.context_length"];
        assert_eq!(order(&[]), expected);
        assert_eq!(order(&["sweep.grid.optim.lr=[1e-2]"]), expected, "--set replaces values, not places");
    }
}
