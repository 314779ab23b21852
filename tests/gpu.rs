//! The same runs on a GPU, or on its software stand-in. TIEBREAK_TEST_DEVICE names the device (default wgpu:cpu); without one the tests
//! say so and pass, unless TIEBREAK_REQUIRE_ADAPTER is set.

use serde_json::Value;

use crate::harness::{Place, RunDir, Said, binary};
use crate::reproduce;

fn device() -> String {
    std::env::var("TIEBREAK_TEST_DEVICE").unwrap_or_else(|_| "wgpu:cpu".into())
}

/// The device's kind, as identities name it.
fn kind() -> String {
    device().split(':').next().unwrap().to_owned()
}

fn set(device: &str) -> Vec<String> {
    vec!["--set".into(), format!("device={device}")]
}

/// What `devices` says of the device; `None`, and a word, where it does not answer.
fn answers(place: &Place) -> Option<Value> {
    let listed: Value = serde_json::from_str(&place.tiebreak(&["devices", "--json"]).expect(0).stdout).unwrap();
    let (name, kind) = (device(), kind());
    let found = listed.as_array().unwrap().iter().find(|listed| {
        let listed_name = listed["device"].as_str().unwrap();
        listed["ready"] == true && (listed_name == name || name == kind && listed_name == format!("{kind}:0"))
    });
    if found.is_none() {
        assert!(std::env::var_os("TIEBREAK_REQUIRE_ADAPTER").is_none(), "{name} does not answer: {listed}");
        eprintln!("skipped: {name} does not answer");
    }
    found.cloned()
}

fn train(place: &Place, out: &str, device: &str, more: &[&str]) -> RunDir {
    let device = set(device);
    let sets: Vec<&str> = device.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let run = place.train(out, &sets).expect(0).folder(place);
    run.check_tidy();
    assert_eq!(run.state(), "complete");
    run
}

/// Steps that a software adapter takes in seconds.
const FEW: [&str; 2] = ["--set", "train.steps=12"];

fn close(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance * expected.abs(), "{what}: {found} instead of {expected}");
}

#[test]
fn the_parity_suite_passes() {
    let place = Place::new();
    if answers(&place).is_none() {
        return;
    }
    let said = place.tiebreak(&["devices", "--check", &device(), "--json"]).expect(0);
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(report["passed"] == true && checks.len() > 200, "{report}");
    let mut worst: Vec<(f64, String)> = checks
        .iter()
        .map(|c| {
            (
                c["deviation"].as_f64().unwrap() / c["tolerance"].as_f64().unwrap(),
                format!("{} {}", c["case"], c["what"]),
            )
        })
        .collect();
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("nearest to their tolerance: {:?}", &worst[..5]);
}

