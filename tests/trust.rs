//! What a run's folder holds is checked before it is believed, and what is missing is named with a way out.

use std::path::Path;

use serde_json::Value;
use tiebreak_data::sha256_hex;

use crate::harness::{Place, RunDir, Said, binary};

/// A complete run with checkpoints of steps 56 and 60, and its folder as an argument.
fn trained(place: &Place) -> (RunDir, String) {
    let run = place.train("out", &[]).expect(0).folder(place);
    let folder = run.0.display().to_string();
    (run, folder)
}

/// The commands that read a run's model.
fn readers(folder: &str) -> [Vec<&str>; 3] {
    [
        vec!["generate", folder, "--prompt", "the", "--max-new-tokens", "3"],
        vec!["lens", "show", folder, "--text", "the river"],
        vec!["lens", "train", folder, "--train-tokens", "512", "--eval-tokens", "64"],
    ]
}

#[track_caller]
fn refused(place: &Place, args: &[&str], parts: &[&str]) {
    let before = place.tree();
    let said = place.tiebreak(args).expect(2);
    let missing = parts.iter().find(|part| !said.stderr.contains(**part));
    assert!(missing.is_none() && said.stdout.is_empty(), "{args:?}: {missing:?} is not in: {said:?}");
    assert!(place.tree() == before, "{args:?}: something was written");
}

#[test]
fn a_changed_checkpoint_is_refused_by_every_reader() {
    let place = Place::new();
    let (run, folder) = trained(&place);
    let last = run.0.join("checkpoints/step-60");
    for (file, change) in [("model.safetensors", 4u8), ("state.json", 0)] {
        let path = last.join(file);
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() * 3 / 4] ^= change;
        for damaged in [&whole[..whole.len() / 2], &flipped] {
            if *damaged == whole {
                continue;
            }
            std::fs::write(&path, damaged).unwrap();
            for args in readers(&folder) {
                refused(&place, &args, &[file, "--step 56"]);
            }
        }
        std::fs::remove_file(&path).unwrap();
        refused(&place, &readers(&folder)[0], &[file, "--step 56"]);
        std::fs::write(&path, whole).unwrap();
    }
    // Another run's, whole as it is.
    let other = place.train("other", &["--set", "seed=1"]).expect(0).folder(&place);
    for file in ["model.safetensors", "state.json"] {
        std::fs::copy(other.0.join("checkpoints/step-60").join(file), last.join(file)).unwrap();
    }
    for args in readers(&folder) {
        refused(&place, &args, &["belongs to step 60 of run", "--step 56"]);
    }
    std::fs::remove_dir_all(run.0.join("checkpoints/step-56")).unwrap();
    refused(&place, &readers(&folder)[0], &["no other step", "train it again"]);
}

#[test]
fn a_changed_configuration_of_a_run_is_refused() {
    let place = Place::new();
    let (run, folder) = trained(&place);
    let path = run.0.join("config.toml");
    let whole = std::fs::read_to_string(&path).unwrap();
    let without =
        |key: &str| whole.lines().filter(|l| !l.starts_with(key)).map(|l| format!("{l}\n")).collect::<String>();
    for (text, part) in [
        (whole.replace("n_heads = 2", "n_heads = 1"), "not what the run was trained with"),
        (whole.replace("rope_theta = 10000.0", "rope_theta = 5000.0"), "not what the run was trained with"),
        (String::new(), "lacks name"),
        (without("corpus"), "lacks data.corpus"),
        (without("tokenizer"), "lacks data.tokenizer"),
    ] {
        assert_ne!(text, whole);
        std::fs::write(&path, text).unwrap();
        for args in readers(&folder).into_iter().chain([vec!["inspect", &folder], vec!["probe", &folder]]) {
            refused(&place, &args, &["config.toml", part]);
        }
    }
}

#[test]
fn a_run_is_read_without_its_text_and_never_with_another() {
    let place = Place::new();
    let (run, folder) = trained(&place);
    let [generate, show, train] = readers(&folder);
    let texts = || [&generate, &show].map(|args| place.tiebreak(args).expect(0));
    let before = texts();
    // Other text of the same tokens, which trains another tokenizer.
    let text = std::fs::read_to_string(place.path("text.jsonl")).unwrap();
    place.write("text.jsonl", text.replace("river", "winter"));
    for (now, then) in texts().iter().zip(&before) {
        assert_eq!(now.stdout, then.stdout);
        assert!(now.stderr.contains("has changed since the run was trained on it"), "{}", now.stderr);
    }
    refused(&place, &train, &["data.corpus", "no longer what the run was trained on"]);
    std::fs::remove_file(place.path("text.jsonl")).unwrap();
    for (now, then) in texts().iter().zip(&before) {
        assert_eq!(now.stdout, then.stdout);
        assert!(!now.stderr.contains("has changed") && !now.stderr.contains("not known"), "{}", now.stderr);
    }
    refused(&place, &train, &[&folder, "text that the run was trained on is needed", "text.jsonl"]);
    // With nothing in the cache, what training lacked is not known.
    let command =
        |args: &[&str]| Said::of(place.command(binary()).args(args).env("TIEBREAK_CACHE", place.path("empty")));
    let said = command(&generate).expect(0);
    assert_eq!(said.stdout, before[0].stdout);
    assert!(said.stderr.contains("not known which tokens never occur"), "{}", said.stderr);
    // Another tokenizer, and none, as in runs of earlier versions.
    let kept = run.0.join("tokenizer.json");
    let json = std::fs::read_to_string(&kept).unwrap();
    std::fs::write(&kept, json.replacen("\"version\":", "\"version\": ", 1)).unwrap();
    refused(&place, &generate, &["tokenizer.json", "not the tokenizer that the run was trained with"]);
    std::fs::remove_file(&kept).unwrap();
    refused(&place, &generate, &[&folder, "text that the run was trained on is needed", "text.jsonl"]);
    place.write("text.jsonl", text);
    assert_eq!(texts().map(|said| said.stdout), before.map(|said| said.stdout));
}

