//! What a run measures of its tables while it trains: on schedule, against other seeds, and without touching the training.

use std::collections::BTreeSet;
use std::path::Path;

use tiebreak_train::{KeptTables, Side};

use crate::harness::{Place, RunDir, assert_same, signal, wait_until};

const UNTIED: [&str; 2] = ["--set", "head.mode=untied"];
const PROBE: [&str; 4] = ["--set", "probe.every=25", "--set", "probe.permutations=2"];

/// Untied runs of seeds 1 and 2 and the setting that names them as references.
fn references(place: &Place) -> Vec<String> {
    let folder = |seed: &str| {
        let run = place.train("ref", &[&UNTIED[..], &["--set", seed]].concat()).expect(0).folder(place);
        run.0.to_str().unwrap().to_owned()
    };
    let list = ["seed=1", "seed=2"].map(|seed| format!("\"{}\"", folder(seed))).join(", ");
    vec!["--set".into(), format!("probe.reference=[{list}]")]
}

fn probed(place: &Place, out: &str, references: &[String], more: &[&str]) -> RunDir {
    let references: Vec<&str> = references.iter().map(String::as_str).collect();
    place.train(out, &[&PROBE[..], &references, more].concat()).expect(0).folder(place)
}

/// Pairs of align/ tags and the steps that have them.
fn aligned(run: &RunDir) -> (BTreeSet<String>, BTreeSet<u64>) {
    let metrics = run.metrics().into_iter().filter(|(_, tag, _)| tag.starts_with("align/"));
    metrics.map(|(step, tag, _)| (tag.split('/').nth(1).unwrap().to_owned(), step)).unzip()
}

#[test]
fn tables_are_aligned_on_schedule_and_no_other_number_changes() {
    let place = Place::new();
    let references = references(&place);
    for (mode, expected) in [
        ("head.mode=tied", vec!["input_to_tied", "output_to_tied"]),
        ("head.mode=untied", vec!["input_to_input", "input_to_output", "output_to_output"]),
    ] {
        let plain = place.train("plain", &["--set", mode]).expect(0).folder(&place);
        let run = probed(&place, "probed", &references, &["--set", mode]);
        assert_eq!(plain.0.file_name(), run.0.file_name(), "probes are no part of the identity");
        let (pairs, steps) = aligned(&run);
        assert_eq!(pairs.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        assert_eq!(steps.into_iter().collect::<Vec<_>>(), [25, 50, 60]);
        for pair in &pairs {
            let value =
                |tag: &str| run.value(60, &format!("align/{pair}/{tag}")).unwrap_or_else(|| panic!("{pair}/{tag}"));
            for metric in ["identity", "procrustes", "linear", "linear_heldout", "cca", "knn10"] {
                for tag in ["", "_null", "_null_freq"].map(|null| format!("{metric}{null}")) {
                    assert!(value(&tag).abs() <= 1.0 + 1e-6, "{pair}/{tag}");
                    assert!(tiebreak_sweep::is_tag(&format!("align/{pair}/{tag}")));
                }
            }
            assert!(value("linear") > value("linear_heldout") && value("linear_null") > 0.1);
        }
        // Everything else is as without probes, bit for bit.
        let without = |run: &RunDir| {
            let mut result = run.result();
            let text = String::from_utf8(result.remove("metrics.jsonl").unwrap()).unwrap();
            let kept: String = text.lines().filter(|l| !l.contains(" align/")).map(|l| format!("{l}\n")).collect();
            result.insert("metrics.jsonl".into(), kept.into_bytes());
            result
        };
        assert!(without(&run) == without(&plain), "{mode}");
    }
}

/// Of seed 1, aligned with itself as a reference: the same tables, so everything is 1, and the warning says why.
#[test]
fn the_reference_is_read_at_its_last_table_not_after_the_step() {
    let place = Place::new();
    let seed = ["--set", "seed=1"];
    let reference = place.train("ref", &[&UNTIED[..], &seed].concat()).expect(0).folder(&place);
    let setting = format!("probe.reference=[{:?}]", reference.0.to_str().unwrap());
    // Tables are kept at 0, 10, 30 and 60; probes at 15, 30, 45 and 60.
    let more = ["--set", "probe.every=15", "--set", &setting, "--set", "probe.permutations=0", "--set", "name=again"];
    let said = place.train("out", &[&more[..], &UNTIED, &seed].concat()).expect(0);
    assert!(said.stderr.contains("has this run's seed 1"), "{said:?}");
    let run = said.folder(&place);
    for (step, same) in [(15, false), (30, true), (45, false), (60, true)] {
        for tag in ["align/input_to_input/identity", "align/output_to_output/procrustes"] {
            let value = run.value(step, tag).unwrap();
            assert_eq!((value - 1.0).abs() < 1e-5, same, "{tag} at {step}: {value}");
        }
        assert_eq!(run.value(step, "align/input_to_input/identity_null"), None, "no permutations, no null");
    }
}

#[test]
fn kept_tables_turn_and_the_residual_stream_grows() {
    let place = Place::new();
    for (mode, side) in [("tied", Side::Tied), ("untied", Side::Output)] {
        let run = place.train("out", &["--set", &format!("head.mode={mode}")]).expect(0).folder(&place);
        let kept = KeptTables::open(&run.0).unwrap();
        let counts = kept.counts().unwrap();
        let rows = |step: u64| kept.tables(step).unwrap().into_iter().find(|(s, _)| *s == side).unwrap().1;
        // In plain f64, over ids that occur.
        let mean = |a: u64, b: u64| {
            let (a, b) = (rows(a), rows(b));
            let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| *x as f64 * *y as f64).sum::<f64>();
            let cosine = |id: usize| {
                let (x, y) = (a.row(id), b.row(id));
                dot(x, y) / (dot(x, x) * dot(y, y)).sqrt()
            };
            let seen: Vec<usize> = (0..counts.len()).filter(|id| counts[*id] > 0).collect();
            seen.iter().map(|id| cosine(*id)).sum::<f64>() / seen.len() as f64
        };
        for (step, before) in [(10, 0), (30, 10), (60, 30)] {
            let value = |tag: &str| run.value(step, &format!("embedding/{tag}")).unwrap();
            assert!((value("output_cos_to_init") - mean(step, 0)).abs() < 1e-6);
            assert!((value("output_cos_to_prev") - mean(step, before)).abs() < 1e-6);
            assert_eq!(value("input_cos_to_init") == value("output_cos_to_init"), mode == "tied");
            assert!(value("output_cos_to_init") < 1.0);
        }
        assert!((run.value(0, "embedding/input_cos_to_init").unwrap() - 1.0).abs() < 1e-6);
        assert_eq!(run.value(0, "embedding/input_cos_to_prev"), None);
        for (step, layer) in [(0, 1), (0, 2), (10, 1), (60, 2)] {
            assert!(run.value(step, &format!("residual/{layer}/update_over_stream")).unwrap() > 0.0);
        }
        assert_eq!(run.value(60, "residual/3/update_over_stream"), None);
    }
}

