//! The same runs on a GPU, or on its software stand-in. TIEBREAK_TEST_DEVICE names the device (default wgpu:cpu); without one the tests
//! say so and pass, unless TIEBREAK_REQUIRE_ADAPTER is set.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Place, RunDir, Said, binary, signal};

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
    if answers(&place).is_none() {
        return;
    }
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
    assert!(env["adapter"].as_str().unwrap().contains("Vulkan") && cpu.json("env.json")["adapter"].is_null(), "{env}");

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

/// A run that was interrupted on one device goes on with another.
#[test]
fn a_run_moves_between_devices() {
    let place = Place::new();
    if answers(&place).is_none() {
        return;
    }
    let (gpu, gpu_kind) = (device(), kind());
    for (out, from, from_kind, to) in
        [("away", gpu.as_str(), gpu_kind.as_str(), "flex"), ("back", "flex", "flex", &gpu)]
    {
        let sets: Vec<String> = set(from).into_iter().chain(["--set".into(), "train.steps=4000".into()]).collect();
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let mut child = place.start(out, &sets);
        let started = Instant::now();
        while place.started_below(out).is_none_or(|run| run.checkpoints().is_empty()) {
            assert!(started.elapsed() < Duration::from_secs(300), "no checkpoint after five minutes");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&child, libc::SIGTERM);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let begun = place.run_below(out);
        let step = *begun.checkpoints().last().unwrap();

        let goes_on = |more: &[&str]| {
            let device = format!("device={to}");
            place.train(out, &[&["--set", "train.steps=4000", "--set", &device, "--resume"], more].concat())
        };
        let lost = goes_on(&["--begun-on", "metal"]).expect(2);
        assert!(lost.stderr.contains("--begun-on metal") && lost.stderr.contains("no run"), "{}", lost.stderr);
        // 4000 steps are too many for a test; it is interrupted again, further on.
        let device = format!("device={to}");
        let more = ["--set", "train.steps=4000", "--set", &device, "--resume", "--begun-on", from_kind];
        let mut child = place.start(out, &more);
        let started = Instant::now();
        while begun.checkpoints().last().is_none_or(|last| *last <= step) {
            assert!(started.elapsed() < Duration::from_secs(300), "no further checkpoint after five minutes");
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{out}: {status}, {}", goes_on(&["--begun-on", from_kind]).stderr);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&child, libc::SIGTERM);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        begun.check_tidy();
        let env = begun.json("env.json");
        assert_eq!(env["device"], from_kind, "{env}");
        let products = |start: usize| env["starts"][start]["products"].as_str().unwrap().to_owned();
        assert!(env["starts"].as_array().unwrap().len() == 2 && products(0) != products(1), "{env}");
        let losses: Vec<f64> =
            begun.metrics().into_iter().filter(|(_, tag, _)| tag == "train/loss").map(|(_, _, loss)| loss).collect();
        assert!(losses.len() as u64 > step && losses.windows(2).all(|w| (w[0] - w[1]).abs() < 1.5), "{losses:?}");
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
    if answers(&place).is_none() {
        return;
    }
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
    assert!(place.tree().keys().eq(before.keys()), "nothing was written");
    assert!(binary().exists());
}
