//! From a sweep file to its cells: arms x grid x seeds, each a resolved run configuration.

use std::path::Path;

use tiebreak_train::Error;
use tiebreak_train::config::{Loaded, Origin, folder_of, insert, load, mode_name, read_table, resolve};
use toml::{Table, Value};

use crate::grammar::{Arm, SweepConfig, plain};

/// One run of a sweep.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The arm's name, followed by its grid values where there is a grid: `tied optim.lr=0.003`.
    pub name: String,
    /// The arm.
    pub arm: String,
    /// Values of the grid's keys.
    pub grid: Vec<(String, Value)>,
    /// The seed.
    pub seed: u64,
    /// The run configuration. Where the arm matches parameters, `model.d_ff` is solved.
    pub loaded: Loaded,
}

/// Cells in the order arms, grid (the file's first key slowest), seeds. `file` is the sweep file.
///
/// # Errors
/// [`Error::Input`] naming the file and arm for what [`resolve`] refuses, and for parameters that cannot be matched.
pub fn expand(config: &SweepConfig, file: &Path) -> Result<Vec<Cell>, Error> {
    let base = read_table(&config.base)?;
    let mut cells = Vec::new();
    for arm in &config.arms {
        for grid in grid_points(&config.grid) {
            for &seed in arm.seeds(&config.seeds) {
                cells.push(cell(config, file, &base, arm, &grid, seed)?);
            }
        }
    }
    for arm in config.arms.iter().filter(|arm| arm.match_parameters.is_some()) {
        match_parameters(&mut cells, arm).map_err(|e| e.at(file.display()))?;
    }
    let names: Vec<&str> = cells.iter().map(|c| c.name.as_str()).collect();
    config.check_baseline(&names).map_err(|e| e.at(file.display()))?;
    Ok(cells)
}

/// All combinations, the first key varying slowest; one empty combination if there is no grid.
fn grid_points(grid: &[(String, Vec<Value>)]) -> Vec<Vec<(String, Value)>> {
    grid.iter().fold(vec![Vec::new()], |points, (key, values)| {
        let extend = |point: &Vec<(String, Value)>, value: &Value| {
            let mut point = point.clone();
            point.push((key.clone(), value.clone()));
            point
        };
        points.iter().flat_map(|point| values.iter().map(move |value| extend(point, value))).collect()
    })
}

fn cell(
    config: &SweepConfig,
    file: &Path,
    base: &Table,
    arm: &Arm,
    grid: &[(String, Value)],
    seed: u64,
) -> Result<Cell, Error> {
    let mut name = arm.name.clone();
    let mut own = Table::new();
    for (key, value) in grid {
        name += &format!(" {key}={}", plain(value));
        insert(&mut own, key, value.clone())?;
    }
    let source = format!("{}: arm {name:?}", file.display());
    for (key, value) in &arm.set {
        insert(&mut own, key, value.clone()).map_err(|e| e.at(&source))?;
    }
    let mut identity = Table::new();
    identity.insert("name".into(), Value::String(name.clone()));
    identity.insert("seed".into(), Value::Integer(seed as i64));
    let (base_folder, sweep_folder) = (folder_of(&config.base), folder_of(file));
    let layers = [
        (base, Origin::File, base_folder.as_path()),
        (&config.base_sets, Origin::Set, Path::new(".")),
        (&own, Origin::Set, sweep_folder.as_path()),
        (&identity, Origin::Set, Path::new(".")),
    ];
    let loaded = resolve(&source, &layers).map_err(|e| {
        // What the base alone gets wrong is told under the base's name.
        let sets: Vec<String> = tiebreak_train::config::flatten(&config.base_sets)
            .iter()
            .filter(|(key, _)| !key.ends_with('.'))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        load(&config.base, &sets).err().unwrap_or(e)
    })?;
    Ok(Cell { name, arm: arm.name.clone(), grid: grid.to_vec(), seed, loaded })
}

/// Distinct parameters of a cell's model.
pub(crate) fn parameters(config: &tiebreak_train::config::RunConfig) -> Result<usize, Error> {
    let vocabulary = config.data.vocabulary()?;
    Ok(config.model.count(&config.head, vocabulary, config.data.context_length).unique)
}