/// Shares of the update are logged at every step and sum to 1; groups of ids make up the norm of the ids that occur.
#[test]
fn shares_and_groups_of_a_run() {
    let place = Place::new();
    for mode in ["tied", "untied"] {
        let run = place.train("out", &["--set", &format!("head.mode={mode}")]).expect(0).folder(&place);
        for step in [1, 2, 33, 60] {
            let value = |tag: &str| run.value(step, tag).unwrap_or_else(|| panic!("{tag} at {step}"));
            let shares = [value("update/input_signed_share"), value("update/output_signed_share")];
            assert!((shares[0] + shares[1] - 1.0).abs() < 1e-6 && shares[0] != 0.0, "{shares:?}");
            let of_groups = (0..10).map(|k| value(&format!("grad/decile/{k}/input_norm")).powi(2)).sum::<f64>().sqrt();
            let whole = value("grad/input_norm");
            assert!((of_groups - whole).abs() < 1e-6 * whole, "only ids that occur are looked up");
            let groups: Vec<f64> = (0..10).map(|k| value(&format!("grad/decile/{k}/output_norm"))).collect();
            assert!(groups.iter().map(|x| x * x).sum::<f64>().sqrt() <= value("grad/output_norm") * (1.0 + 1e-6));
            assert!(groups[0] > groups[9], "frequent ids get more gradient");
        }
    }
}

#[test]
fn interrupted_and_resumed_with_probes() {
    let place = Place::new();
    let references = references(&place);
    let references: Vec<&str> = references.iter().map(String::as_str).collect();
    let long = ["--set", "train.steps=300", "--set", "log.histograms_every=25"];
    let more = [&PROBE[..], &references, &long].concat();
    let expected = place.train("whole", &more).expect(0).folder(&place);
    for (how, threads) in [(libc::SIGTERM, "threads=1"), (libc::SIGKILL, "threads=3")] {
        let out = format!("out-{how}");
        let more = [&more[..], &["--set", threads]].concat();
        let mut child = place.start(&out, &more);
        wait_until("a checkpoint", || {
            place.started_below(&out).is_some_and(|run| run.checkpoints().last() > Some(&30))
        });
        signal(&child, how);
        child.wait().unwrap();
        let run = place.train(&out, &[&more[..], &["--resume"]].concat()).expect(0).folder(&place);
        run.check_tidy();
        assert_same(&run, &expected, &out);
    }
}

