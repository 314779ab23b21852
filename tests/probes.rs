//! `tiebreak probe` on runs: which pairs it makes, what it says of them, what it keeps.

use serde_json::Value;

use crate::harness::{Place, RunDir};

fn run(place: &Place, arm: &str, seed: u64) -> (String, RunDir) {
    let (mode, seed) = (format!("head.mode={arm}"), format!("seed={seed}"));
    let set = ["--set", &mode, "--set", &seed, "--set", &format!("name={arm}")].map(str::to_owned);
    let run = place.train("out", &set.iter().map(String::as_str).collect::<Vec<_>>()).expect(0).folder(place);
    (run.0.file_name().unwrap().to_str().unwrap().to_owned(), run)
}

fn probe(place: &Place, runs: &[&(String, RunDir)], more: &[&str]) -> Value {
    let folders: Vec<String> = runs.iter().map(|(name, _)| format!("out/{name}")).collect();
    let args = [&["probe"][..], &folders.iter().map(String::as_str).collect::<Vec<_>>(), &["--json"], more].concat();
    let said = place.tiebreak(&args).expect(0);
    serde_json::from_str(&said.stdout).unwrap_or_else(|e| panic!("{e}: {}", said.stdout))
}

fn value(pair: &Value, metric: &str, key: &str) -> f64 {
    pair["metrics"][metric][key].as_f64().unwrap_or_else(|| panic!("{metric} {key}: {pair}"))
}

/// source, target, relation, same_seed.
fn pairs(report: &Value) -> Vec<[String; 4]> {
    let text = |pair: &Value, key: &str| match &pair[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let pairs = report["pairs"].as_array().unwrap().iter();
    pairs.map(|p| ["source", "target", "relation", "same_seed"].map(|key| text(p, key))).collect()
}

#[test]
fn pairs_of_a_sweep() {
    let place = Place::new();
    let (u0, u1, t0, t1) =
        (run(&place, "untied", 0), run(&place, "untied", 1), run(&place, "tied", 0), run(&place, "tied", 1));
    let report = probe(&place, &[&u0, &u1, &t0, &t1], &["--permutations", "3"]);
    let pair = |a: &str, b: &str, relation: &str, same_seed: &str| [a, b, relation, same_seed].map(str::to_owned);
    let of = |run: &(String, RunDir), side: &str| format!("{}:{side}", run.0);
    let mut expected = Vec::new();
    for untied in [&u0, &u1] {
        expected.push(pair(&of(untied, "input"), &of(untied, "output"), "within", "true"));
        for tied in [&t0, &t1] {
            let same = (std::ptr::eq(untied, &u0) == std::ptr::eq(tied, &t0)).to_string();
            for side in ["input", "output"] {
                expected.push(pair(&of(untied, side), &of(tied, "tied"), "across", &same));
            }
        }
    }
    expected.push(pair(&of(&u0, "input"), &of(&u1, "input"), "ceiling", "false"));
    expected.push(pair(&of(&u0, "output"), &of(&u1, "output"), "ceiling", "false"));
    expected.push(pair(&of(&t0, "tied"), &of(&t1, "tied"), "ceiling", "false"));
    let mut found = pairs(&report);
    found.sort();
    expected.sort();
    assert_eq!(found, expected);

    let tokens = report["rows"]["ids"].as_u64().unwrap();
    assert_eq!((&report["rows"]["which"], &report["rows"]["vocabulary"]), (&Value::from("seen"), &Value::from(300)));
    assert!((17..300).contains(&tokens), "{tokens} ids occur");
    for pair in report["pairs"].as_array().unwrap() {
        assert_eq!(pair["tokens"].as_u64(), Some(tokens));
        for metric in ["identity", "procrustes", "linear", "linear_heldout", "cca", "knn10", "cka", "norm_spearman"] {
            for key in ["value", "null", "null_sd", "null_freq", "null_freq_sd"] {
                assert!((-1.0..=1.0).contains(&value(pair, metric, key)), "{metric} {key}: {pair}");
            }
            // Of two metrics a limit for many rows, which has to be told from a value.
            let too_few = ["procrustes", "cca"].contains(&metric) && tokens < 8 * 16;
            assert_eq!(pair["metrics"][metric]["analytic_null"].is_null(), too_few, "{metric}: {tokens} rows");
        }
        assert!(pair["learned"]["metrics"]["procrustes"]["null_freq"].is_f64(), "{pair}");
        assert!(pair["learned"]["tokens"].as_u64().unwrap() <= tokens);
    }
    let models = report["models"].as_array().unwrap();
    assert_eq!(models.iter().map(|m| m["tables"].as_array().unwrap().len()).collect::<Vec<_>>(), [2, 2, 1, 1]);
    for (model, (name, run)) in models.iter().zip([&u0, &u1, &t0, &t1]) {
        assert_eq!((model["run"].as_str(), model["step"].as_u64()), (Some(&name[..]), Some(60)));
        for table in model["tables"].as_array().unwrap() {
            let evolution = table["evolution"].as_array().unwrap();
            let steps: Vec<u64> = evolution.iter().map(|e| e["step"].as_u64().unwrap()).collect();
            assert_eq!(steps, [0, 10, 30, 60]);
            let init = |i: usize| evolution[i]["cos_to_init"]["mean"].as_f64().unwrap();
            assert!((init(0) - 1.0).abs() < 1e-12 && init(1) > init(2) && init(2) > init(3), "{evolution:?}");
            assert!(evolution[0]["cos_to_prev"].is_null());
            // The table before the second is the first.
            assert_eq!(evolution[1]["cos_to_prev"], evolution[1]["cos_to_init"]);
            assert!(table["geometry"]["effective_rank"].as_f64().unwrap() <= 16.0 + 1e-9);
            assert!(table["norm_frequency"]["spearman"].is_f64());
        }
        for what in ["alignment", "learned", "knn", "geometry", "evolution", "norm_frequency"] {
            let kept = run.json(&format!("probes/{what}-step-60.json"));
            assert_eq!(kept["model"]["run"].as_str(), Some(&name[..]), "{what}");
            let pairs = kept["pairs"].as_array().unwrap();
            let own = |key: &str, pair: &Value| pair[key].as_str().unwrap().starts_with(&name[..]);
            assert!(pairs.iter().all(|p| own("source", p) || own("target", p)), "{what}");
            assert_eq!(pairs.is_empty(), what == "evolution");
        }
        let kept = run.json("probes/knn-step-60.json");
        assert_eq!(kept["pairs"][0]["metrics"].as_object().unwrap().keys().collect::<Vec<_>>(), ["knn10"]);
        run.check_tidy();
    }

    // The same again gives the same document, and the text names the nulls.
    assert_eq!(report, probe(&place, &[&u0, &u1, &t0, &t1], &["--permutations", "3"]));
    let text =
        place.tiebreak(&["probe", &format!("out/{}", u0.0), &format!("out/{}", t0.0), "--only", "alignment,knn"]);
    let text = text.expect(0).stdout;
    for part in ["null_freq", "procrustes", "knn10", ":tied *", "ids that occur in the training split", " ± "] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains("effective rank") && !text.contains("learned procrustes"), "{text}");
}