/// Solves `model.d_ff` of the arm's cells so that each has as many parameters as the target's cells of the same grid point.
fn match_parameters(cells: &mut [Cell], arm: &Arm) -> Result<(), Error> {
    let Some(target) = &arm.match_parameters else { return Ok(()) };
    for index in 0..cells.len() {
        let cell = &cells[index];
        if cell.arm != arm.name {
            continue;
        }
        let same_point = |c: &&Cell| c.arm == *target && c.grid == cell.grid;
        let Some(reference) = cells.iter().find(same_point) else { continue };
        let wanted = parameters(&reference.loaded.config)?;
        let config = &cell.loaded.config;
        let (head, ids, context) = (&config.head, config.data.vocabulary()?, config.data.context_length);
        let Some(d_ff) = config.model.d_ff_for(wanted, head, ids, context) else {
            let smallest =
                tiebreak_model::ModelConfig { d_ff: 8, ..config.model.clone() }.count(head, ids, context).unique;
            return Err(Error::Input(format!(
                "arm {:?}: match_parameters = {target:?}: no model.d_ff (a multiple of 8) brings the {} model of depth {} and width {} \
                 within 1 % of {wanted} parameters; the smallest, with d_ff = 8, has {smallest}. Use a smaller vocabulary or a larger target",
                cell.name,
                mode_name(head.mode),
                config.model.n_layers,
                config.model.d_model,
            )));
        };
        let loaded = &mut cells[index].loaded;
        loaded.config.model.d_ff = d_ff;
        loaded.config.resolve()?;
        loaded.origins.insert("model.d_ff".into(), Origin::Set);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(sweep: &str, base: &str, sets: &[&str]) -> Result<Vec<Cell>, Error> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("runs")).unwrap();
        std::fs::write(dir.path().join("runs/base.toml"), base).unwrap();
        let path = dir.path().join("sweep.toml");
        std::fs::write(&path, format!("[sweep]\nname = \"s\"\nbase = \"runs/base.toml\"\n{sweep}")).unwrap();
        let config = SweepConfig::read(&path, &sets.iter().map(|s| s.to_string()).collect::<Vec<_>>())?;
        expand(&config, &path)
    }

    const TWO: &str =
        "[[sweep.arms]]\nname = \"tied\"\n[[sweep.arms]]\nname = \"untied\"\nset = { \"head.mode\" = \"untied\" }\n";

    #[test]
    fn arms_then_grid_then_seeds() {
        let grid = "[sweep.grid]\n\"optim.lr\" = [1e-3, 3e-3]\n\"optim.clip_norm\" = [1.0, 0.5]\n";
        let all = cells(&format!("seeds = [3, 1]\n{TWO}{grid}"), "seed = 9\nname = \"base\"", &[]).unwrap();
        assert_eq!(all.len(), 2 * 4 * 2);
        let names: Vec<(&str, u64)> = all.iter().take(5).map(|c| (c.name.as_str(), c.seed)).collect();
        let first = "tied optim.lr=0.001 optim.clip_norm=1";
        let third = "tied optim.lr=0.003 optim.clip_norm=1";
        assert_eq!(names[..3], [(first, 3), (first, 1), ("tied optim.lr=0.001 optim.clip_norm=0.5", 3)]);
        assert_eq!(names[4], (third, 3));
        for cell in &all {
            assert_eq!((&cell.loaded.config.name, cell.loaded.config.seed), (&cell.name, cell.seed));
        }
        assert_eq!(all[2].loaded.config.optim.clip_norm, 0.5);
        assert_eq!(all[15].arm, "untied");
    }

    #[test]
    fn an_arm_may_run_fewer_seeds() {
        let arms = TWO.replacen("name = \"tied\"", "name = \"tied\"\nfirst_seeds = 1", 1);
        let arms = format!("{arms}match_parameters = \"tied\"\n");
        let all = cells(&format!("seeds = [7, 8]\n{arms}"), "[data]\ntokenizer = \"bpe:1000\"\n", &[]).unwrap();
        let of: Vec<(&str, u64)> = all.iter().map(|c| (c.arm.as_str(), c.seed)).collect();
        assert_eq!(of, [("tied", 7), ("untied", 7), ("untied", 8)]);
        assert_eq!(all[1].loaded.config.model, all[2].loaded.config.model, "matched, though tied has no seed 8");
        let few = cells(&format!("seeds = [7, 8]\n{arms}"), "", &["sweep.seeds=[3]"]).unwrap();
        assert_eq!(few.iter().map(|c| c.seed).collect::<Vec<_>>(), [3, 3]);
        let bad = "seeds = [0]\n[[sweep.arms]]\nname = \"a\"\nfirst_seeds = 0\n";
        let message = cells(bad, "", &[]).unwrap_err().to_string();
        assert!(message.contains("arm \"a\"") && message.contains("first_seeds = 0"), "{message}");
    }

    #[test]
    fn an_arm_wins_over_set_and_set_over_the_base() {
        let base = "[optim]\nlr = 0.1\nclip_norm = 0.1\neps = 0.1\n";
        let arms = "seeds = [0]\n[[sweep.arms]]\nname = \"a\"\nset = { optim.lr = 0.3 }\n";
        let all = cells(arms, base, &["optim.lr=0.2", "optim.clip_norm=0.2"]).unwrap();
        let optim = &all[0].loaded.config.optim;
        assert_eq!((optim.lr, optim.clip_norm, optim.eps), (0.3, 0.2, 0.1));
    }

    #[test]
    fn paths_start_from_the_file_that_names_them() {
        let arms = "seeds = [0]\n[[sweep.arms]]\nname = \"a\"\n[[sweep.arms]]\nname = \"b\"\nset = { \"data.corpus\" = \"text.txt\" }\n";
        let all = cells(arms, "[data]\ncorpus = \"text.txt\"\n", &[]).unwrap();
        let corpus = |i: usize| Path::new(&all[i].loaded.config.data.corpus);
        assert!(corpus(0).is_absolute() && corpus(0).ends_with("runs/text.txt"), "{}", corpus(0).display());
        assert!(corpus(1).ends_with("text.txt") && !corpus(1).ends_with("runs/text.txt"), "{}", corpus(1).display());
    }

    #[test]
    fn matched_parameters_are_within_one_percent_and_keep_depth_and_width() {
        let arms = format!("seeds = [0, 1]\n{TWO}match_parameters = \"tied\"\n");
        let base = "[data]\ntokenizer = \"bpe:1000\"\n[model]\nd_model = 64\nn_layers = 3\n";
        let all = cells(&arms, base, &[]).unwrap();
        let counts: Vec<usize> = all.iter().map(|c| parameters(&c.loaded.config).unwrap()).collect();
        assert!((counts[2] as f64 / counts[0] as f64 - 1.0).abs() <= 0.01, "{counts:?}");
        let model = &all[2].loaded.config.model;
        assert_eq!((model.d_model, model.n_layers, model.d_ff % 8), (64, 3, 0));
        assert!(model.d_ff < all[0].loaded.config.model.d_ff);
        assert_eq!(all[2].loaded.config.model, all[3].loaded.config.model);
    }

    #[test]
    fn parameters_that_cannot_match_are_refused() {
        let arms = format!("seeds = [0]\n{TWO}match_parameters = \"tied\"\n");
        let base = "[data]\ntokenizer = \"gpt2\"\n[model]\nd_model = 64\nn_layers = 1\n";
        let message = cells(&arms, base, &[]).unwrap_err().to_string();
        assert!(message.contains("arm \"untied\"") && message.contains("within 1 %"), "{message}");
    }

    #[test]
    fn what_is_wrong_is_told_with_the_arm_or_the_base() {
        let bad = "seeds = [0]\n[[sweep.arms]]\nname = \"a\"\nset = { \"optim.lrr\" = 1.0 }\n";
        let message = cells(bad, "", &[]).unwrap_err().to_string();
        assert!(message.contains("arm \"a\"") && message.contains("optim.lr"), "{message}");
        let message = cells(&format!("seeds = [0]\n{TWO}"), "[train]\nstepz = 3\n", &[]).unwrap_err().to_string();
        assert!(message.contains("base.toml") && message.contains("train.steps"), "{message}");
        let message = cells(&format!("baseline = \"tide\"\nseeds = [0]\n{TWO}"), "", &[]).unwrap_err().to_string();
        assert!(message.contains("sweep.baseline") && message.contains("\"tied\""), "{message}");
    }
}