/// A checkpoint of a version that did not keep the input side's part of the moment, and a lost table.
#[test]
fn what_a_resume_needs_is_refused_by_name_if_it_is_missing() {
    let place = Place::new();
    let more = ["--set", "train.steps=300"];
    let mut child = place.start("out", &more);
    wait_until("a checkpoint", || place.started_below("out").is_some_and(|run| run.checkpoints().last() > Some(&30)));
    signal(&child, libc::SIGTERM);
    child.wait().unwrap();
    let run = place.run_below("out");
    let refused = |parts: &[&str]| {
        let before = place.tree();
        let said = place.train("out", &[&more[..], &["--resume"]].concat()).expect(2);
        assert!(parts.iter().all(|part| said.stderr.contains(part)), "{said:?}");
        assert!(place.tree() == before, "something was written");
    };
    let table = run.0.join("tables/step-10.safetensors");
    let aside = place.path("aside");
    std::fs::rename(&table, &aside).unwrap();
    // The last table before the checkpoint is another one, unless the checkpoint is early.
    let before = *run.checkpoints().last().unwrap();
    if before < 30 {
        refused(&["step-10.safetensors"]);
    }
    std::fs::rename(&aside, &table).unwrap();
    let first = run.0.join("tables/step-0.safetensors");
    std::fs::rename(&first, &aside).unwrap();
    refused(&["no tables of step 0", "checkpoints"]);
    std::fs::rename(&aside, &first).unwrap();

    let folder = run.0.join(format!("checkpoints/step-{before}"));
    let optimiser = folder.join("optimiser.safetensors");
    let device = burn::tensor::Device::flex();
    let mut stored = tiebreak_train::tensors::read(&optimiser, &device).unwrap();
    stored.remove("table/first_input").expect("the input side's part is kept");
    let tensors = stored.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let bytes = tiebreak_train::tensors::to_bytes(tensors, ("origin", "test".into())).unwrap();
    std::fs::write(&optimiser, &bytes).unwrap();
    let state = std::fs::read_to_string(folder.join("state.json")).unwrap();
    let mut state: serde_json::Value = serde_json::from_str(&state).unwrap();
    state["sha256"]["optimiser.safetensors"] = tiebreak_data::sha256_hex(&bytes).into();
    std::fs::write(folder.join("state.json"), state.to_string()).unwrap();
    refused(&["table/first_input is missing", "earlier version"]);
}

#[test]
fn references_that_cannot_serve() {
    let place = Place::new();
    let good = place.train("ref", &["--set", "seed=1"]).expect(0).folder(&place);
    let run = |name: &str, more: &[&str]| place.train(name, more).expect(0).folder(&place).0;
    let bytes = run("bytes", &["--set", "data.tokenizer=bytes"]);
    let wide = run("wide", &["--set", "model.d_model=24"]);
    let bare = run("bare", &["--set", "seed=3"]);
    std::fs::remove_dir_all(bare.join("tables")).unwrap();
    let late = run("late", &["--set", "seed=4"]);
    std::fs::remove_file(late.join("tables/step-0.safetensors")).unwrap();
    std::fs::remove_file(late.join("tables/step-10.safetensors")).unwrap();
    let damaged = run("damaged", &["--set", "seed=5"]);
    std::fs::write(damaged.join("tables/step-30.safetensors"), b"no tables").unwrap();
    let foreign = run("foreign", &["--set", "seed=6"]);
    std::fs::copy(wide.join("tables/step-30.safetensors"), foreign.join("tables/step-30.safetensors")).unwrap();
    let mut child = place.start("cut", &["--set", "seed=7", "--set", "train.steps=10000"]);
    wait_until("a checkpoint", || place.started_below("cut").is_some_and(|run| !run.checkpoints().is_empty()));
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    let cut = place.run_below("cut").0;
    place.write("text/file.txt", "no run");

    let twice = vec![good.0.clone(), good.0.clone()];
    let none = place.path("none");
    let cases: Vec<(Vec<std::path::PathBuf>, &str, &[&str])> = vec![
        (vec![none], "a folder that is not there", &["no run", "none"]),
        (vec![place.path("text")], "a folder that is no run", &["no run", "text"]),
        (twice, "one run twice", &["named twice"]),
        (vec![bytes], "another tokenizer", &["tokenizer", "bytes, 257 ids", "bpe:300, 300 ids"]),
        (vec![wide], "another width", &["model.d_model = 24 there and 16 here"]),
        (vec![bare], "no tables", &["no tables"]),
        (vec![late], "tables that begin too late", &["no kept table at or before step 20"]),
        (vec![damaged], "a damaged table", &["step-30.safetensors"]),
        (vec![foreign], "another run's table", &["step-30.safetensors", "300 x 24"]),
        (vec![cut], "an unfinished run", &["the run is interrupted", "finish it"]),
    ];
    for (folders, what, parts) in cases {
        let list: Vec<String> =
            folders.iter().map(|f: &std::path::PathBuf| format!("{:?}", f.to_str().unwrap())).collect();
        let setting = format!("probe.reference=[{}]", list.join(", "));
        let before = place.tree();
        let said = place.train("out", &["--set", "probe.every=20", "--set", &setting]).expect(2);
        assert!(said.stderr.contains("probe.reference"), "{what}: {said:?}");
        for part in parts {
            assert!(said.stderr.contains(part), "{what}: {part:?}: {said:?}");
        }
        assert!(place.tree() == before && said.stdout.is_empty(), "{what}: something was written");
    }
    // More columns than rows to fit on, which no reference is needed for.
    let more = ["--set", "model.d_model=512", "--set", "head.mode=untied", "--set", "probe.every=20"];
    let said = place.train("out", &more).expect(2);
    assert!(said.stderr.contains("probe.every = 20") && said.stderr.contains("512 columns"), "{said:?}");
    assert!(!Path::new(&place.path("out")).exists());
}
