//! From cells to the folders of their runs, which needs the data's content.

use std::path::Path;

use tiebreak_data::{DataConfig, DataInfo, prepare, prepared_if_cached};
use tiebreak_train::Error;
use tiebreak_train::config::{identity, run_folder_name};
use tiebreak_train::device::DeviceSpec;
use tiebreak_train::folder::{RunFolder, Status};

use crate::Cell;

/// A cell whose data is known.
pub(crate) struct Planned<'a> {
    pub cell: &'a Cell,
    pub info: DataInfo,
    pub identity: String,
    pub folder: RunFolder,
}

impl Planned<'_> {
    /// Where the run stands for this cell.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        self.folder.status_for(&self.cell.loaded.config)
    }

    /// The run folder's name inside the sweep's folder.
    pub fn folder_name(&self) -> String {
        self.folder.0.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// Prepares the data of each distinct `[data]` section, so that no two cells do, and names the cells' folders.
pub(crate) fn plan<'a>(cells: &'a [Cell], sweep_folder: &Path) -> Result<Vec<Planned<'a>>, Error> {
    let planned = with_data(cells, sweep_folder, |config| Ok(Some(prepare(config)?.info)))?;
    let planned: Vec<Planned> = planned.into_iter().flatten().collect();
    for (index, one) in planned.iter().enumerate() {
        if let Some(twin) = planned[..index].iter().find(|other| other.folder.0 == one.folder.0) {
            return Err(Error::Input(format!(
                "cells {:?} and {:?} would share the folder {}: their names differ only in characters that no folder takes",
                twin.cell.name,
                one.cell.name,
                one.folder_name()
            )));
        }
        let expected = one.cell.loaded.config.data.vocabulary()?;
        if expected != one.info.vocabulary {
            return Err(Error::Failed(format!(
                "data.tokenizer = {:?} has {} ids, {expected} were expected",
                one.info.tokenizer, one.info.vocabulary
            )));
        }
    }
    Ok(planned)
}

/// A cell's run.
#[derive(Clone, Debug)]
pub struct Located {
    /// The run's identity: cells that agree in it are one run, whatever they are called.
    pub identity: String,
    /// Its folder.
    pub folder: RunFolder,
    /// Why the corpus is the fallback, where it is.
    pub fallback_reason: Option<String>,
}

/// Prepares the data of `cells` and says where in `folder` their runs lie, in the order of the cells.
///
/// # Errors
/// [`Error::Input`] for data that cannot be used, [`Error::Failed`] for data that cannot be had.
pub fn locate(cells: &[Cell], folder: &Path) -> Result<Vec<Located>, Error> {
    let planned = with_data(cells, folder, |config| Ok(Some(prepare(config)?.info)))?;
    let located = planned.into_iter().flatten().map(|Planned { info, identity, folder, .. }| Located {
        identity,
        folder,
        fallback_reason: info.fallback_reason,
    });
    Ok(located.collect())
}

/// As [`plan`], without fetching or writing: `None` where a cell's data is not cached.
pub(crate) fn plan_if_cached<'a>(cells: &'a [Cell], sweep_folder: &Path) -> Result<Vec<Option<Planned<'a>>>, Error> {
    with_data(cells, sweep_folder, |config| Ok(prepared_if_cached(config)?.map(|prepared| prepared.info)))
}

fn with_data<'a>(
    cells: &'a [Cell],
    sweep_folder: &Path,
    get: impl Fn(&DataConfig) -> Result<Option<DataInfo>, Error>,
) -> Result<Vec<Option<Planned<'a>>>, Error> {
    let mut known: Vec<(&DataConfig, Option<DataInfo>)> = Vec::new();
    let mut planned = Vec::with_capacity(cells.len());
    for cell in cells {
        let config = &cell.loaded.config;
        let info = match known.iter().find(|(data, _)| **data == config.data) {
            Some((_, info)) => info.clone(),
            None => {
                let info = get(&config.data)?;
                known.push((&config.data, info.clone()));
                info
            }
        };
        let kind = config.device.parse::<DeviceSpec>()?.kind()?;
        planned.push(info.map(|info| {
            let identity = identity(config, &info, kind);
            let folder = RunFolder(sweep_folder.join(run_folder_name(config, &identity)));
            Planned { cell, info, identity, folder }
        }));
    }
    Ok(planned)
}
