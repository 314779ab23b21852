//! Lenses of runs: trained by the command and by the training itself, resumed, compared.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Place, RunDir, assert_same, binary, signal, tree, wait_until};

/// A lens of a fraction of a second after the training.
const WITH_LENS: [&str; 6] =
    ["--set", "lens.after_training=true", "--set", "lens.train_tokens=16384", "--set", "lens.eval_tokens=400"];

/// One of a few seconds, to be ended on its way.
const LONG_LENS: [&str; 4] = ["--set", "lens.after_training=true", "--set", "lens.train_tokens=400000"];

const REPORT: &str = "probes/lens-step-60-converged.json";
const LENS: &str = "lens/step-60-converged.safetensors";

fn lens(place: &Place, run: &RunDir, more: &[&str]) -> crate::harness::Said {
    place.tiebreak(&[&["lens", "train", run.0.to_str().unwrap()], more].concat())
}

fn bytes(run: &RunDir, file: &str) -> Vec<u8> {
    std::fs::read(run.0.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

#[test]
fn the_training_process_and_the_command_write_the_same_lens() {
    let place = Place::new();
    let run = place.train("with", &WITH_LENS).expect(0).folder(&place);
    run.check_tidy();
    let report = run.json(REPORT);
    let points = report["held_out"]["points"].as_array().unwrap();
    assert_eq!(points.len(), 3);
    let tags: Vec<_> = run.metrics().into_iter().filter(|(_, tag, _)| tag.starts_with("lens/")).collect();
    assert_eq!(tags.len(), 2 * 3 * 6);
    assert!(tags.iter().all(|(step, ..)| *step == 60));
    for (point, summary) in ["embed", "1", "2"].iter().zip(points) {
        assert_eq!(summary["point"], *point);
        for kind in ["logit", "tuned"] {
            for value in ["kl_bits", "kl_fraction", "top1_agreement", "accuracy", "ce_nats", "p_input"] {
                let tag = format!("lens/{kind}/{point}/{value}");
                assert_eq!(run.value(60, &tag), summary[kind][value].as_f64(), "{tag}");
            }
        }
    }
    for kind in ["logit", "tuned"] {
        assert_eq!(points[2][kind]["kl_bits"], 0.0, "the last point is the model");
        assert_eq!(points[2][kind]["top1_agreement"], 1.0);
        assert_eq!(points[2][kind]["ce_nats"], points[2]["logit"]["ce_nats"]);
    }
    let kl = |kind: &str| points[0][kind]["kl_bits"].as_f64().unwrap();
    assert!(kl("tuned") < kl("logit"), "{points:?}");
    // The last point's loss is the evaluation's, up to the tokens that were read.
    let read = points[2]["logit"]["ce_nats"].as_f64().unwrap();
    assert!((read - run.value(60, "eval/loss").unwrap()).abs() < 0.2, "{read}");
    assert_eq!(report["held_out"]["constant"]["kl_fraction"], 1.0);
    assert!(report["held_out"]["bigram"]["kl_bits"].as_f64().unwrap() > 0.0);
    assert_eq!((&report["training"]["tokens"], &report["held_out"]["tokens"]), (&16384.into(), &400.into()));

    // The command repeats it, with any number of threads, and leaves the logs alone.
    let (lens_before, report_before, logs) = (bytes(&run, LENS), bytes(&run, REPORT), bytes(&run, "metrics.jsonl"));
    std::fs::remove_dir_all(run.0.join("lens")).unwrap();
    let mut command = place.command(binary());
    let said = command.args(["lens", "train", run.0.to_str().unwrap(), "--json"]).env("RAYON_NUM_THREADS", "2");
    let said = crate::harness::Said::of(said).expect(0);
    assert_eq!(serde_json::from_str::<Value>(&said.stdout).unwrap(), report);
    assert_eq!((bytes(&run, LENS), bytes(&run, REPORT)), (lens_before, report_before));
    assert_eq!(bytes(&run, "metrics.jsonl"), logs);

    // Other recipes, steps and corpora have files of their own.
    // Equal documents would all fall into one split.
    let line = |i| format!("the river walks under the bright stone {i} and sings of rain\n\n");
    place.write("other.txt", (0..20_000).map(line).collect::<String>());
    let text = lens(&place, &run, &["--recipe", "paper", "--step", "56", "--corpus", "other.txt"]).expect(0).stdout;
    assert!(text.contains("tuned_paper KL") && text.contains("bigram"), "{text}");
    let names: Vec<_> = tree(&run.0.join("probes")).into_keys().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["lens-step-56-paper-other.txt.json", "lens-step-60-converged.json"]);
    run.check_tidy();
}

#[test]
fn a_complete_run_gets_its_lens_later_without_another_step() {
    let place = Place::new();
    let run = place.train("out", &[]).expect(0).folder(&place);
    let checkpoint = tree(&run.0.join("checkpoints/step-60"));
    let said = place.train("out", &WITH_LENS[..2]).expect(2);
    assert!(said.stderr.contains("--resume"), "{}", said.stderr);
    // Amounts other than the defaults make another run: its lens has other numbers.
    let other = place.train("out", &WITH_LENS).expect(0).folder(&place);
    assert_ne!(other.0, run.0);
    let more = ["--set", "lens.after_training=true", "--set", "lens.recipe=paper", "--resume"];
    assert_eq!(place.train("out", &more).expect(0).folder(&place).0, run.0);
    run.check_tidy();
    assert_eq!(run.state(), "complete");
    assert_eq!(tree(&run.0.join("checkpoints/step-60")), checkpoint);
    assert!(run.value(60, "lens/tuned_paper/1/kl_bits").is_some());
    assert!(place.train("out", &more[..4]).expect(0).stderr.contains("already complete"));
    assert!(place.train("out", &[]).expect(0).stderr.contains("already complete"));
}

#[test]
fn a_run_ended_within_its_lens_ends_with_the_same_files() {
    let place = Place::new();
    let expected = place.train("reference", &LONG_LENS).expect(0).folder(&place);
    for (out, how, code) in [("killed", libc::SIGKILL, None), ("told", libc::SIGTERM, Some(130))] {
        let mut child = place.start(out, &LONG_LENS);
        wait_until("the last checkpoint", || {
            place.started_below(out).is_some_and(|run| run.checkpoints().last() == Some(&60))
        });
        signal(&child, how);
        assert_eq!(child.wait().unwrap().code(), code);
        let run = place.run_below(out);
        assert!(!run.0.join("lens").exists() && !run.0.join("probes").exists());
        assert!(run.metrics().iter().all(|(_, tag, _)| !tag.starts_with("lens/")));
        let resumed = place.train(out, &[&LONG_LENS[..], &["--resume"]].concat()).expect(0).folder(&place);
        resumed.check_tidy();
        assert_same(&resumed, &expected, out);
        for file in [LENS, REPORT] {
            assert_eq!(bytes(&resumed, file), bytes(&expected, file), "{out} {file}");
        }
    }
}

#[test]
fn a_sweep_compares_lenses() {
    let place = Place::new();
    let sweep = |metric: &str, after: bool| {
        format!(
            "[sweep]\nname = \"s\"\nbase = \"run.toml\"\nseeds = [0]\nmetric = \"{metric}\"\n\
             [[sweep.arms]]\nname = \"tied\"\nset = {{ \"lens.after_training\" = {after}, \"lens.train_tokens\" = 4096 }}\n\
             [[sweep.arms]]\nname = \"untied\"\n\
             set = {{ \"head.mode\" = \"untied\", \"lens.after_training\" = true, \"lens.train_tokens\" = 4096 }}\n"
        )
    };
    for (metric, after, part) in [
        ("lens/tuned/1/kl_bits", false, "lens.after_training"),
        ("lens/tuned/3/kl_bits", true, "model.n_layers = 2"),
        ("lens/tuned_paper/1/kl_bits", true, "lens.recipe"),
        ("lens/tuned/1/kl_bit", true, "no such tag"),
    ] {
        place.write("sweep.toml", sweep(metric, after));
        let said = place.tiebreak(&["sweep", "sweep.toml", "--out", "out"]).expect(2);
        assert!(said.stderr.contains(part), "{}", said.stderr);
        assert!(!place.path("out").exists());
    }
    place.write("sweep.toml", sweep("lens/tuned/embed/kl_fraction", true));
    let said = place.tiebreak(&["sweep", "sweep.toml", "--out", "out"]).expect(0);
    assert!(said.stdout.contains("lens/tuned/embed/kl_fraction"), "{}", said.stdout);
    let said = place.tiebreak(&["sweep", "sweep.toml", "--out", "out"]).expect(0);
    assert!(said.stderr.contains("nothing left to run"), "{}", said.stderr);
    let folder = |name: &str| {
        Path::new(&place.path("out/s"))
            .read_dir()
            .unwrap()
            .flatten()
            .map(|e| e.path())
            .find(|p| p.file_name().unwrap().to_string_lossy().starts_with(name))
    };
    // A cell without its lens is not complete, whatever its status says.
    std::fs::remove_dir_all(folder("tied-s0").unwrap().join("probes")).unwrap();
    let said = place.tiebreak(&["sweep", "sweep.toml", "--out", "out", "--dry-run"]).expect(0);
    assert!(said.stdout.contains("1 to run"), "{}", said.stdout);
}

#[test]
fn what_cannot_be_read_is_refused() {
    let place = Place::new();
    let run = place.train("out", &[]).expect(0).folder(&place);
    let before = tree(&run.0);
    for (more, part) in [
        (&["--step", "13"][..], "no checkpoint of step 13"),
        (&["--recipe", "bogus"], "converged"),
        (&["--corpus", "none.txt"], "none.txt"),
        (&["--eval-tokens", "3"], "lens.eval_tokens = 3"),
    ] {
        let said = lens(&place, &run, more).expect(2);
        assert!(said.stderr.contains(part) && said.stdout.is_empty(), "{}", said.stderr);
    }
    assert_eq!(tree(&run.0), before);
    place.tiebreak(&["lens", "train", "nowhere"]).expect(2);
    place.tiebreak(&["lens"]).expect(2);
}
