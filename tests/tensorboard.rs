//! The real TensorBoard reads what runs write: finished, resumed, killed and diverged ones, by its Python reader and by its
//! fast loader. Set TIEBREAK_TENSORBOARD_PYTHON to a Python that has PyPI's tensorboard (scripts/read_events.py says how).

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::Value;
use tiebreak_train::track::{TensorBoard, Tracker};

use crate::harness::{Place, RunDir, Said, wait_until};

/// A PNG of three colours in two rows.
const THREE_BY_TWO: &[u8] = b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\x00\x00\x00\x03\x00\x00\x00\x02\x08\x02\x00\x00\x00\x12\x16\xf1M\x00\x00\x00\
\x10IDATx\xdac\xf8\xcf\xc0\xc0\x00\xc1p\x16\x00;\xd8\x05\xfb6\x11\x98\xea\x00\x00\x00\x00IEND\xaeB`\x82";

/// The step-by-step values of one reader.
type Series = BTreeMap<String, BTreeMap<u64, f64>>;

fn series(value: &Value) -> Series {
    let points = |points: &Value| {
        let points = points.as_array().unwrap();
        let map: BTreeMap<u64, f64> = points.iter().map(|p| (p[0].as_u64().unwrap(), p[1].as_f64().unwrap())).collect();
        assert_eq!(map.len(), points.len(), "a step occurs twice: {points:?}");
        map
    };
    value.as_object().unwrap().iter().map(|(tag, p)| (tag.clone(), points(p))).collect()
}

fn logged(run: &RunDir) -> Series {
    let mut series = Series::new();
    for (step, tag, value) in run.metrics() {
        assert!(series.entry(tag).or_default().insert(step, value).is_none());
    }
    series
}

/// Event files hold f32.
fn assert_close(found: &Series, expected: &Series, what: &str) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}: tags");
    for (tag, points) in found {
        assert_eq!(
            points.keys().collect::<Vec<_>>(),
            expected[tag].keys().collect::<Vec<_>>(),
            "{what}: steps of {tag}"
        );
        for (step, value) in points {
            let wanted = expected[tag][step];
            assert!(
                (value - wanted).abs() <= 1e-6 * wanted.abs(),
                "{what}: {tag} at {step}: {value}, expected {wanted}"
            );
        }
    }
}

fn until(series: &Series, last: u64) -> Series {
    let cut = |points: &BTreeMap<u64, f64>| points.range(..=last).map(|(s, v)| (*s, *v)).collect();
    series
        .iter()
        .map(|(tag, points)| (tag.clone(), cut(points)))
        .filter(|(_, p): &(_, BTreeMap<_, _>)| !p.is_empty())
        .collect()
}

/// The keys of `config.toml` as TensorBoard should show them.
fn hparams(run: &RunDir) -> BTreeMap<String, Value> {
    let config: toml::Table = std::fs::read_to_string(run.0.join("config.toml")).unwrap().parse().unwrap();
    let kept = |key: &str| !matches!(key, "name" | "seed" | "threads") && !key.starts_with("checkpoint.");
    let flat = tiebreak_train::config::flatten(&config).into_iter().filter(|(key, _)| kept(key));
    flat.map(|(key, value)| {
        let value = match value {
            toml::Value::Integer(i) => (i as f64).into(),
            toml::Value::Float(x) => x.into(),
            toml::Value::Boolean(b) => b.into(),
            toml::Value::String(s) => s.into(),
            other => other.to_string().into(),
        };
        (key, value)
    })
    .collect()
}

#[test]
fn tensorboard_reads_every_kind_of_run() {
    let Some(python) = std::env::var_os("TIEBREAK_TENSORBOARD_PYTHON") else {
        // Past the capture of a passing test, for nobody should take this for a check.
        let _ = writeln!(
            std::io::stderr(),
            "tensorboard: SKIPPED, for TIEBREAK_TENSORBOARD_PYTHON names no Python with tensorboard"
        );
        return;
    };
    let place = Place::new();
    // A name each: TensorBoard shows runs of one name as one row, with the hyperparameters of any of them.
    let kill_at = |name: &str, more: &[&str], step: u64| {
        let (out, name) = (&format!("tb/{name}"), format!("name={name}"));
        let mut child = place.start(out, &[more, &["--set", &name]].concat());
        wait_until("a checkpoint", || {
            place.started_below(out).is_some_and(|run| run.checkpoints().last().is_some_and(|last| *last >= step))
        });
        child.kill().unwrap();
        child.wait().unwrap();
        place.run_below(out)
    };
    let train = |name: &str, more: &[&str]| {
        place.train(&format!("tb/{name}"), &[more, &["--set", &format!("name={name}")]].concat())
    };
    let finished = train("finished", &["--set", "log.histograms_every=20"]).expect(0).folder(&place);
    let long = ["--set", "train.steps=300", "--resume"];
    kill_at("resumed", &long, 20);
    kill_at("resumed", &long, 100);
    let resumed = train("resumed", &long).expect(0).folder(&place);
    let killed = kill_at("killed", &["--set", "train.steps=10000"], 50);
    let wild = ["--set", "optim.lr=1000", "--set", "optim.clip_norm=0"];
    let diverged = train("diverged", &wild).expect(1).folder(&place);
    let probes = ["head.mode=untied", "probe.every=20", "probe.permutations=2", "log.histograms_every=20"];
    let probes: Vec<&str> = probes.into_iter().flat_map(|set| ["--set", set]).collect();
    let probed = train("probed", &probes).expect(0).folder(&place);
    let switching = train("switching", &["--set", "head.mode=tie_then_untie"]).expect(0).folder(&place);
    assert_eq!(
        (switching.value(30, "head/one_matrix"), switching.value(31, "head/one_matrix")),
        (Some(1.0), Some(0.0))
    );
    // Pictures are made later, into a folder of their own.
    std::fs::create_dir_all(place.path("tb/figures")).unwrap();
    let mut figures = TensorBoard::open(&place.path("tb/figures"), None).unwrap();
    figures.image(600, "figure/flag", THREE_BY_TWO).unwrap();
    figures.sync().unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/read_events.py");
    let said = Said::of(place.command(python).arg(script).arg(place.path("tb"))).expect(0);
    let read: Value = serde_json::from_str(&said.stdout).unwrap();
    let folders: Vec<&String> = read["runs"].as_object().unwrap().keys().collect();
    assert_eq!(folders.len(), 7, "one run per folder: {folders:?}");
    assert_eq!(read["runs"]["figures"]["images"]["figure/flag"], serde_json::json!([[600, 3, 2]]));
    let of = |run: &RunDir| -> &Value {
        let name = run.0.strip_prefix(place.path("tb")).unwrap().to_str().unwrap();
        &read["runs"][name]
    };
    for (what, run, status) in [
        ("finished", &finished, "STATUS_SUCCESS"),
        ("resumed", &resumed, "STATUS_SUCCESS"),
        ("diverged", &diverged, "STATUS_FAILURE"),
        ("probed", &probed, "STATUS_SUCCESS"),
        ("switching", &switching, "STATUS_SUCCESS"),
        ("killed", &killed, "STATUS_UNKNOWN"),
    ] {
        let found = of(run);
        assert_eq!(found["duplicates"], Value::Array(vec![]), "{what}");
        assert_eq!(found["files"].as_array().unwrap().len(), 1, "{what}");
        let (python, fast, expected) = (series(&found["python"]), series(&found["fast"]), logged(run));
        if what == "killed" {
            // Each of the two logs goes its own way after the last checkpoint.
            let last = *run.checkpoints().last().unwrap();
            assert!(last >= 50);
            assert_close(&until(&python, last), &until(&expected, last), "killed, Python");
            assert_close(&until(&fast, last), &until(&expected, last), "killed, fast");
        } else {
            assert_eq!(found["damaged"], Value::Array(vec![]), "{what}");
            assert_close(&python, &expected, &format!("{what}, Python"));
            assert_close(&fast, &expected, &format!("{what}, fast"));
        }
        let shown: BTreeMap<String, Value> = serde_json::from_value(found["hparams"].clone()).unwrap();
        assert_eq!(shown, hparams(run), "{what}");
        assert_eq!(found["session"]["group"], what);
        assert_eq!(found["session"]["status"], status, "{what}");
        // One chart holds the norms of both sides.
        let charts = found["layout"].as_array().unwrap();
        let both = ["^grad/input_norm$", "^grad/output_norm$"].map(Value::from).to_vec();
        assert!(charts.iter().any(|chart| chart["tags"] == Value::Array(both.clone())), "{what}: {charts:?}");
    }
    // 300 rows in each histogram.
    let rows: Value = [1, 20, 40, 60].map(|step| serde_json::json!([step, 300.0])).to_vec().into();
    for tag in ["embedding/input_row_norm", "embedding/output_row_norm", "grad/input_row_norm", "grad/output_row_norm"]
    {
        assert_eq!(of(&finished)["histograms"][tag], rows, "{tag}");
    }
    // One cosine for each id that occurs in the training split.
    let tokens = &of(&probed)["histograms"]["align/input_to_output/procrustes_tokens"];
    let counts = tiebreak_train::KeptTables::open(&probed.0).unwrap().counts().unwrap();
    let seen = counts.iter().filter(|count| **count > 0).count() as f64;
    assert!(seen > 2.0);
    assert_eq!(*tokens, Value::from([20, 40, 60].map(|step| serde_json::json!([step, seen])).to_vec()));
}
