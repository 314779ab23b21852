//! Sweeps end to end: cells, what becomes of failing, killed and finished ones, and what the comparison says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Stdio};

use burn::tensor::Device;
use serde_json::Value;

use crate::harness::{Place, RunDir, Said, assert_same, binary, signal, signal_pid, tree, wait_until};

const SWEEP: &str = r#"
[sweep]
name = "s"
base = "run.toml"
seeds = [0, 1]
[[sweep.arms]]
name = "tied"
[[sweep.arms]]
name = "untied"
set = { "head.mode" = "untied" }
[[sweep.arms]]
name = "tied-x5"
set = { "intervene.input_scale" = 5.0 }
"#;

const DIVERGING: &str = "[[sweep.arms]]\nname = \"wild\"\nset = { \"optim.lr\" = 1000.0, \"optim.clip_norm\" = 0.0 }\n";

fn place(sweep: &str) -> Place {
    let place = Place::new();
    place.write("sweep.toml", sweep);
    place
}

fn sweep(place: &Place, more: &[&str]) -> Said {
    place.tiebreak(&[&["sweep", "sweep.toml", "--out", "out"], more].concat())
}

fn start(place: &Place, more: &[&str]) -> Child {
    let mut command = place.command(binary());
    command.args(["sweep", "sweep.toml", "--out", "out"]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The sweep's runs by arm and seed, as `sweep.json` names them, that have a folder.
fn cells(place: &Place) -> BTreeMap<(String, u64), RunDir> {
    let path = place.path("out/s/sweep.json");
    let record: Value = match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap(),
        Err(_) => return BTreeMap::new(),
    };
    let cells = record["cells"].as_array().unwrap().iter().map(|cell| {
        let name = cell["name"].as_str().unwrap().to_owned();
        let folder = place.path("out/s").join(cell["folder"].as_str().unwrap());
        ((name, cell["seed"].as_u64().unwrap()), RunDir(folder))
    });
    cells.filter(|(_, run)| run.0.join("status.json").exists()).collect()
}

fn of<'a>(cells: &'a BTreeMap<(String, u64), RunDir>, arm: &str, seed: u64) -> &'a RunDir {
    &cells[&(arm.to_owned(), seed)]
}

fn states(place: &Place) -> Vec<String> {
    cells(place).values().map(RunDir::state).collect()
}

fn arm<'a>(comparison: &'a Value, name: &str) -> &'a Value {
    comparison["arms"].as_array().unwrap().iter().find(|a| a["arm"] == name).unwrap()
}