/// At step 0 a tied and an untied run of one seed share the table, and of two seeds nothing.
#[test]
fn a_shared_start_is_seen_and_marked() {
    let place = Place::new();
    let (u0, t0, t1) = (run(&place, "untied", 0), run(&place, "tied", 0), run(&place, "tied", 1));
    let report = probe(&place, &[&u0, &t0, &t1], &["--step", "0", "--permutations", "4", "--rows", "all"]);
    assert_eq!((&report["rows"]["which"], report["rows"]["ids"].as_u64()), (&Value::from("all"), Some(300)));
    let pairs = report["pairs"].as_array().unwrap();
    let find = |source: &str, target: &(String, RunDir)| {
        let (source, target) = (format!("{}:{source}", u0.0), format!("{}:tied", target.0));
        pairs.iter().find(|p| p["source"] == source && p["target"] == target).unwrap()
    };
    let same = find("input", &t0);
    assert_eq!(same["same_seed"], true);
    for metric in ["identity", "procrustes", "linear", "linear_heldout", "cca", "knn10", "cka"] {
        assert!((value(same, metric, "value") - 1.0).abs() < 1e-5, "{metric}: {same}");
    }
    for pair in [find("input", &t1), find("output", &t0), find("output", &t1)] {
        for metric in ["identity", "procrustes", "linear", "linear_heldout", "cca"] {
            // Fresh tables are truncated normals: the analytic null holds, within 6 % at V = 300, d = 16.
            let (found, expected) = (value(pair, metric, "value"), value(pair, metric, "analytic_null"));
            assert!((found - expected).abs() < 0.06, "{metric}: {pair}");
        }
    }
    // Nothing was learned yet.
    assert!(pairs.iter().all(|p| p.get("learned").is_none()));
}

#[test]
fn all_pairs_are_both_ways() {
    let place = Place::new();
    let (u0, t1) = (run(&place, "untied", 0), run(&place, "tied", 1));
    let report = probe(&place, &[&u0, &t1], &["--pairs", "all", "--only", "knn", "--permutations", "0"]);
    assert_eq!(pairs(&report).len(), 6);
    for pair in report["pairs"].as_array().unwrap() {
        assert!(pair["metrics"]["knn10"]["null"].is_null() && pair["metrics"]["knn10"]["analytic_null"].is_f64());
    }
    // A run by itself has no pair if it has one table.
    let alone = probe(&place, &[&t1], &["--only", "alignment,geometry"]);
    assert_eq!(pairs(&alone).len(), 0);
    assert!(alone["models"][0]["tables"][0]["geometry"]["mean_cosine"].is_f64());
    // Named twice, it is still one.
    assert_eq!(probe(&place, &[&t1, &t1], &["--only", "geometry"])["models"].as_array().unwrap().len(), 1);
}

/// What has turned since step 0 is not measured from another step.
#[test]
fn a_lost_first_table_is_refused_where_it_is_needed() {
    let place = Place::new();
    let t0 = run(&place, "tied", 0);
    std::fs::remove_file(t0.1.0.join("tables/step-0.safetensors")).unwrap();
    let (folder, before) = (format!("out/{}", t0.0), place.tree());
    for only in ["evolution", "learned"] {
        let said = place.tiebreak(&["probe", &folder, "--only", only]).expect(2);
        assert!(said.stderr.contains("no tables of step 0 were kept") && said.stdout.is_empty(), "{said:?}");
    }
    assert!(place.tree() == before, "something was written");
    probe(&place, &[&t0], &["--only", "geometry"]);
}
