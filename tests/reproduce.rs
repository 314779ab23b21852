//! `tiebreak reproduce` end to end: the project's own experiments with tiny models.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Place, Said, tree};

/// Twelve steps of a model that trains in the time its process takes to start. The parameters of untied are matched exactly.
const BASE: &str = r#"
[data]
corpus = "../text.jsonl"
tokenizer = "bpe:288"
context_length = 16
[model]
d_model = 16
n_layers = 2
n_heads = 2
[schedule]
warmup_steps = 2
[train]
steps = 12
batch_size = 4
[eval]
every = 6
tokens = 500
[log]
tables_at = [0, 2, 4, 8]
[lens]
train_tokens = 512
eval_tokens = 256
[checkpoint]
every = 0
keep = 1
"#;

/// A working directory with the project's experiments, three seeds of tiny models.
fn place() -> Place {
    let place = Place::new();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments");
    for (path, bytes) in tree(&project) {
        let name = path.strip_prefix(&project).unwrap().to_str().unwrap();
        if let (true, Some(bytes)) = (name.ends_with(".toml"), bytes) {
            let text = String::from_utf8(bytes).unwrap();
            let text = text.replace("[0, 1, 2, 3, 4]", "[0, 1, 2]").replace("[64, 128, 256]", "[8, 16, 32]");
            place.write(&format!("experiments/{name}"), text);
        }
    }
    place.write("experiments/base.toml", BASE);
    place
}

fn reproduce(place: &Place, more: &[&str]) -> Said {
    place.tiebreak(&[&["reproduce", "--scale", "full", "--out", "out"], more].concat())
}

fn json(place: &Place, file: &str) -> Value {
    serde_json::from_slice(&std::fs::read(place.path(file)).unwrap()).unwrap()
}

fn claim<'a>(claims: &'a Value, id: &str) -> &'a Value {
    claims["claims"].as_array().unwrap().iter().find(|claim| claim["id"] == id).unwrap()
}

/// A tag's last value by seed, of the runs of an arm.
fn last(place: &Place, arm: &str, tag: &str) -> BTreeMap<u64, f64> {
    let mut values = BTreeMap::new();
    for path in std::fs::read_dir(place.path("out/runs")).unwrap().map(|e| e.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(seed) = name.strip_prefix(&format!("{arm}-s")).and_then(|rest| rest.split('-').next()) else {
            continue;
        };
        let text = std::fs::read_to_string(path.join("metrics.jsonl")).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let value = lines.rfind(|line| line["tag"] == tag).unwrap()["value"].as_f64().unwrap();
        values.insert(seed.parse().unwrap(), value);
    }
    values.remove(&100);
    values
}