fn compare(place: &Place, more: &[&str]) -> Value {
    let said = place.tiebreak(&[&["compare", "out", "--json"], more].concat()).expect(0);
    serde_json::from_str(&said.stdout).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

fn close(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found}, expected {expected}");
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn sd(values: &[f64]) -> f64 {
    let m = mean(values);
    (values.iter().map(|x| (x - m).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

#[test]
fn end_to_end_and_again() {
    let place = place(SWEEP);
    let said = sweep(&place, &[]).expect(0);
    assert!(said.stdout.contains("tensorboard --logdir") && said.stdout.contains("n too small"), "{said:?}");
    let runs = cells(&place);
    assert_eq!(runs.len(), 6);
    for run in runs.values() {
        assert_eq!(run.state(), "complete");
        run.check_tidy();
    }
    // What may be a sweep's metric is what a run writes.
    let written: BTreeSet<String> = of(&runs, "tied", 0).metrics().into_iter().map(|(_, tag, _)| tag).collect();
    let all: BTreeSet<String> = runs.values().flat_map(RunDir::metrics).map(|(_, tag, _)| tag).collect();
    let unknown: Vec<&String> = all.iter().filter(|tag| !tiebreak_sweep::is_tag(tag)).collect();
    assert!(unknown.is_empty() && all.contains("intervene/input_scale"), "{unknown:?} {all:?}");
    // train 7, eval 3 and 10 deciles, grad 7, authors 3, shared 2, groups 20, update 2, embedding 4, a layer each.
    assert_eq!(written.len(), 60, "{written:?}");
    let values = |arm: &str, tag: &str, seeds: &[u64]| -> Vec<f64> {
        seeds.iter().map(|seed| of(&cells(&place), arm, *seed).value(60, tag).unwrap()).collect()
    };

    let comparison = compare(&place, &[]);
    let summary = std::fs::read_to_string(place.path("out/s/summary.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&summary).unwrap(), comparison);
    assert_eq!((&comparison["metric"], &comparison["baseline"]), (&"eval/ppl".into(), &"tied".into()));
    for (name, parameters) in [("tied", 12_992), ("untied", 17_792), ("tied-x5", 12_992)] {
        let found = arm(&comparison, name);
        let expected = values(name, "eval/ppl", &[0, 1]);
        assert_eq!((&found["n"], &found["failed"]), (&2.into(), &0.into()));
        assert_eq!(found["parameters"], parameters, "{name}");
        close(&found["values"]["0"], expected[0]);
        close(&found["values"]["1"], expected[1]);
        close(&found["mean"], mean(&expected));
        close(&found["sd"], sd(&expected));
        let versus = &found["vs_baseline"];
        if name == "tied" {
            assert!(versus.is_null());
            continue;
        }
        assert_eq!((&versus["pairs"], &versus["ci95"]), (&2.into(), &Value::Null), "too few for an interval");
        let base = values("tied", "eval/ppl", &[0, 1]);
        close(&versus["mean_difference"], mean(&[expected[0] - base[0], expected[1] - base[1]]));
    }

    // Again: nothing to do, nothing touched.
    let before = tree(&place.path("out"));
    let again = sweep(&place, &[]).expect(0);
    assert!(again.stderr.contains("nothing left to run"), "{again:?}");
    assert_eq!(again.stdout, said.stdout);
    assert!(tree(&place.path("out")) == before, "a finished sweep was changed");

    // A third seed: only its cells run, and there are intervals now.
    sweep(&place, &["--set", "sweep.seeds=[0, 1, 2]"]).expect(0);
    let after = tree(&place.path("out"));
    for run in runs.values() {
        assert!(before.iter().filter(|(p, _)| p.starts_with(&run.0)).all(|(p, b)| after[p] == *b), "a done cell ran");
    }
    let comparison = compare(&place, &[]);
    let (tied, untied) = (values("tied", "eval/ppl", &[0, 1, 2]), values("untied", "eval/ppl", &[0, 1, 2]));
    let differences: Vec<f64> = untied.iter().zip(&tied).map(|(u, t)| u - t).collect();
    let versus = &arm(&comparison, "untied")["vs_baseline"];
    // Student's t with 2 degrees of freedom, 97.5 %.
    let half = 4.302652729696142 * sd(&differences) / 3f64.sqrt();
    assert_eq!(versus["pairs"], 3);
    close(&versus["mean_difference"], mean(&differences));
    close(&versus["ci95"][0], mean(&differences) - half);
    close(&versus["ci95"][1], mean(&differences) + half);
    // Another metric and another baseline.
    let other = compare(&place, &["--metric", "grad/output_over_input", "--baseline", "untied"]);
    assert_eq!(other["metric"], "grad/output_over_input");
    assert!(arm(&other, "untied")["vs_baseline"].is_null() && !arm(&other, "tied")["vs_baseline"].is_null());
    close(&arm(&other, "tied")["mean"], mean(&values("tied", "grad/output_over_input", &[0, 1, 2])));
}

#[test]
fn arms_of_one_seed_start_from_the_same_bits() {
    let place = place(SWEEP);
    // With learning rate 0 the last checkpoint is the initial model.
    sweep(&place, &["--set", "optim.lr=0.0", "--set", "train.steps=2"]).expect(0);
    let (runs, device) = (cells(&place), Device::flex());
    let read = |run: &RunDir, file: &str| -> BTreeMap<String, Vec<f32>> {
        let tensors = tiebreak_train::tensors::read(&run.0.join(file), &device).unwrap();
        tensors.into_iter().map(|(name, t)| (name, t.to_data().iter::<f32>().collect())).collect()
    };
    let (table, model) = ("tables/step-0.safetensors", "checkpoints/step-2/model.safetensors");
    let trunk = |run: &RunDir| -> BTreeMap<String, Vec<f32>> {
        read(run, model).into_iter().filter(|(name, _)| name.starts_with("blocks.")).collect()
    };
    for seed in [0, 1] {
        let [tied, untied, x5] = ["tied", "untied", "tied-x5"].map(|arm| of(&runs, arm, seed));
        let tables = read(untied, table);
        assert_eq!(read(tied, table)["input"], tables["input"]);
        assert_ne!(tables["input"], tables["output"]);
        assert_eq!(read(tied, table), read(x5, table));
        assert_eq!(trunk(tied).len(), 8);
        assert_eq!(trunk(tied), trunk(untied));
        for tag in ["eval/loss", "train/loss", "grad/input_norm", "grad/output_norm"] {
            let step = u64::from(tag != "eval/loss");
            assert_eq!(tied.value(step, tag), x5.value(step, tag), "{tag}: the same data and model");
        }
    }
    assert_ne!(trunk(of(&runs, "tied", 0)), trunk(of(&runs, "tied", 1)), "seeds differ");
    assert_ne!(read(of(&runs, "tied", 0), table), read(of(&runs, "tied", 1), table));
}

#[test]
fn a_grid_compares_point_by_point() {
    let place = place(&format!("{SWEEP}[sweep.grid]\n\"optim.lr\" = [1e-3, 3e-2]\n"));
    sweep(&place, &["--set", "sweep.seeds=[0]", "--set", "train.steps=10"]).expect(0);
    let runs = cells(&place);
    assert_eq!(runs.len(), 6);
    let comparison = compare(&place, &[]);
    for lr in ["0.001", "0.03"] {
        let [tied, untied] = ["tied", "untied"].map(|arm| format!("{arm} optim.lr={lr}"));
        let value = |name: &str| of(&runs, name, 0).value(10, "eval/ppl").unwrap();
        assert_eq!(of(&runs, &tied, 0).value(5, "train/lr").unwrap().to_string(), lr);
        assert!(arm(&comparison, &tied)["vs_baseline"].is_null());
        close(&arm(&comparison, &untied)["vs_baseline"]["mean_difference"], value(&untied) - value(&tied));
    }
}

#[test]
fn matched_parameters() {
    let place = place(&format!(
        "{SWEEP}[[sweep.arms]]\nname = \"matched\"\nset = {{ \"head.mode\" = \"untied\" }}\nmatch_parameters = \"tied\"\n"
    ));
    sweep(&place, &["--set", "sweep.seeds=[0]", "--set", "train.steps=2", "--set", "model.d_ff=512"]).expect(0);
    let comparison = compare(&place, &[]);
    let count = |name: &str| arm(&comparison, name)["parameters"].as_f64().unwrap();
    assert!((count("matched") / count("tied") - 1.0).abs() <= 0.01, "{} and {}", count("matched"), count("tied"));
    assert!(count("untied") / count("tied") > 1.01);
    let config = |name: &str| -> toml::Table {
        std::fs::read_to_string(of(&cells(&place), name, 0).0.join("config.toml")).unwrap().parse().unwrap()
    };
    let (tied, matched) = (config("tied"), config("matched"));
    for key in ["d_model", "n_layers", "n_heads"] {
        assert_eq!(tied["model"][key], matched["model"][key]);
    }
    let d_ff = matched["model"]["d_ff"].as_integer().unwrap();
    assert!(d_ff % 8 == 0 && d_ff < 512, "{d_ff}");
}

#[test]
fn a_diverging_arm_stops_no_other_and_is_counted() {
    let place = place(&format!("{SWEEP}{DIVERGING}"));
    let said = sweep(&place, &[]).expect(1);
    assert!(said.stdout.contains("2 of the sweep's cells did not complete"), "{said:?}");
    assert!(said.stdout.contains("wild") && said.stdout.contains("not a finite number"), "{said:?}");
    let runs = cells(&place);
    for ((name, _), run) in &runs {
        assert_eq!(run.state(), if name == "wild" { "diverged" } else { "complete" });
    }
    let comparison = compare(&place, &[]);
    let wild = arm(&comparison, "wild");
    assert_eq!((&wild["n"], &wild["failed"]), (&0.into(), &2.into()));
    assert!(wild["mean"].is_null() && wild["sd"].is_null() && wild["values"].as_object().unwrap().is_empty());
    assert_eq!(arm(&comparison, "tied")["n"], 2);
    // Diverged cells are not tried again.
    let before: Vec<_> = runs.values().map(|run| tree(&run.0)).collect();
    let again = sweep(&place, &[]).expect(1);
    assert!(again.stdout.contains("not tried again"), "{again:?}");
    assert!(runs.values().map(|run| tree(&run.0)).collect::<Vec<_>>() == before, "a cell ran again");
}

const LONGER: [&str; 2] = ["--set", "train.steps=250"];

#[test]
fn interrupted_and_continued() {
    let (place, other) = (place(SWEEP), place(SWEEP));
    sweep(&other, &LONGER).expect(0);
    let mut child = start(&place, &LONGER);
    wait_until("a complete and a running cell", || {
        let states = states(&place);
        states.iter().any(|s| s == "complete") && states.iter().any(|s| s == "running")
    });
    let said = sweep(&place, &LONGER).expect(2);
    assert!(said.stderr.contains("another process runs this sweep"), "{said:?}");
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let done: Vec<RunDir> = cells(&place).into_values().filter(|run| run.state() == "complete").collect();
    assert!(!done.is_empty() && done.len() < 6, "{:?}", states(&place));
    assert!(!states(&place).contains(&"running".to_owned()), "{:?}", states(&place));
    let before: Vec<_> = done.iter().map(|run| tree(&run.0)).collect();
    sweep(&place, &LONGER).expect(0);
    assert!(done.iter().map(|run| tree(&run.0)).collect::<Vec<_>>() == before, "a done cell ran again");
    let expected = cells(&other);
    for (cell, run) in cells(&place) {
        run.check_tidy();
        assert_same(&run, &expected[&cell], &format!("{cell:?}"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_cell_is_tried_again() {
    let place = place(SWEEP);
    let mut child = start(&place, &LONGER);
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    wait_until("a cell with a checkpoint", || {
        cells(&place).values().any(|run| run.state() == "running" && !run.checkpoints().is_empty())
    });
    let cell = std::fs::read_to_string(children).unwrap();
    signal_pid(cell.split_whitespace().next().unwrap().parse().unwrap(), libc::SIGKILL);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut states = states(&place);
    states.sort();
    // What the killed process wrote last was `running`.
    assert_eq!(states.iter().filter(|s| *s == "complete").count(), 5, "{states:?}");
    let comparison = compare(&place, &[]);
    let total = |key: &str| -> u64 {
        comparison["arms"].as_array().unwrap().iter().map(|a| a[key].as_u64().unwrap_or(0)).sum()
    };
    assert_eq!((total("n"), total("failed")), (5, 0), "it can go on: {comparison}");
    let said = sweep(&place, &LONGER).expect(0);
    assert!(said.stderr.contains("5 complete, 1 to run"), "{said:?}");
    for run in cells(&place).values() {
        assert_eq!(run.state(), "complete");
        run.check_tidy();
    }
}

#[test]
fn a_dry_run_writes_nothing() {
    let place = place(SWEEP);
    let empty = place.path("cache");
    let dry = || {
        let mut command = place.command(binary());
        command.args(["sweep", "sweep.toml", "--out", "out", "--dry-run"]).env("TIEBREAK_CACHE", &empty);
        Said::of(&mut command).expect(0)
    };
    let before = place.tree();
    let said = dry();
    assert!(place.tree() == before && !empty.exists());
    for part in ["tied-x5", "12,992", "17,792", "6 to run", "nothing was written"] {
        assert!(said.stdout.contains(part), "{part}: {said:?}");
    }
    sweep(&place, &["--set", "sweep.seeds=[0]"]).expect(0);
    for jobs in ["1", "2"] {
        let said = sweep(&place, &["--dry-run", "--jobs", jobs]).expect(0);
        assert!(said.stdout.contains(&format!("3 to run, {jobs} at a time")), "{said:?}");
    }
    let said = sweep(&place, &["--dry-run"]).expect(0);
    assert_eq!(said.stdout.matches("| complete |").count(), 3, "{said:?}");
    assert_eq!(said.stdout.matches("| to do    |").count(), 3, "{said:?}");
}

/// A machine without npm and with an empty cache.
fn offline(place: &Place, args: &[&str]) -> Said {
    let mut command = place.command(binary());
    Said::of(command.args(args).env("PATH", "").env("TIEBREAK_CACHE", place.path("cache")))
}

#[test]
fn a_fallback_corpus_is_announced_everywhere() {
    let place = place(SWEEP);
    let sets = ["--set", "data.corpus=sotu", "--set", "data.fallback=synthetic", "--set", "train.steps=10"];
    let said =
        offline(&place, &[&["sweep", "sweep.toml", "--out", "out", "--set", "sweep.seeds=[0]"], &sets[..]].concat());
    let said = said.expect(0);
    for text in [&said.stdout, &said.stderr] {
        assert!(text.contains("fallback") && text.contains("synthetic") && text.contains("npm"), "{said:?}");
    }
    assert!(said.stdout.contains("| synthetic |"), "the table names the corpus used: {said:?}");
    let runs = cells(&place);
    assert_eq!(runs.len(), 3);
    for run in runs.values() {
        let data = &run.json("env.json")["data"];
        assert_eq!(data["corpus"], "synthetic");
        assert!(data["fallback_reason"].as_str().unwrap().contains("npm"), "{data}");
    }
    // The same for one run, and no run without a fallback.
    let said = offline(&place, &[&["train", "run.toml", "--out", "one"], &sets[..]].concat()).expect(0);
    assert!(said.stderr.contains("fallback") && said.stderr.contains("npm"), "{said:?}");
    let said = offline(&place, &["train", "run.toml", "--out", "none", "--set", "data.corpus=sotu"]).expect(1);
    assert!(said.stderr.contains("npm") && said.stderr.contains("synthetic"), "{said:?}");
    assert!(!place.path("none").exists() && said.stdout.is_empty());
}

/// The network returns after the sweep has fallen back: an npm that fails, but leaves the corpus in the cache.
#[cfg(unix)]
#[test]
fn a_cache_filled_midway_does_not_split_a_sweep() {
    use std::os::unix::fs::PermissionsExt;
    let place = place(SWEEP);
    let definition = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/corpora/sotu.toml");
    let definition: toml::Table = std::fs::read_to_string(definition).unwrap().parse().unwrap();
    let package = &definition["packages"][0];
    let text = |key: &str| package[key].as_str().unwrap();
    let name = text("package").trim_start_matches('@').replace('/', "-");
    let folder = place.path(&format!("cache/packages/npm-{name}-{}-{}", text("version"), &text("sha256")[..8]));
    let folder = folder.display();
    let manifest = r#"{"archive_sha256": "", "files": {}}"#;
    let script = format!(
        "#!/bin/sh\n/bin/mkdir -p '{folder}'\necho '{manifest}' > '{folder}/manifest.json'\necho too late >&2\nexit 1\n"
    );
    place.write("bin/npm", script);
    let npm = place.path("bin/npm");
    std::fs::set_permissions(&npm, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = place.command(binary());
    command.args(["sweep", "sweep.toml", "--out", "out", "--set", "train.steps=2", "--set", "sweep.seeds=[0]"]);
    command.args(["--set", "data.corpus=sotu", "--set", "data.fallback=synthetic"]);
    let said = Said::of(command.env("PATH", place.path("bin")).env("TIEBREAK_CACHE", place.path("cache"))).expect(0);
    let runs = cells(&place);
    assert_eq!(runs.len(), 3, "{said:?}");
    for run in runs.values() {
        let data = &run.json("env.json")["data"];
        assert_eq!(data["corpus"], "synthetic");
        assert!(data["fallback_reason"].as_str().unwrap().contains("too late"), "{data}");
    }
}

/// Copies of one run, as two sweeps of overlapping arms make them, count once.
#[test]
fn a_run_copied_elsewhere_counts_once() {
    let place = place(SWEEP);
    let few = ["--set", "train.steps=2", "--set", "sweep.seeds=[0]"];
    sweep(&place, &few).expect(0);
    place.tiebreak(&[&["sweep", "sweep.toml", "--out", "again"], &few[..]].concat()).expect(0);
    let both = compare(&place, &["again"]);
    for name in ["tied", "untied", "tied-x5"] {
        assert_eq!(arm(&both, name)["n"], 1);
        assert_eq!(arm(&both, name)["values"], arm(&compare(&place, &[]), name)["values"]);
    }
    assert_eq!(both["warnings"].as_array().unwrap().len(), 3, "{both}");
}

/// Results are read where the text is no longer, or never was.
#[test]
fn runs_outlive_their_corpus_file() {
    let place = place(SWEEP);
    sweep(&place, &["--set", "train.steps=2"]).expect(0);
    std::fs::remove_file(place.path("text.jsonl")).unwrap();
    assert_eq!(arm(&compare(&place, &[]), "tied")["n"], 2);
    let run = of(&cells(&place), "untied", 0).0.clone();
    let said = place.tiebreak(&["inspect", Path::new(&run).to_str().unwrap(), "--json"]).expect(0);
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&report["head_mode"], &report["parameters"]["unique"]), (&"untied".into(), &17_792.into()));
}
