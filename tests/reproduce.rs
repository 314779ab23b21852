//! `tiebreak reproduce` end to end: the project's own experiments with tiny models.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tiebreak_probe::{Metric, Options, align};
use tiebreak_train::{KeptTables, Side};

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
pub fn place() -> Place {
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

/// Values by seed.
type Seeds = BTreeMap<u64, f64>;

/// The experiments' runs of an arm, by seed; not the pilots'.
fn runs(place: &Place, arm: &str) -> BTreeMap<u64, PathBuf> {
    let all = std::fs::read_dir(place.path("out/runs")).unwrap().map(|e| e.unwrap().path());
    let seed = |path: &PathBuf| {
        let rest = path.file_name()?.to_str()?.strip_prefix(&format!("{arm}-s"))?;
        rest.split('-').next()?.parse().ok()
    };
    all.filter_map(|path| Some((seed(&path)?, path))).filter(|(seed, _)| *seed != 100).collect()
}

/// Values of a tag, in the order of steps.
fn series(run: &Path, tag: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["tag"] == tag).map(|line| line["value"].as_f64().unwrap()).collect()
}

fn each(runs: &BTreeMap<u64, PathBuf>, of: impl Fn(&Path) -> f64) -> Seeds {
    runs.iter().map(|(seed, run)| (*seed, of(run))).collect()
}

fn less(a: &Seeds, b: &Seeds) -> Seeds {
    a.iter().map(|(seed, a)| (*seed, a - b[seed])).collect()
}