/// Changes the values of a checkpoint's model, and its sum with them.
fn overwrite_model(checkpoint: &Path, value: f32) {
    let (model, state) = (checkpoint.join("model.safetensors"), checkpoint.join("state.json"));
    let mut bytes = std::fs::read(&model).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&value.to_le_bytes()));
    std::fs::write(&model, &bytes).unwrap();
    let mut record: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    record["sha256"]["model.safetensors"] = sha256_hex(&bytes).into();
    std::fs::write(&state, record.to_string()).unwrap();
}

#[test]
fn a_model_of_no_numbers_is_refused_by_every_reader() {
    let place = Place::new();
    let (run, folder) = trained(&place);
    overwrite_model(&run.0.join("checkpoints/step-60"), f32::NAN);
    for args in readers(&folder) {
        let said = place.tiebreak(&args).expect(2);
        for part in [&folder[..], "at step 60 the model gives no finite numbers", "--step 56"] {
            assert!(said.stderr.contains(part), "{args:?}: {part:?} is not in: {said:?}");
        }
        place.tiebreak(&[&args[..], &["--step", "56"]].concat()).expect(0);
    }
}

#[test]
fn a_console_that_takes_no_line_stops_nothing() {
    let place = Place::new();
    let (_, folder) = trained(&place);
    let mut all: Vec<Vec<&str>> = readers(&folder).into();
    all.push(vec!["train", "run.toml", "--out", "again", "--set", "train.steps=2"]);
    all.push(vec!["probe", &folder]);
    for args in all {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.command(binary());
        let status = command.args(&args).stdout(std::process::Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(0), "{args:?}");
    }
}

#[test]
fn a_lens_that_cannot_be_kept_is_not_trained() {
    let place = Place::new();
    let (run, folder) = trained(&place);
    for blocked in ["lens", "probes"] {
        std::fs::write(run.0.join(blocked), "a file").unwrap();
        let said = place.tiebreak(&readers(&folder)[2]).expect(2);
        assert!(said.stderr.contains("cannot be written") && !said.stderr.contains("held-in KL"), "{said:?}");
        std::fs::remove_file(run.0.join(blocked)).unwrap();
    }
}

#[test]
fn a_settled_lens_does_not_give_way_silently() {
    let place = Place::new();
    let (run, folder) = trained(&place);
    let [_, show, train] = readers(&folder);
    let first = place.tiebreak(&train).expect(0);
    assert!(!first.stderr.contains("gives way"), "{}", first.stderr);
    let shown = place.tiebreak(&[&show[..], &["--kind", "tuned"]].concat()).expect(0).stdout.replace('\n', " ");
    assert!(shown.contains("trained on 512 tokens (as many as asked for)"), "{shown}");
    // As if it had been trained to the end.
    let path = run.0.join("lens/step-60-converged.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + n].to_vec()).unwrap();
    let settled = header.replace(r#"\"ended\":\"tokens\""#, r#"\"ended\":\"settled\""#);
    assert_ne!(settled, header);
    let length = (settled.len() as u64).to_le_bytes();
    std::fs::write(&path, [&length[..], settled.as_bytes(), &bytes[8 + n..]].concat()).unwrap();
    let shown = place.tiebreak(&[&show[..], &["--kind", "tuned"]].concat()).expect(0).stdout.replace('\n', " ");
    assert!(shown.contains("until the stopping rule"), "{shown}");
    let said = place.tiebreak(&train).expect(0);
    assert!(said.stderr.contains("until the stopping rule") && said.stderr.contains("gives way"), "{}", said.stderr);
    // A lens of another recipe under this one's name.
    std::fs::copy(&path, run.0.join("lens/step-60-paper.safetensors")).unwrap();
    refused(&place, &[&show[..], &["--kind", "tuned_paper"]].concat(), &["of the recipe converged, expected paper"]);
}

#[test]
fn what_is_asked_for_in_vain_is_named_as_it_was_asked_for() {
    let place = Place::new();
    let (run, folder) = trained(&place);
    refused(&place, &["lens", "train", &folder, "--train-tokens", "1"], &["--train-tokens", "lens.train_tokens = 1"]);
    refused(&place, &["lens", "train", &folder, "--train-tokens", "-1"], &["--train-tokens", "whole number from 0"]);
    std::fs::rename(&run.0, place.path("with blanks")).unwrap();
    std::fs::create_dir(place.path("other")).unwrap();
    let show = ["lens", "show", "with blanks", "--text", "the river"];
    refused(&place, &[&show[..], &["--kind", "tuned"]].concat(), &["`tiebreak lens train 'with blanks' --step 60"]);
    // Two runs of one folder name are told apart by their paths.
    let other = place.train("out", &["--set", "head.mode=untied"]).expect(0).folder(&place);
    std::fs::rename(&other.0, place.path("other/with blanks")).unwrap();
    let args = ["lens", "show", "with blanks", "other/with blanks", "--text", "the", "--width", "200"];
    let said = place.tiebreak(&args).expect(0).stdout;
    assert!(said.contains("other/with blanks (untied)"), "{said}");
    // Prompts come from stdin too.
    let mut command = place.command(binary());
    let child = command.args(["generate", "with blanks", "--prompts", "-", "--max-new-tokens", "1"]);
    let piped = std::process::Stdio::piped;
    let mut child = child.stdin(piped()).stdout(piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"{\"prompt\": \"the\"}\n").unwrap();
    let out = child.wait_with_output().unwrap();
    let line: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(line["prompt"], "the");
}
