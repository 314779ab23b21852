//! Checkpoints: a folder `step-<n>` that is complete or absent, with everything for a bit-exact resume.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use tiebreak_data::{Error, sha256_hex};
use tiebreak_model::interface::Role;
use tiebreak_model::{Model, Parameter};

use crate::intervene;
use crate::optim::{AdamW, Moments};
use crate::step::Memory;
use crate::tensors;
use crate::track::Lengths;

const MODEL: &str = "model.safetensors";
const OPTIMISER: &str = "optimiser.safetensors";
const STATE: &str = "state.json";
/// The input side's part of a shared parameter's first moment.
const INPUT: &str = "first_input";

/// Everything of a run that is neither model nor moments. Data order and learning rate follow from the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Completed optimiser steps.
    pub step: u64,
    /// The run's identity.
    pub identity: String,
    /// Byte lengths of the two log files up to this step.
    pub logs: Lengths,
}

/// In the optimiser's file: see [`Memory::rotation_dd`].
const ROTATION: &str = "aux/rotation";

/// `state.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    state: State,
    /// What interventions remember.
    #[serde(default, skip_serializing_if = "is_empty")]
    intervene: intervene::Memory,
    /// Of the other files, by name: safetensors has no sums of its own.
    sha256: BTreeMap<String, String>,
}

fn is_empty(memory: &intervene::Memory) -> bool {
    *memory == intervene::Memory::default()
}

/// Writes `folder/step-<n>` and removes all but the newest `keep`.
pub fn save(
    folder: &Path,
    model: &Model,
    optimiser: &AdamW,
    memory: &Memory,
    state: &State,
    keep: usize,
) -> Result<(), Error> {
    let failed = |path: &Path, e: std::io::Error| Error::Failed(format!("{}: cannot be written: {e}", path.display()));
    let name = format!("step-{}", state.step);
    let temporary = folder.join(format!(".tmp-{name}"));
    remove(&temporary)?;
    fs::create_dir_all(&temporary).map_err(|e| failed(&temporary, e))?;
    let parameters = model.parameters();
    let parameters = parameters.iter().chain(model.interface.state()).map(|p| (p.path.as_str(), &p.value));
    let moments: Vec<(String, &Tensor<2>)> = optimiser
        .moments()
        .iter()
        .flat_map(|(path, m)| {
            let input = m.input.as_ref().map(|input| (format!("{path}/{INPUT}"), input));
            [(format!("{path}/first"), &m.first), (format!("{path}/second"), &m.second)].into_iter().chain(input)
        })
        .chain(memory.rotation_dd.iter().map(|rotation_dd| (ROTATION.to_owned(), rotation_dd)))
        .collect();
    let origin = || ("origin", format!("step {} of run {}", state.step, state.identity));
    let mut files = vec![
        (MODEL, tensors::to_bytes(parameters, origin())?),
        (OPTIMISER, tensors::to_bytes(moments.iter().map(|(n, t)| (n.as_str(), *t)), origin())?),
    ];
    let sums = files.iter().map(|(file, bytes)| ((*file).to_owned(), sha256_hex(bytes)));
    let record = Record { state: state.clone(), intervene: memory.intervene, sha256: sums.collect() };
    files.push((STATE, serde_json::to_vec_pretty(&record).map_err(|e| Error::Failed(format!("{STATE}: {e}")))?));
    for (file, bytes) in files {
        let path = temporary.join(file);
        let write = || {
            use std::io::Write;
            let mut out = File::create(&path)?;
            out.write_all(&bytes)?;
            out.sync_all()
        };
        write().map_err(|e| failed(&path, e))?;
    }
    let target = folder.join(&name);
    retire(folder, &name)?;
    fs::rename(&temporary, &target).map_err(|e| failed(&target, e))?;
    sync_folder(folder)?;
    let steps = list(folder)?;
    for old in &steps[..steps.len().saturating_sub(keep)] {
        retire(folder, &format!("step-{old}"))?;
    }
    Ok(())
}