/// One seed gives the same tables and order of data everywhere, and what follows from them is near.
#[test]
fn a_run_agrees_with_the_cpu_and_can_be_looked_into() {
    let place = Place::new();
    let Some(listed) = answers(&place) else { return };
    let (gpu, cpu) = (train(&place, "gpu", &device(), &FEW), train(&place, "cpu", "flex", &FEW));
    let table = |run: &RunDir| std::fs::read(run.0.join("tables/step-0.safetensors")).unwrap();
    // The metadata names the run.
    let values = |bytes: Vec<u8>| bytes[8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize..].to_vec();
    assert!(values(table(&gpu)) == values(table(&cpu)), "the initial table has the same bits");
    let (found, expected) = (gpu.metrics(), cpu.metrics());
    let tags = |metrics: &[(u64, String, f64)]| metrics.iter().map(|(s, t, _)| (*s, t.clone())).collect::<Vec<_>>();
    assert_eq!(tags(&found), tags(&expected));
    for ((step, tag, found), (_, _, expected)) in found.iter().zip(&expected) {
        if ["train/loss", "eval/loss", "grad/input_norm", "grad/output_norm"].contains(&tag.as_str()) {
            close(&format!("{tag} at {step}"), *found, *expected, 1e-3);
        }
    }
    let env = gpu.json("env.json");
    assert_eq!(env["device"], kind());
    let api = listed["api"].as_str().unwrap();
    assert!(env["adapter"].as_str().unwrap().contains(api) && cpu.json("env.json")["adapter"].is_null(), "{env}");

    let run = gpu.0.to_str().unwrap();
    let json = |args: &[&str]| -> Value {
        let args = [args, &["--json"]].concat();
        serde_json::from_str(&place.tiebreak(&args).expect(0).stdout).unwrap()
    };
    let both = ["probe", run, cpu.0.to_str().unwrap(), "--pairs", "all", "--permutations", "2"];
    let pairs = json(&both)["pairs"].as_array().unwrap().clone();
    let cosine = pairs[0]["metrics"]["identity"]["value"].as_f64().unwrap();
    assert!(cosine > 0.999, "the tables of both devices after {}: {cosine}", FEW[1]);
    let report = json(&["lens", "train", run, "--train-tokens", "256", "--eval-tokens", "256"]);
    assert!(report["held_out"]["points"].as_array().unwrap().len() == 3, "{report}");
    // The lens of one device is read on another.
    let moved = std::fs::read_to_string(gpu.0.join("config.toml")).unwrap().replace(&device(), "flex");
    for (where_, expected) in [("there", None), ("on the CPU", Some(moved))] {
        if let Some(text) = expected {
            std::fs::write(gpu.0.join("config.toml"), text).unwrap();
        }
        let shown = json(&["lens", "show", run, "--text", "the river", "--kind", "tuned"]);
        assert!(!shown["cells"].as_array().unwrap().is_empty(), "{where_}");
        let said = place.tiebreak(&["generate", run, "--prompt", "the", "--max-new-tokens", "4", "--greedy"]).expect(0);
        assert!(!said.stdout.is_empty(), "{where_}");
    }
}

/// A run that was interrupted on one device goes on with another, where it would have come without that.
#[test]
fn a_run_moves_between_devices() {
    let place = Place::new();
    if answers(&place).is_none() {
        return;
    }
    let (gpu, gpu_kind) = (device(), kind());
    let listed: Value = serde_json::from_str(&place.tiebreak(&["devices", "--json"]).expect(0).stdout).unwrap();
    let is_gpu = |listed: &Value| ["discrete", "integrated", "virtual"].iter().any(|class| listed["class"] == *class);
    let no_gpu = !listed.as_array().unwrap().iter().any(is_gpu);
    for (out, from, from_kind, to, to_kind) in [
        ("away", gpu.as_str(), gpu_kind.as_str(), "flex", "flex"),
        ("back", "flex", "flex", gpu.as_str(), gpu_kind.as_str()),
    ] {
        let sets = ["--set", "train.steps=14"];
        let run = train(&place, out, from, &sets);
        let whole = run.metrics();
        // As it was when step 7 was saved and a signal came.
        assert_eq!(run.checkpoints(), [7, 14]);
        std::fs::remove_dir_all(run.0.join("checkpoints/step-14")).unwrap();
        let mut status = run.json("status.json");
        (status["state"], status["step"]) = ("interrupted".into(), 7.into());
        std::fs::write(run.0.join("status.json"), status.to_string()).unwrap();

        let goes_on = |device: &str, more: &[&str]| {
            let device = set(device);
            let device: Vec<&str> = device.iter().map(String::as_str).collect();
            place.train(out, &[&sets[..], &device, &["--resume"], more].concat())
        };
        let lost = goes_on(to, &["--begun-on", "metal"]).expect(2);
        assert!(lost.stderr.contains("--begun-on metal") && lost.stderr.contains("no run"), "{}", lost.stderr);
        // "auto" is no software adapter.
        if from != "flex" && no_gpu {
            let anew = goes_on("auto", &[]).expect(2);
            let parts = [
                "interrupted, step 7",
                &format!("--begun-on {from_kind}"),
                &format!("{from:?} to keep"),
                "\"auto\" is flex",
            ];
            assert!(parts.iter().all(|part| anew.stderr.contains(part)), "{}", anew.stderr);
        }
        goes_on(to, &["--begun-on", from_kind]).expect(0);
        run.check_tidy();
        assert_eq!(run.state(), "complete");
        let found = run.metrics();
        let tags = |metrics: &[(u64, String, f64)]| metrics.iter().map(|(s, t, _)| (*s, t.clone())).collect::<Vec<_>>();
        assert_eq!(tags(&found), tags(&whole), "{out}");
        for ((step, tag, found), (_, _, expected)) in found.iter().zip(&whole) {
            let what = format!("{out}: {tag} at {step}");
            match tag.as_str() {
                "train/tokens_per_second" => {}
                "train/lr" | "train/epoch" => assert_eq!(found, expected, "{what}"),
                _ if *step <= 7 => assert_eq!(found, expected, "{what}"),
                "train/loss"
                | "train/grad_norm"
                | "eval/loss"
                | "grad/input_norm"
                | "grad/output_norm"
                | "update/output_signed_share" => close(&what, *found, *expected, 1e-3),
                _ => {}
            }
        }
        let env = run.json("env.json");
        assert_eq!(env["device"], from_kind, "{env}");
        let starts = env["starts"].as_array().unwrap();
        assert_eq!((starts.len(), &starts[1]["from_step"]), (2, &7.into()), "{env}");
        for (start, kind) in starts.iter().zip([from_kind, to_kind]) {
            assert_eq!(start["device"], kind, "{env}");
            assert_eq!(start["adapter"].is_null(), kind == "flex", "{env}");
            assert_eq!(start["products"].as_str().unwrap().contains(kind), kind != "flex", "{env}");
        }
        assert_eq!(env["adapter"], starts[0]["adapter"], "{env}");
    }
}

