//! A run that is killed, interrupted, starved of disk or moved to other threads ends with the bits of one that was not.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::{Place, RunDir, Said, assert_same, binary, signal, wait_until};

/// A run long enough to be ended on its way.
const LONG: [&str; 2] = ["--set", "train.steps=300"];
/// A run of a few seconds.
const SECONDS: [&str; 4] = ["--set", "train.steps=500", "--set", "eval.every=50"];

fn reference(place: &Place, more: &[&str]) -> RunDir {
    let run = place.train("reference", more).expect(0).folder(place);
    run.check_tidy();
    assert_eq!(run.state(), "complete");
    run
}

/// The run of `out`, gone on with to its end.
pub fn resume(place: &Place, out: &str, more: &[&str]) -> RunDir {
    let run = place.train(out, &[more, &["--resume"]].concat()).expect(0).folder(place);
    run.check_tidy();
    assert_eq!(run.state(), "complete");
    run
}

/// A run that is ended by `how` once it has a checkpoint at or after `step`.
pub fn interrupted(place: &Place, out: &str, more: &[&str], step: u64, how: i32) -> (RunDir, Option<i32>) {
    let mut child = place.start(out, more);
    wait_until("a checkpoint", || {
        place.started_below(out).is_some_and(|run| run.checkpoints().last().is_some_and(|last| *last >= step))
    });
    signal(&child, how);
    let code = child.wait().unwrap().code();
    (place.run_below(out), code)
}

/// 20 kills at moments drawn from TIEBREAK_TEST_SEED (default 1); the run starts again in a new folder when it got to its end.
#[test]
fn killed_at_20_moments() {
    let place = Place::new();
    let expected = reference(&place, &SECONDS);
    let mut state: u64 = std::env::var("TIEBREAK_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("TIEBREAK_TEST_SEED={state}");
    let (mut kills, mut chain, mut steps) = (0, 0, Vec::new());
    while kills < 20 {
        chain += 1;
        let out = format!("chain-{chain}");
        while kills < 20 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Every fourth falls into the start; the others leave time for some steps.
            let after = Duration::from_micros((state >> 33) % if kills % 4 == 0 { 60_000 } else { 500_000 });
            let mut child = place.start(&out, &[&SECONDS[..], &["--resume"]].concat());
            std::thread::sleep(after);
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
            let last = place.started_below(&out).map(|run| run.checkpoints().last().copied());
            steps.push(format!("{} ms: {last:?}", after.as_millis()));
        }
        let run = resume(&place, &out, &SECONDS);
        assert_same(&run, &expected, &format!("chain {chain} of kills {steps:?}"));
    }
    println!("{kills} kills, last checkpoint at each: {steps:?}");
}

/// The order of a file's entries counts too.
#[test]
fn equal_runs_write_equal_files() {
    let place = Place::new();
    let expected = reference(&place, &[]);
    for out in ["one", "two", "three"] {
        assert_same(&place.train(out, &[]).expect(0).folder(&place), &expected, out);
    }
}

#[test]
fn interrupted_by_a_signal() {
    let place = Place::new();
    let expected = reference(&place, &LONG);
    for (out, how) in [("int", libc::SIGINT), ("term", libc::SIGTERM), ("hup", libc::SIGHUP)] {
        let (run, code) = interrupted(&place, out, &LONG, 20, how);
        assert_eq!(code, Some(130));
        run.check_tidy();
        let status = run.json("status.json");
        assert_eq!(status["state"], "interrupted");
        let step = status["step"].as_u64().unwrap();
        assert_eq!(run.checkpoints().last(), Some(&step));
        assert_eq!(run.metrics().last().unwrap().0, step, "nothing after the checkpoint is logged");
        let said = place.train(out, &LONG).expect(2);
        assert!(said.stderr.contains("interrupted") && said.stderr.contains("--resume"), "{said:?}");
        assert_same(&resume(&place, out, &LONG), &expected, out);
    }
}