#[test]
fn everything_is_trained_once_measured_and_judged() {
    let place = place();
    let said = reproduce(&place, &[]).expect(0);
    let claims = json(&place, "out/claims.json");
    let all = claims["claims"].as_array().unwrap();
    assert_eq!(all.len(), 13);
    let verdicts =
        ["inconclusive", "reproduced", "reproduced, at chance level", "reproduced, not by the corrected measure"];
    for claim in all {
        let (id, verdict) = (&claim["id"], claim["verdict"].as_str().unwrap());
        assert!(verdicts.contains(&verdict) || ["not reproduced", "opposite"].contains(&verdict), "{id}: {verdict}");
        assert_eq!(claim["missing"].as_array().unwrap().len(), 0, "{claim}");
        let primary = &claim["measures"][0];
        assert_eq!((&primary["role"], &primary["n"]), (&"primary".into(), &3.into()), "{id}");
        let (mean, ci) = (primary["mean"].as_f64().unwrap(), &primary["ci95"]);
        assert!(ci[0].as_f64().unwrap() <= mean && mean <= ci[1].as_f64().unwrap(), "{id}: {primary}");
        assert!(said.stdout.contains(id.as_str().unwrap()), "{said:?}");
    }

    // A measure, from the runs' own logs.
    let (scaled, plain) = (last(&place, "x5", "eval/loss"), last(&place, "tied", "eval/loss"));
    let primary = &claim(&claims, "scaling-worsens-perplexity")["measures"][0];
    for (seed, loss) in &scaled {
        let found = primary["values"][seed.to_string()].as_f64().unwrap();
        assert!((found - (loss - plain[seed])).abs() < 1e-12, "{seed}: {found}");
    }
    // Alignments stand beside their chance levels and ceilings.
    let primary = &claim(&claims, "closer-to-output")["measures"][0];
    for key in ["null", "null_freq", "ceiling"] {
        assert!(primary[key].is_number(), "{primary}");
    }

    // One run an identity: 17 arms of three seeds, the pilots of seed 100, and two more widths of three arms.
    let runs =
        std::fs::read_dir(place.path("out/runs")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let runs: Vec<String> = runs.filter(|name| name.contains("-s")).collect();
    let tested = runs.iter().filter(|name| !name.contains("-s100-")).count();
    let pilot = json(&place, "out/pilot.json");
    // Where x5 moves as tied does, the movement-matched arm is tied itself.
    let arms = if pilot["movement"]["table_lr_scale"] == 1.0 { 16 } else { 17 };
    assert_eq!(tested, arms * 3 + 2 * 3 * 3, "{runs:?}");
    let lr = pilot["rates"]["tied"]["lr"].as_f64().unwrap();
    for arm in ["tied", "x5", "eps-x5"] {
        let run = runs.iter().find(|name| name.starts_with(&format!("{arm}-s0-"))).unwrap();
        let config: toml::Table =
            std::fs::read_to_string(place.path("out/runs").join(run).join("config.toml")).unwrap().parse().unwrap();
        assert_eq!(config["optim"]["lr"].as_float().unwrap(), lr, "{arm}");
    }

    for file in [
        "1_embedding_alignment/histograms.png",
        "5_gradient_flow/gradients.svg",
        "6_gradient_scaling/scaling.png",
        "8_size/size.png",
    ] {
        let bytes = std::fs::read(place.path("experiments").join(file)).unwrap();
        assert!(bytes.len() > 5000 && (bytes.starts_with(b"\x89PNG") || bytes.starts_with(b"<svg")), "{file}");
    }
    let results = std::fs::read_to_string(place.path("experiments/RESULTS.md")).unwrap();
    for part in ["tiebreak reproduce --scale full --out out", "closer-to-output", "movement-matched", "seed 100"] {
        assert!(results.contains(part), "{part}:\n{results}");
    }

    // Nothing is trained or decided anew by a second call, nor by one for a part.
    let before = tree(&place.path("out/runs"));
    reproduce(&place, &["--only", "5_gradient_flow"]).expect(0);
    let after = tree(&place.path("out/runs"));
    assert!(before.iter().all(|(path, bytes)| path.ends_with("sweep.lock") || after[path] == *bytes), "a run changed");
    assert_eq!(json(&place, "out/claims.json"), claims);
}

#[test]
fn a_part_says_what_is_missing_and_what_is_wrong() {
    let place = place();
    // Two seeds judge nothing, and the other experiments' runs are missing.
    let quick = "seeds = 2\n[set]\nmodel.n_layers = 1\n[grid]\n";
    place.write("experiments/quick.toml", quick);
    let args = ["reproduce", "--scale", "quick", "--only", "5_gradient_flow", "--out", "out"];
    let said = place.tiebreak(&args).expect(0);
    let claims = json(&place, "out/claims.json");
    assert!(claims["claims"].as_array().unwrap().iter().all(|claim| claim["verdict"] == "inconclusive"), "{claims}");
    let dominates = claim(&claims, "output-gradient-dominates");
    assert_eq!((&dominates["measures"][0]["n"], dominates["missing"].as_array().unwrap().len()), (&2.into(), 0));
    let matched = claim(&claims, "untying-helps-equal-parameters")["missing"].to_string();
    assert!(matched.contains("tied-matched s0: its pilots are to come"), "{matched}");
    assert!(said.stdout.contains("n too small"), "{said:?}");
    assert!(!place.path("experiments/RESULTS.md").exists() && place.path("out/experiments/RESULTS.md").exists());

    let refused = |args: &[&str], parts: &[&str]| {
        let said = place.tiebreak(args).expect(2);
        assert!(parts.iter().all(|part| said.stderr.contains(part)), "{said:?}");
        assert_eq!(said.stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{said:?}");
    };
    refused(&["reproduce", "--only", "5_gradient_flw"], &["5_gradient_flw", "did you mean \"5_gradient_flow\""]);
    refused(&["reproduce", "--scale", "full", "--out", "out"], &["--out out", "quick scale", "choose another --out"]);
    let mut runs = std::fs::read_dir(place.path("out/runs")).unwrap().map(|e| e.unwrap().path());
    let run = runs.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("tied-s0-")).unwrap();
    refused(&["reproduce", "--out", run.to_str().unwrap()], &["a run's own folder"]);

    std::fs::write(place.path("out/pilot.json"), "{").unwrap();
    refused(&args, &["pilot.json", "remove it"]);
}
