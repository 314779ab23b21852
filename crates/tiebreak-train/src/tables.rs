//! Tables that a run keeps for good: E, and U where it is another matrix, in `tables/step-<n>.safetensors`.

use std::fs;
use std::io::ErrorKind;

use burn::tensor::Device;
use tiebreak_data::{Error, write_atomic};
use tiebreak_model::interface::HeadMode;
use tiebreak_probe::Table;

use crate::folder::RunFolder;
use crate::tensors;

/// The pair at one step.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptTables {
    /// E, `[v, d]`.
    pub input: Table,
    /// U, `[v, d]`; `None` where it is E.
    pub output: Option<Table>,
}

impl KeptTables {
    /// The pair of a model.
    pub fn of(interface: &dyn HeadMode) -> Result<Self, Error> {
        let pair = interface.pair();
        let output = (!interface.one_matrix()).then(|| Table::from_tensor(&pair.output_vd));
        Ok(Self { input: Table::from_tensor(&pair.input_vd)?, output: output.transpose()? })
    }

    /// Writes a model's pair as that of `step`.
    pub fn write(folder: &RunFolder, step: u64, interface: &dyn HeadMode) -> Result<(), Error> {
        let pair = interface.pair();
        let output = (!interface.one_matrix()).then_some(("output", &pair.output_vd));
        let tables = std::iter::once(("input", &pair.input_vd)).chain(output);
        let bytes = tensors::to_bytes(tables, ("step", step.to_string()))?;
        let folder_of_tables = folder.tables();
        fs::create_dir_all(&folder_of_tables)
            .map_err(|e| Error::Failed(format!("{}: cannot be made: {e}", folder_of_tables.display())))?;
        write_atomic(&folder.table(step), &bytes)
    }

    /// Reads the pair that was kept at `step`.
    ///
    /// # Errors
    /// [`Error::Failed`] naming the file if it is missing, damaged or holds other tensors.
    pub fn read(folder: &RunFolder, step: u64) -> Result<Self, Error> {
        let path = folder.table(step);
        let bad = |what: &str| Error::Failed(format!("{}: {what}; put the run's own file back", path.display()));
        if !path.is_file() {
            return Err(bad("this kept table is missing"));
        }
        let mut stored = tensors::read(&path, &Device::flex())?;
        let input = stored.remove("input").ok_or_else(|| bad("holds no matrix \"input\""))?;
        let output = stored.remove("output");
        if let Some(name) = stored.keys().next() {
            return Err(bad(&format!("holds {name:?}, expected \"input\" and \"output\"")));
        }
        if output.as_ref().is_some_and(|output| output.dims() != input.dims()) {
            return Err(bad("its two matrices differ in shape"));
        }
        let table = |t| Table::from_tensor(t).map_err(|e| bad(&e.to_string()));
        Ok(Self { input: table(&input)?, output: output.as_ref().map(table).transpose()? })
    }

    /// Steps at which a pair was kept, ascending.
    pub fn steps(folder: &RunFolder) -> Result<Vec<u64>, Error> {
        let path = folder.tables();
        let failed = |e: std::io::Error| Error::Failed(format!("{}: cannot be listed: {e}", path.display()));
        let entries = match fs::read_dir(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let mut steps = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let step = name.to_str().and_then(|n| n.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok());
            steps.extend(step);
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// The tables and what they serve: `input` and `output`, or `tied` where they are one.
    pub fn sides(&self) -> Vec<(&'static str, &Table)> {
        match &self.output {
            Some(output) => vec![("input", &self.input), ("output", output)],
            None => vec![("tied", &self.input)],
        }
    }

    /// U.
    pub fn output(&self) -> &Table {
        self.output.as_ref().unwrap_or(&self.input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_model::interface::{HeadConfig, ModeKind};
    use tiebreak_model::{Model, ModelConfig, Placement};

    fn model(mode: ModeKind) -> Model {
        let shape = ModelConfig { d_model: 4, n_layers: 1, n_heads: 1, d_ff: 4, ..ModelConfig::default() };
        Model::init(&shape, &HeadConfig { mode }, 5, 3, 0, &Placement::f32(&Device::flex()))
    }

    #[test]
    fn what_is_kept_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder(dir.path().to_path_buf());
        assert_eq!(KeptTables::steps(&folder).unwrap(), [0; 0]);
        for (step, mode) in [(30, ModeKind::Tied), (4, ModeKind::Untied)] {
            let model = model(mode);
            KeptTables::write(&folder, step, &*model.interface).unwrap();
            let read = KeptTables::read(&folder, step).unwrap();
            assert_eq!(read, KeptTables::of(&*model.interface).unwrap());
            let sides: Vec<_> = read.sides().into_iter().map(|(name, _)| name).collect();
            assert_eq!(sides, if mode == ModeKind::Tied { vec!["tied"] } else { vec!["input", "output"] });
            assert_eq!(read.output() == &read.input, mode == ModeKind::Tied);
        }
        assert_eq!(KeptTables::steps(&folder).unwrap(), [4, 30]);
    }

    #[test]
    fn missing_and_damaged_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder(dir.path().to_path_buf());
        let refused = |says: &str| {
            let Err(Error::Failed(message)) = KeptTables::read(&folder, 7) else { panic!("accepted") };
            assert!(message.contains("step-7.safetensors") && message.contains(says), "{message}");
        };
        refused("missing");
        fs::create_dir_all(folder.tables()).unwrap();
        fs::write(folder.table(7), b"{}").unwrap();
        refused("not a whole safetensors file");
        let pair = model(ModeKind::Untied).interface.pair();
        let write = |names: [&str; 2]| {
            let tables = names.into_iter().zip([&pair.input_vd, &pair.output_vd]);
            fs::write(folder.table(7), tensors::to_bytes(tables, ("step", "7".into())).unwrap()).unwrap();
        };
        write(["output", "other"]);
        refused("no matrix \"input\"");
        write(["input", "other"]);
        refused("\"other\"");
    }
}
