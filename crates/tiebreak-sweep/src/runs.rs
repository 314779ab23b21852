//! Finding runs below a folder, and reading what a comparison needs of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tiebreak_data::DataInfo;
use tiebreak_train::Error;
use tiebreak_train::config::{RunConfig, load, numeric_keys};
use tiebreak_train::folder::{RunFolder, RunState};
use walkdir::WalkDir;

use crate::statistics::median;
use crate::summary::SweepRecord;

/// Tag of the speed that the table shows.
const SPEED: &str = "train/tokens_per_second";

/// A run as it lies on the disk.
#[derive(Debug)]
pub(crate) struct Run {
    pub folder: PathBuf,
    pub config: RunConfig,
    pub state: RunState,
    /// As its status records it: equal where nothing that can change a number differs.
    pub identity: String,
    /// Distinct parameters, as the run recorded them.
    pub parameters: Option<u64>,
    pub data: Option<DataInfo>,
}

/// `env.json`, as far as it is read. A run that failed early has none.
#[derive(Default, Deserialize)]
struct Recorded {
    parameters: Option<Parameters>,
    data: Option<DataInfo>,
    device: Option<String>,
}

#[derive(Deserialize)]
struct Parameters {
    unique: u64,
}

impl Run {
    /// Reads a run's folder.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let run = RunFolder(folder.to_path_buf());
        let config = load(&run.config(), &[])?.config;
        let status = run.status()?.ok_or_else(|| Error::Input(format!("{}: no status.json", folder.display())))?;
        let recorded = match std::fs::read(run.env()) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Recorded::default(),
            Err(e) => return Err(Error::Failed(format!("{}: cannot be read: {e}", run.env().display()))),
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::Input(format!("{}: {e}: not a run's record", run.env().display())))?,
        };
        let (parameters, data) = (recorded.parameters.map(|p| p.unique), recorded.data);
        let mut config = config;
        if let Some(device) = recorded.device {
            config.device = device;
        }
        Ok(Self {
            folder: folder.to_path_buf(),
            config,
            state: status.state,
            identity: status.identity,
            parameters,
            data,
        })
    }

    /// What makes two runs repetitions of one configuration: every key that can change a number, but the seed, and the data's
    /// content where the run recorded it.
    pub fn configuration(&self) -> BTreeMap<String, String> {
        let mut keys: BTreeMap<String, String> =
            numeric_keys(&self.config).into_iter().map(|(key, value)| (key, value.to_string())).collect();
        keys.remove("seed");
        if let Some(data) = &self.data {
            keys.insert("device".into(), self.config.device.clone());
            keys.insert("content of data.corpus".into(), data.corpus_hash.clone());
            keys.insert("content of data.tokenizer".into(), data.tokenizer_hash.clone());
        }
        keys
    }

    /// Reads `metrics.jsonl` of a complete run.
    pub fn scalars(&self) -> Result<Scalars, Error> {
        Scalars::read(&RunFolder(self.folder.clone()).metrics(), self.config.train.steps)
    }
}

/// A complete run's numbers.
#[derive(Debug)]
pub(crate) struct Scalars {
    /// Every tag's value at the last step.
    pub last: BTreeMap<String, f64>,
    /// Median of [`SPEED`].
    pub tokens_per_second: Option<f64>,
}

/// Reads a `metrics.jsonl` and gives every scalar to `each`: step, tag, value.
///
/// # Errors
/// [`Error::Input`] naming the file, and the line where one is damaged.
pub fn each_scalar(path: &Path, mut each: impl FnMut(u64, &str, f64)) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Line<'a> {
        step: u64,
        #[serde(borrow)]
        tag: Cow<'a, str>,
        value: f64,
    }
    let failed = |e: std::io::Error| Error::Input(format!("{}: cannot be read: {e}", path.display()));
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?);
    let (mut text, mut number) = (Vec::new(), 0);
    loop {
        text.clear();
        if reader.read_until(b'\n', &mut text).map_err(failed)? == 0 {
            return Ok(());
        }
        number += 1;
        let line: Line = serde_json::from_slice(&text).map_err(|e| {
            Error::Input(format!("{}: line {number}: {e}: the file is damaged; train the run again", path.display()))
        })?;
        each(line.step, &line.tag, line.value);
    }
}

impl Scalars {
    fn read(path: &Path, last_step: u64) -> Result<Self, Error> {
        let (mut last, mut speeds, mut twice) = (BTreeMap::new(), Vec::new(), None);
        each_scalar(path, |step, tag, value| {
            if tag == SPEED {
                speeds.push(value);
            }
            if step == last_step && last.insert(tag.to_owned(), value).is_some() {
                twice = Some(tag.to_owned());
            }
        })?;
        if let Some(tag) = twice {
            return Err(Error::Input(format!(
                "{}: {tag} of step {last_step} is there twice: the file is damaged; train the run again",
                path.display()
            )));
        }
        Ok(Self { last, tokens_per_second: median(speeds) })
    }
}

/// The values of each of `tags` by step, ascending, from a run's `metrics.jsonl`; a tag that the run lacks has none.
///
/// # Errors
/// [`Error::Input`] naming the file, and the line that is damaged.
pub fn series(path: &Path, tags: &[&str]) -> Result<BTreeMap<String, Vec<(u64, f64)>>, Error> {
    let mut found: BTreeMap<String, Vec<(u64, f64)>> = tags.iter().map(|tag| (tag.to_string(), Vec::new())).collect();
    each_scalar(path, |step, tag, value| {
        if let Some(values) = found.get_mut(tag) {
            values.push((step, value));
        }
    })?;
    for values in found.values_mut() {
        values.sort_by_key(|(step, _)| *step);
    }
    Ok(found)
}

/// Runs, and sweeps' records, found from folders that a user named.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Folders of runs, each once.
    pub runs: Vec<PathBuf>,
    /// Records and their folders, at or below the named folders.
    pub sweeps: Vec<(PathBuf, SweepRecord)>,
    /// Records of the sweeps that a named run belongs to.
    pub above: Vec<SweepRecord>,
}

/// Looks for runs at and below each folder; runs are not descended into.
pub(crate) fn find(dirs: &[PathBuf]) -> Result<Found, Error> {
    let mut found = Found::default();
    let mut seen = BTreeSet::new();
    let mut first_time = |path: &Path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.to_path_buf()));
    for dir in dirs {
        if !dir.is_dir() {
            let what = if dir.exists() { "is not a folder" } else { "no such folder" };
            return Err(Error::Input(format!(
                "{}: {what}; give a run, a sweep's folder or a folder above",
                dir.display()
            )));
        }
        let whole = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        for above in whole.ancestors().skip(1).take(2) {
            if let Some(record) = SweepRecord::read(above)? {
                found.above.push(record);
                break;
            }
        }
        let mut walk = WalkDir::new(dir).sort_by_file_name().into_iter();
        while let Some(entry) = walk.next() {
            let entry = entry.map_err(|e| Error::Failed(format!("{}: cannot be searched: {e}", dir.display())))?;
            // Below the folder that was named, links are not followed: they could lead in circles.
            let root = entry.depth() == 0;
            if !root && !entry.file_type().is_dir() {
                continue;
            }
            if RunFolder::is_run(entry.path()) {
                if first_time(entry.path()) {
                    found.runs.push(entry.path().to_path_buf());
                }
                if root {
                    break;
                }
                walk.skip_current_dir();
            } else if let Some(record) = SweepRecord::read(entry.path())?
                && first_time(entry.path())
            {
                found.sweeps.push((entry.path().to_path_buf(), record));
            }
        }
    }
    Ok(found)
}