/// Found before anything is written.
#[test]
fn what_the_device_lacks_is_refused() {
    let place = Place::new();
    let Some(listed) = answers(&place) else { return };
    let largest = listed["largest_tensor_bytes"].as_u64().unwrap();
    let width = format!("model.d_model={}", 4 * (largest / 4 / 300 / 4 + 1));
    let gpu = device();
    let absent = format!("{}:77", kind());
    let before = place.tree();
    for (device, more, parts) in [
        (absent.as_str(), &[][..], &["does not answer", "there is", "flex"][..]),
        (&gpu, &["--set", &width], &["a table [300,", "MiB more than", "model.d_model"]),
        (&gpu, &["--set", "train.precision=bf16"], &["bf16", "f32"]),
    ] {
        let device = format!("device={device}");
        let said = place.train("out", &[&["--set", &device], more].concat()).expect(2);
        for part in parts {
            assert!(said.stderr.contains(part), "{part:?} is not in {}", said.stderr);
        }
        assert!(!said.stderr.contains("panicked"), "{}", said.stderr);
    }
    assert!(place.tree().keys().eq(before.keys()), "nothing was written");
    let said = place.tiebreak(&["devices", "--check", &absent]).expect(2);
    assert!(said.stderr.contains(&absent), "{}", said.stderr);
}

/// Burn's own default would be the GPU, and panic.
#[test]
fn without_an_adapter_auto_is_flex_and_a_named_gpu_is_refused() {
    let place = Place::new();
    let without = |args: &[&str]| {
        let mut command = place.command(binary());
        Said::of(command.args(args).env("VK_DRIVER_FILES", "/none").env("VK_ICD_FILENAMES", "/none"))
    };
    let sets = ["--set", "train.steps=20", "--set"];
    let run = without(&[&["train", "run.toml", "--out", "out"], &sets[..], &["device=auto"]].concat()).expect(0);
    assert!(run.stderr.contains("no GPU answers, so flex"), "{}", run.stderr);
    let run = run.folder(&place);
    assert_eq!(run.json("env.json")["device"], "flex");
    let path = run.0.to_str().unwrap();
    without(&["generate", path, "--prompt", "the", "--max-new-tokens", "3"]).expect(0);
    without(&["lens", "train", path, "--train-tokens", "256", "--eval-tokens", "256"]).expect(0);
    let refused = without(&[&["train", "run.toml", "--out", "other"], &sets[..], &["device=wgpu"]].concat()).expect(2);
    assert!(refused.stderr.contains("does not answer") && !place.path("other").exists(), "{}", refused.stderr);
    assert!(without(&["devices"]).expect(0).stdout.contains("no adapter answers"));
}