/// What a claim's measure of a role should be, by seed: from the runs' files, one plain loop each.
fn expected(place: &Place, id: &str, role: &str) -> Option<Seeds> {
    let of = |arm: &str| runs(place, arm);
    let kept = |run: &Path| KeptTables::open(run).unwrap();
    let table = |run: &Path, side: Side, step: u64| {
        let tables = kept(run).tables(step).unwrap();
        tables.into_iter().find(|(s, _)| *s == side).unwrap_or_else(|| panic!("{side:?} of {run:?}")).1
    };
    // Of shared tables of `arm` and one table of the untied models: mean over the untied models of other seeds.
    let crossed = |arm: &str, side: Side, metric: Metric| -> Seeds {
        let untied = of("untied");
        each(&of(arm), |run| {
            let config = kept(run).config;
            let options = Options { metrics: vec![metric], permutations: 0, ..Options::default() };
            let others = untied.iter().filter(|(seed, _)| **seed != config.seed);
            let scores: Vec<f64> = others
                .map(|(_, other)| {
                    let (source, target) = (table(other, side, 12), table(run, Side::Tied, 12));
                    let rows = kept(run).rows(false).unwrap();
                    align(&source, &target, rows, options.clone()).unwrap().scores[&metric].value
                })
                .collect();
            assert_eq!(scores.len(), 2);
            (scores[0] + scores[1]) / 2.0
        })
    };
    let output_less_input =
        |arm: &str, metric: Metric| less(&crossed(arm, Side::Output, metric), &crossed(arm, Side::Input, metric));
    let loss = |arm: &str, baseline: &str| {
        let last = |run: &Path| *series(run, "eval/loss").last().unwrap();
        less(&each(&of(arm), last), &each(&of(baseline), last))
    };
    // The first tenth of twelve steps is the first.
    let first_log_ratio =
        |above: &str, below: &str| each(&of("tied"), |run| (series(run, above)[0] / series(run, below)[0]).ln());
    let lens = |arm: &str, key: &str| {
        each(&of(arm), |run| {
            let report = std::fs::read(run.join("probes/lens-step-12-converged.json")).unwrap();
            let report: Value = serde_json::from_slice(&report).unwrap();
            // Two blocks: the embedding and the first.
            let at = |point: usize| report["held_out"]["points"][point]["tuned"][key].as_f64().unwrap();
            (at(0) + at(1)) / 2.0
        })
    };
    let turned = |side: Side| {
        each(&of("untied"), |run| {
            let (rows, first, third) = (kept(run).rows(false).unwrap(), table(run, side, 0), table(run, side, 4));
            let cosine = |id: usize| {
                let dot =
                    |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
                let (x, y) = (first.row(id), third.row(id));
                dot(x, y) / (dot(x, x) * dot(y, y)).sqrt()
            };
            rows.ids().iter().map(|id| cosine(*id as usize)).sum::<f64>() / rows.ids().len() as f64
        })
    };
    use Metric::{NormSpearman, Procrustes};
    Some(match (id, role) {
        ("closer-to-output", "primary") => output_less_input("tied", Procrustes),
        ("output-gradient-dominates", "primary") => first_log_ratio("grad/output_norm", "grad/input_norm"),
        ("output-gradient-dominates", "corrected") => {
            each(&of("tied"), |run| series(run, "grad/output_signed_share")[0] - 0.5)
        }
        ("output-gradient-5-to-10-times", "primary") => {
            first_log_ratio("grad/authors/output_norm", "grad/authors/input_norm")
        }
        ("output-moves-more", "primary") => less(&turned(Side::Input), &turned(Side::Output)),
        ("norm-frequency", "primary") => output_less_input("tied", NormSpearman),
        ("early-layers-suffer", "primary") => less(&lens("tied", "kl_fraction"), &lens("untied", "kl_fraction")),
        ("early-layers-suffer", "corrected") => {
            less(&lens("untied", "top1_agreement"), &lens("tied", "top1_agreement"))
        }
        ("scaling-lowers-output-alignment", "primary") => {
            less(&crossed("x5", Side::Output, Procrustes), &crossed("tied", Side::Output, Procrustes))
        }
        ("scaling-raises-input-alignment", "primary") => {
            less(&crossed("x5", Side::Input, Procrustes), &crossed("tied", Side::Input, Procrustes))
        }
        ("x3-restores-balance", "primary") => {
            less(&crossed("x3", Side::Input, Procrustes), &crossed("x3", Side::Output, Procrustes))
        }
        ("scaling-worsens-perplexity", "primary") => loss("x5", "tied"),
        ("scaling-improves-perplexity", "primary") => loss("x3", "tied"),
        ("untying-helps-equal-trunk", "primary") => loss("untied", "tied"),
        ("untying-helps-equal-parameters", "primary") => loss("untied", "tied-matched"),
        _ => return None,
    })
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

    // Every claim's measure again, from the runs' own files: the arms, the sides, the sign, the window.
    let mut corrected = 0;
    for claim in all {
        let id = claim["id"].as_str().unwrap();
        for role in ["primary", "corrected"] {
            let measure = claim["measures"].as_array().unwrap().iter().find(|m| m["role"] == role);
            let Some(expected) = expected(&place, id, role) else {
                assert_eq!(role, "corrected", "{id}");
                continue;
            };
            corrected += usize::from(role == "corrected");
            let measure = measure.unwrap_or_else(|| panic!("{id} has no {role} measure"));
            for (seed, expected) in &expected {
                let found = measure["values"][seed.to_string()].as_f64().unwrap();
                assert!((found - expected).abs() < 1e-9, "{id} {role} s{seed}: {found}, expected {expected}");
            }
            // The t interval of three seeds, or a wider one where two arms are crossed.
            let mean = expected.values().sum::<f64>() / 3.0;
            let sd = (expected.values().map(|x| (x - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
            let (half, high) = (4.302653 * sd / 3f64.sqrt(), measure["ci95"][1].as_f64().unwrap());
            let crossed = claim["primary"].as_str().unwrap().contains("align") || id == "norm-frequency";
            let same = (high - mean - half).abs() < 1e-6 * (1.0 + half);
            assert!(same || (crossed && high > mean + half), "{id} {role}: {measure}");
        }
    }
    assert_eq!(corrected, 2);
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