/// A sweep that dies sends its cells one SIGTERM for each of its threads.
#[test]
fn a_second_sigterm_does_no_harm() {
    let place = Place::new();
    let mut child = place.start("out", &LONG);
    wait_until("a checkpoint", || place.started_below("out").is_some_and(|run| !run.checkpoints().is_empty()));
    for _ in 0..3 {
        signal(&child, libc::SIGTERM);
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(place.run_below("out").state(), "interrupted");
    assert_same(&resume(&place, "out", &LONG), &reference(&place, &LONG), "three SIGTERMs");
}

/// There is nothing to keep yet; a checkpoint would lack the optimiser's moments.
#[test]
fn interrupted_before_the_first_step() {
    let place = Place::new();
    // A first evaluation that takes a while.
    let more = ["--set", "data.corpus=synthetic", "--set", "eval.tokens=0"];
    place.tiebreak(&[&["data", "prepare", "run.toml"], &more[..]].concat()).expect(0);
    let mut child = place.start("out", &more);
    wait_until("status.json", || place.started_below("out").is_some_and(|run| run.0.join("status.json").exists()));
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let run = place.run_below("out");
    assert_eq!((run.state(), &run.json("status.json")["step"]), ("interrupted".into(), &0.into()));
    assert_eq!(run.checkpoints(), [0; 0]);
    assert_same(&resume(&place, "out", &more), &reference(&place, &more), "stopped at step 0");
}

/// A signal that arrives at a step whose checkpoint was just written or loaded must not put that checkpoint at risk.
#[test]
fn resumed_and_interrupted_at_once() {
    let place = Place::new();
    let more = [&LONG[..], &["--set", "checkpoint.keep=1"]].concat();
    let (run, _) = interrupted(&place, "out", &more, 20, libc::SIGTERM);
    let step = run.checkpoints()[0];
    let path = run.0.join(format!("checkpoints/step-{step}"));
    let written = |path: &Path| path.join("model.safetensors").metadata().unwrap().modified().unwrap();
    let before = written(&path);
    let mut child = place.start("out", &[&more[..], &["--resume"]].concat());
    wait_until("a resumed run", || run.state() == "running");
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    if run.json("status.json")["step"] == step {
        assert_eq!(written(&path), before, "the only checkpoint was written anew");
    }
    assert_same(&resume(&place, "out", &more), &reference(&place, &more), "two interrupts");
}

#[test]
fn without_a_checkpoint_it_starts_again() {
    let place = Place::new();
    let more = [&LONG[..], &["--set", "checkpoint.every=0"]].concat();
    let mut child = place.start("out", &more);
    wait_until("table 30", || {
        place.started_below("out").is_some_and(|run| run.0.join("tables/step-30.safetensors").exists())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(place.run_below("out").checkpoints(), [0; 0]);
    let run = resume(&place, "out", &more);
    assert_same(&run, &reference(&place, &more), "no checkpoint");
    let starts = run.json("env.json")["starts"].as_array().unwrap().clone();
    assert_eq!(starts.iter().map(|s| s["from_step"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn resume_starts_what_is_not_there_and_leaves_alone_what_is_complete() {
    let place = Place::new();
    let first = place.train("out", &["--resume"]).expect(0);
    let run = first.folder(&place);
    let before = place.tree();
    for more in [&["--resume"][..], &[], &["--set", "threads=2"]] {
        let said = place.train("out", more).expect(0);
        assert!(said.stderr.contains("already complete"), "{said:?}");
        assert_eq!(said.folder(&place).0, run.0, "stdout is the folder");
        assert_eq!(place.tree(), before);
    }
}

#[test]
fn threads_change_no_bit_and_are_recorded() {
    let place = Place::new();
    // Matrices large enough to be cut between threads.
    let more = ["--set", "model.d_model=64", "--set", "data.context_length=64", "--set", "train.steps=60"];
    let expected = reference(&place, &more);
    let two = place.train("two", &[&more[..], &["--set", "threads=2"]].concat()).expect(0).folder(&place);
    assert_eq!(two.json("env.json")["threads"], 2);
    assert_same(&two, &expected, "two threads");
    let (run, _) = interrupted(&place, "three", &[&more[..], &["--set", "threads=3"]].concat(), 7, libc::SIGTERM);
    let resumed = resume(&place, "three", &[&more[..], &["--set", "threads=1"]].concat());
    assert_eq!(run.json("env.json")["threads"], 3, "a run keeps its threads");
    assert_same(&resumed, &expected, "three threads, then asked for one");
}

/// A file may not grow beyond `kib`: writing fails as on a full disk, for every file of the run.
#[cfg(unix)]
fn train_in_little_space(place: &Place, out: &str, more: &[&str], kib: u32) -> Said {
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", 2 * kib);
    let mut command: Command = place.command("sh");
    command.arg("-c").arg(script).arg(binary()).args(["train", "run.toml", "--out", out]).args(more);
    Said::of(&mut command)
}

#[cfg(unix)]
#[test]
fn full_disk() {
    let place = Place::new();
    let more = ["--set", "train.steps=300"];
    let expected = reference(&place, &more);

    // 140 KiB hold a checkpoint and part of the log.
    let run = train_in_little_space(&place, "log", &more, 140).expect(1).folder(&place);
    let status = run.json("status.json");
    assert_eq!(status["state"], "failed", "{status}");
    assert!(status["reason"].as_str().unwrap().contains("metrics.jsonl"), "{status}");
    let last = *run.checkpoints().last().unwrap();
    assert!((7..300).contains(&last), "{last}");
    assert_same(&resume(&place, "log", &more), &expected, "no space for the log");

    // 90 KiB do not even hold the optimiser's file of 122 KiB.
    let run = train_in_little_space(&place, "checkpoint", &more, 90).expect(1).folder(&place);
    let status = run.json("status.json");
    assert_eq!(status["state"], "failed", "{status}");
    assert!(status["reason"].as_str().unwrap().contains("optimiser.safetensors"), "{status}");
    assert_eq!(run.checkpoints(), [0; 0]);
    assert_same(&resume(&place, "checkpoint", &more), &expected, "no space for a first checkpoint");

    // An earlier checkpoint outlives one that cannot be written.
    let (run, _) = interrupted(&place, "later", &more, 7, libc::SIGTERM);
    let before = run.checkpoints();
    train_in_little_space(&place, "later", &[&more[..], &["--resume"]].concat(), 90).expect(1);
    assert_eq!((run.state(), run.checkpoints()), ("failed".into(), before));
    assert_same(&resume(&place, "later", &more), &expected, "no space for a later checkpoint");

    // Not even the status: the run's folder stays as it was, and the message says what failed.
    for kib in [0, 1, 2, 16] {
        let out = format!("only-{kib}");
        let said = train_in_little_space(&place, &out, &more, kib).expect(1);
        assert!(said.stderr.contains("error: cannot write") && said.stderr.contains(&out), "{said:?}");
        assert_same(&resume(&place, &out, &more), &expected, &out);
    }
}

#[test]
fn diverged() {
    let place = Place::new();
    let more = ["--set", "optim.lr=1000", "--set", "optim.clip_norm=0"];
    let said = place.train("out", &more).expect(1);
    let run = said.folder(&place);
    run.check_tidy();
    let status = run.json("status.json");
    assert_eq!(status["state"], "diverged");
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains("not a finite number") && reason.contains("table"), "{reason}");
    assert!(said.stderr.contains(reason), "{said:?}");
    let step = status["step"].as_u64().unwrap();
    assert!(run.value(step + 1, "train/nonfinite").unwrap() > 0.0);
    assert_eq!(run.value(step, "train/nonfinite"), Some(0.0));
    // The same end again, from a checkpoint or from the start.
    let said = place.train("out", &more).expect(2);
    assert!(said.stderr.contains("diverged"), "{said:?}");
    place.train("out", &[&more[..], &["--resume"]].concat()).expect(1);
    assert_eq!(run.json("status.json"), status);
    run.check_tidy();
}

/// Every file of a checkpoint, cut or changed in its middle, is refused by name, and nothing is written.
#[test]
fn damaged_checkpoints() {
    let place = Place::new();
    let (run, _) = interrupted(&place, "out", &LONG, 20, libc::SIGTERM);
    let expected = reference(&place, &LONG);
    let newest = format!("checkpoints/step-{}", run.checkpoints().last().unwrap());
    for file in ["model.safetensors", "optimiser.safetensors", "state.json"] {
        let path = run.0.join(&newest).join(file);
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() * 3 / 4] ^= 4;
        for damaged in [&whole[..whole.len() / 2], &flipped, b""] {
            std::fs::write(&path, damaged).unwrap();
            let before = place.tree();
            let said = place.train("out", &[&LONG[..], &["--resume"]].concat()).expect(2);
            let name = format!("{newest}/{file}");
            assert!(said.stderr.contains(&name) && said.stderr.contains("remove"), "{said:?}");
            assert!(place.tree() == before, "{name}: something was written");
        }
        std::fs::write(&path, whole).unwrap();
    }
    // The way out that the message names.
    std::fs::write(run.0.join(&newest).join("state.json"), "").unwrap();
    std::fs::remove_dir_all(run.0.join(&newest)).unwrap();
    assert_same(&resume(&place, "out", &LONG), &expected, "the newest checkpoint removed");
}

/// A log that is shorter than its checkpoint says has lost numbers that nothing brings back.
#[test]
fn damaged_logs() {
    let place = Place::new();
    let (run, _) = interrupted(&place, "out", &LONG, 20, libc::SIGTERM);
    let names = std::fs::read_dir(&run.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let logs: Vec<String> = names.filter(|n| n.starts_with("events.out") || n == "metrics.jsonl").collect();
    assert_eq!(logs.len(), 2);
    for log in logs {
        let path = run.0.join(&log);
        let whole = std::fs::read(&path).unwrap();
        for damaged in [Some(&whole[..whole.len() / 3]), Some(b""), None] {
            match damaged {
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let before = place.tree();
            let said = place.train("out", &[&LONG[..], &["--resume"]].concat()).expect(2);
            let named = if log == "metrics.jsonl" { "metrics.jsonl" } else { "events.out" };
            assert!(said.stderr.contains(named) && said.stderr.contains("checkpoints"), "{said:?}");
            assert!(place.tree() == before, "{log}: something was written");
        }
        std::fs::write(&path, whole).unwrap();
    }
    assert_same(&resume(&place, "out", &LONG), &reference(&place, &LONG), "logs put back");
}

/// Parameters that overflow in the very last update leave a finite loss behind them: the run is no success.
#[test]
fn the_last_update_diverges() {
    let place = Place::new();
    let more = ["--set", "optim.lr=1000", "--set", "optim.clip_norm=0", "--set", "schedule.warmup_steps=0"];
    for steps in ["train.steps=1", "train.steps=2", "train.steps=3"] {
        let said = place.train(steps, &[&more[..], &["--set", steps, "--set", "schedule.min_lr_ratio=1"]].concat());
        let run = place.run_below(steps);
        let last = run.value(run.json("status.json")["step"].as_u64().unwrap(), "eval/ppl");
        match said.code {
            Some(0) => assert!(last.is_some_and(f64::is_finite), "complete without a perplexity: {said:?}"),
            Some(1) => {
                assert_eq!(run.state(), "diverged");
                assert!(run.json("status.json")["reason"].as_str().unwrap().contains("not a finite number"));
                assert!(run.metrics().iter().any(|(_, tag, n)| tag == "train/nonfinite" && *n > 0.0));
            }
            _ => panic!("{said:?}"),
        }
    }
    // With weights this large the loss is some thousand nats, and its exponential no number.
    let huge =
        [&more[..], &["--set", "train.steps=3", "--set", "optim.lr=1e3", "--set", "optim.weight_decay=0"]].concat();
    let said = place.train("huge", &huge).expect(1);
    assert!(said.stderr.contains("eval/ppl") || said.stderr.contains("gradient"), "{said:?}");
}

/// The name is no part of a run's identity, and two names can become one folder name.
#[test]
fn two_names_in_one_folder() {
    let place = Place::new();
    place.train("out", &["--set", "name=a b"]).expect(0);
    let before = place.tree();
    let said = place.train("out", &["--set", "name=a_b"]).expect(2);
    assert!(said.stderr.contains("\"a b\"") && said.stderr.contains("another --out"), "{said:?}");
    assert_eq!(place.tree(), before);
}

/// The first SIGINT asks for a checkpoint, the second ends the process at once; what was complete stays so.
#[test]
fn a_second_sigint_ends_at_once() {
    let place = Place::new();
    let more = ["--set", "data.corpus=synthetic", "--set", "eval.tokens=0", "--set", "model.d_model=128"];
    place.tiebreak(&[&["data", "prepare", "run.toml"], &more[..]].concat()).expect(0);
    let mut child = place.start("out", &more);
    wait_until("status.json", || place.started_below("out").is_some_and(|run| run.0.join("status.json").exists()));
    signal(&child, libc::SIGINT);
    std::thread::sleep(std::time::Duration::from_millis(50));
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // Inside the first evaluation the state on disk is still that of a process that lives; just after it, that of a stop.
    let state = place.run_below("out").json("status.json")["state"].clone();
    assert!(["running", "interrupted"].contains(&state.as_str().unwrap()), "{state}");
    place.train("out", &[&more[..], &["--resume", "--set", "train.steps=60"]].concat()).expect(0);
}

/// What a kill between two writes can leave: each must start, or go on, as if nothing had happened.
#[test]
fn leftovers_of_a_kill() {
    let place = Place::new();
    let expected = reference(&place, &[]);
    let name = expected.0.file_name().unwrap().to_str().unwrap();
    for (case, files) in [
        ("folder", &[][..]),
        ("lock", &["lock"]),
        ("half-a-configuration", &["lock", ".tmp-Ab12"]),
        ("no-status", &["lock", "config.toml", "env.json", "tokenizer.json", ".tmp-Ab12"]),
    ] {
        std::fs::create_dir_all(place.path(case).join(name)).unwrap();
        for file in files {
            place.write(&format!("{case}/{name}/{file}"), "{");
        }
        let run = place.train(case, &[]).expect(0).folder(&place);
        run.check_tidy();
        assert_same(&run, &expected, case);
    }
    let (run, _) = interrupted(&place, "later", &LONG, 20, libc::SIGKILL);
    let inside = |file: &str| format!("{}/{file}", run.0.strip_prefix(place.path("")).unwrap().display());
    for file in [
        ".tmp-Cd34",
        "tables/.tmp-Ef56",
        "checkpoints/.tmp-step-9999/model.safetensors",
        "checkpoints/.tmp-old-step-7/state.json",
    ] {
        place.write(&inside(file), "{");
    }
    assert_same(&resume(&place, "later", &LONG), &reference(&place, &LONG), "leftovers");
}

/// Ended once it has a checkpoint after `step`, and put back to that of `step` exactly.
fn put_back(place: &Place, out: &str, more: &[&str], step: u64) -> RunDir {
    let (run, _) = interrupted(place, out, more, step, libc::SIGKILL);
    for later in run.checkpoints().into_iter().filter(|s| *s > step) {
        std::fs::remove_dir_all(run.0.join(format!("checkpoints/step-{later}"))).unwrap();
    }
    assert_eq!(run.checkpoints().last(), Some(&step));
    run
}

#[test]
fn interventions_keep_what_they_remember() {
    let place = Place::new();
    for (out, sets) in [
        ("balance", &["intervene.balance_target=1.0", "aux.reconstruction=0.1"][..]),
        ("learned", &["intervene.learned=true", "head.mode=factorised", "head.rank=4"]),
        ("clip", &["intervene.output_clip=0.5", "head.mode=dual_head", "head.gate_learned=true"]),
        (
            "schedule",
            &[
                "intervene.input_scale.kind=cosine",
                "intervene.input_scale.start=5.0",
                "intervene.input_scale.end=1.0",
                "intervene.input_scale.until=0.5",
                "optim.table_warmup_steps=40",
                "head.z_loss=1e-4",
                "head.logit_softcap=8.0",
                "model.embed_norm=true",
                "model.embed_scale=2.0",
            ],
        ),
    ] {
        let mut more: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        more.extend(["--set", "train.steps=150"]);
        let whole = place.train(&format!("{out}-whole"), &more).expect(0).folder(&place);
        interrupted(&place, out, &more, 21, libc::SIGKILL);
        assert_same(&resume(&place, out, &more), &whole, out);
    }
}

/// On either side of the switch, and at its very step; the logs show it.
#[test]
fn tie_then_untie_resumes_around_its_switch() {
    let place = Place::new();
    // 0.49 of 300 steps is 147, which is a multiple of checkpoint.every.
    let more = [
        &LONG[..],
        &["--set", "head.mode=tie_then_untie", "--set", "head.untie_at=0.49", "--set", "checkpoint.keep=100"],
    ]
    .concat();
    let expected = reference(&place, &more);
    for (out, step) in [("before", 140), ("at", 147), ("after", 154)] {
        let run = put_back(&place, out, &more, step);
        let file = std::fs::read(run.0.join(format!("checkpoints/step-{step}/model.safetensors"))).unwrap();
        let holds = |name: &str| file.windows(name.len()).any(|w| w == name.as_bytes());
        assert_eq!(holds("\"output_table\""), step >= 147, "{out}");
        assert_same(&resume(&place, out, &more), &expected, out);
    }
    assert_eq!(expected.value(147, "head/one_matrix"), Some(1.0));
    assert_eq!(expected.value(148, "head/one_matrix"), Some(0.0));
    assert!(expected.value(147, "grad/shared_input_norm").is_some());
    assert_eq!(expected.value(148, "grad/shared_input_norm"), None);
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_nobody_could_be_told_is_a_failure_with_a_complete_run() {
    let place = Place::new();
    let mut command = place.command(binary());
    command.args(["train", "run.toml", "--out", "out", "--set", "train.steps=3"]);
    let full = std::fs::File::create("/dev/full").unwrap();
    let ended = command.stdout(full).stderr(std::process::Stdio::piped()).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("stdout"));
    assert_eq!(place.run_below("out").state(), "complete");
}