/// Steps with a complete checkpoint, ascending.
pub fn list(folder: &Path) -> Result<Vec<u64>, Error> {
    let mut steps: Vec<u64> =
        entries(folder)?.iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Loads `folder/step-<step>` into a model of the same configuration; refuses any missing, extra or misshapen tensor.
/// `attributed`: whether the run keeps the input side's part of shared moments.
pub fn load(
    folder: &Path,
    step: u64,
    identity: &str,
    model: &mut Model,
    optimiser: &mut AdamW,
    memory: &mut Memory,
    attributed: bool,
) -> Result<State, Error> {
    let path = folder.join(format!("step-{step}"));
    let device = &model.interface.tables().input.rows_vr.device();
    let Record { state, intervene, .. } = check(&path, step, identity, &[MODEL, OPTIMISER]).map_err(|what| {
        Error::Failed(format!(
            "{what}; remove {} to fall back on an earlier checkpoint or, if it is the only one, to start again",
            path.display()
        ))
    })?;
    take_model(&path, step, model, device)?;
    let file = path.join(OPTIMISER);
    let mut stored = tensors::read(&file, device)?;
    let mut moments = BTreeMap::new();
    let mut failed = None;
    model.visit(&mut |parameter, role| {
        let shared = attributed && role == Some(Role::Shared);
        match take_moments(&file, &mut stored, parameter, shared) {
            Ok(found) => _ = moments.insert(parameter.path.clone(), found),
            Err(e) => _ = failed.get_or_insert(e),
        }
    });
    if let Some(e) = failed {
        return Err(e);
    }
    *memory = Memory { intervene, rotation_dd: stored.remove(ROTATION) };
    refuse_rest(&file, &stored)?;
    optimiser.restore(moments);
    Ok(state)
}

/// Loads the parameters of `folder/step-<step>`, and what the head mode keeps beside them, into a model of the same configuration,
/// to look at.
///
/// # Errors
/// [`Error::Input`] naming the file and the other steps that were kept.
pub fn load_model(folder: &Path, step: u64, identity: &str, model: &mut Model, device: &Device) -> Result<(), Error> {
    let path = folder.join(format!("step-{step}"));
    let loaded = check(&path, step, identity, &[MODEL])
        .and_then(|_| take_model(&path, step, model, device).map_err(|e| e.to_string()));
    loaded.map_err(|what| {
        let others = list(folder).unwrap_or_default().into_iter().filter(|other| *other != step);
        Error::Input(format!("{what}; {}", other_steps(&others.collect::<Vec<_>>())))
    })
}

/// What to do where a step cannot be used: the steps that can be chosen instead.
pub fn other_steps(steps: &[u64]) -> String {
    let list = steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match steps {
        [] => "the run has kept no other step: train it again".into(),
        [_] => format!("--step {list} reads the other step that the run has kept"),
        _ => format!("--step reads another that the run has kept: {list}"),
    }
}

fn take_model(path: &Path, step: u64, model: &mut Model, device: &Device) -> Result<(), Error> {
    // A mode that changes has other parameters at another step.
    model.interface.after_step(step);
    let file = path.join(MODEL);
    let mut stored = tensors::read(&file, device)?;
    let mut result = Ok(());
    let mut load = |parameter: &mut Parameter| match take(&file, &mut stored, &parameter.path, &parameter.value) {
        Ok(value) => parameter.value = value,
        Err(e) => result = Err(e),
    };
    model.visit(&mut |parameter, _| load(parameter));
    model.interface.state_mut().into_iter().for_each(load);
    result?;
    refuse_rest(&file, &stored)
}

/// The record of the checkpoint folder `path`, if it is that of `step` of the run `identity` and `files` are as they were
/// written; else what is wrong.
fn check(path: &Path, step: u64, identity: &str, files: &[&str]) -> Result<Record, String> {
    let file = path.join(STATE);
    let wrong = |file: &Path, what: &dyn std::fmt::Display| format!("{}: {what}", file.display());
    let bytes = fs::read(&file).map_err(|e| wrong(&file, &e))?;
    let record: Record = serde_json::from_slice(&bytes).map_err(|e| wrong(&file, &e))?;
    if record.state.identity != identity || record.state.step != step {
        let State { step: found, identity: of, .. } = &record.state;
        let what = format!("belongs to step {found} of run {of:.8}, not to step {step} of run {identity:.8}");
        return Err(wrong(path, &what));
    }
    for name in files {
        let expected = record.sha256.get(*name).ok_or_else(|| wrong(&file, &format!("lacks the SHA-256 of {name}")))?;
        let file = path.join(name);
        let bytes = fs::read(&file).map_err(|e| wrong(&file, &e))?;
        if sha256_hex(&bytes) != *expected {
            return Err(wrong(&file, &"damaged: its SHA-256 is not the one it was written with"));
        }
    }
    Ok(record)
}

fn take(
    file: &Path,
    stored: &mut BTreeMap<String, Tensor<2>>,
    path: &str,
    like: &Tensor<2>,
) -> Result<Tensor<2>, Error> {
    let tensor = stored.remove(path).ok_or_else(|| {
        Error::Failed(format!("{}: {path} is missing: not a checkpoint of this model", file.display()))
    })?;
    if tensor.dims() != like.dims() {
        return Err(Error::Failed(format!(
            "{}: {path} has shape {:?}, this model needs {:?}",
            file.display(),
            tensor.dims(),
            like.dims()
        )));
    }
    Ok(tensor)
}

fn take_moments(
    file: &Path,
    stored: &mut BTreeMap<String, Tensor<2>>,
    parameter: &Parameter,
    shared: bool,
) -> Result<Moments, Error> {
    let Parameter { path, value, .. } = parameter;
    if shared && !stored.contains_key(&format!("{path}/{INPUT}")) {
        // From zeros the update/ tags would be wrong for a while, and unlike those of a run that was never interrupted.
        return Err(Error::Failed(format!(
            "{}: {path}/{INPUT} is missing: an earlier version wrote this checkpoint; remove the run's folder to train it again",
            file.display(),
        )));
    }
    let mut get = |which: &str| take(file, stored, &format!("{path}/{which}"), value);
    let input = if shared { Some(get(INPUT)?) } else { None };
    Ok(Moments { first: get("first")?, second: get("second")?, input })
}

fn refuse_rest(file: &Path, stored: &BTreeMap<String, Tensor<2>>) -> Result<(), Error> {
    match stored.keys().next() {
        None => Ok(()),
        Some(path) => Err(Error::Failed(format!("{}: {path} is no parameter of this model", file.display()))),
    }
}

fn entries(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |e: std::io::Error| Error::Failed(format!("{}: cannot be listed: {e}", folder.display()));
    match fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        Err(e) => Err(failed(e)),
        Ok(read) => read.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()).map_err(failed)).collect(),
    }
}

/// Removes a checkpoint; a kill on the way leaves a temporary name, not half a checkpoint.
fn retire(folder: &Path, name: &str) -> Result<(), Error> {
    let (path, gone) = (folder.join(name), folder.join(format!(".tmp-old-{name}")));
    remove(&gone)?;
    match fs::rename(&path, &gone) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Failed(format!("{}: cannot be removed: {e}", path.display())))
        }
        _ => remove(&gone),
    }
}

fn remove(path: &PathBuf) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Failed(format!("{}: cannot be removed: {e}", path.display())))
        }
        _ => Ok(()),
    }
}

fn sync_folder(folder: &Path) -> Result<(), Error> {
    let sync = File::open(folder).and_then(|f| f.sync_all());
    sync.map_err(|e| Error::Failed(format!("{}: cannot be synced: {e}", folder.display())))
}