#[test]
fn a_sweep_runs_one_cell_at_a_time() {
    let place = Place::new();
    let Some(listed) = answers(&place) else { return };
    place.write(
        "sweep.toml",
        "[sweep]\nname = \"s\"\nbase = \"run.toml\"\nseeds = [0]\nbaseline = \"tied\"\nmetric = \"eval/ppl\"\n\
         [[sweep.arms]]\nname = \"tied\"\n[[sweep.arms]]\nname = \"untied\"\nset = { \"head.mode\" = \"untied\" }\n",
    );
    let device = format!("device={}", device());
    let args = ["sweep", "sweep.toml", "--set", &device, "--set", "train.steps=4", "--out", "out"];
    let planned = place.tiebreak(&[&args[..], &["--dry-run"]].concat()).expect(0).stdout;
    assert!(planned.contains("1 at a time"), "{planned}");
    let said = place.tiebreak(&args).expect(0);
    assert!(said.stdout.contains("untied"), "{}", said.stdout);
    let absent = format!("device={}:77", kind());
    let before = place.tree();
    let refused = place.tiebreak(&["sweep", "sweep.toml", "--set", &absent, "--out", "other"]).expect(2);
    assert!(refused.stderr.contains("does not answer"), "{}", refused.stderr);
    let wide = format!("model.d_model={}", 4 * (listed["largest_tensor_bytes"].as_u64().unwrap() / 4 / 300 / 4 + 1));
    let sets = ["--set", &device, "--set", &wide, "--out", "other"];
    let refused = place.tiebreak(&[&["sweep", "sweep.toml"], &sets[..]].concat()).expect(2);
    assert!(refused.stderr.contains("arm \"tied\"") && refused.stderr.contains("MiB more than"), "{}", refused.stderr);
    assert!(place.tree().keys().eq(before.keys()), "nothing was written");
}

/// Runs and lenses of an experiment.
#[test]
fn an_experiment_is_reproduced() {
    let place = reproduce::place();
    if answers(&place).is_none() {
        return;
    }
    // One arm, for every process compiles its kernels anew.
    let sweep = "[sweep]\nname = \"2_tuned_lens\"\nbase = \"../base.toml\"\nseeds = [0]\nbaseline = \"tied\"\n[[sweep.arms]]\nname = \"tied\"\n";
    place.write("experiments/2_tuned_lens/sweep.toml", sweep);
    place.write("experiments/quick.toml", "seeds = 1\n[set]\nmodel.n_layers = 1\n[grid]\n\"optim.lr\" = [3e-3]\n");
    let absent = format!("{}:77", kind());
    let args = ["reproduce", "--scale", "quick", "--only", "2_tuned_lens", "--out", "out", "--device"];
    let refused = place.tiebreak(&[&args[..], &[&absent]].concat()).expect(2);
    assert!(refused.stderr.contains("does not answer") && !place.path("out").exists(), "{}", refused.stderr);
    place.tiebreak(&[&args[..], &[&device()]].concat()).expect(0);
    let runs = std::fs::read_dir(place.path("out/runs")).unwrap().map(|e| RunDir(e.unwrap().path()));
    let runs: Vec<RunDir> = runs.filter(|run| run.0.join("env.json").exists()).collect();
    assert!(runs.iter().all(|run| run.json("env.json")["device"] == kind()), "{runs:?}");
    let lenses = |run: &&RunDir| run.0.join("probes/lens-step-12-converged.json").exists();
    assert_eq!((runs.len(), runs.iter().filter(lenses).count()), (2, 1), "{runs:?}");
}
