//! Looking into a run: what `generate` writes is what `lens show` reads in the last layer, and what was asked for.

use serde_json::Value;

use crate::harness::{Place, RunDir, Said};

/// A run over bytes with learned positions and a context of 16; its folder relative to the place.
fn byte_run(place: &Place, mode: &str) -> String {
    let head = format!(
        "name = \"{mode}\"\n[data]\ntokenizer = \"bytes\"\n[model]\nposition = \"learned\"\n[head]\nmode = \"{mode}\""
    );
    place.write_run("run.toml", &head);
    let RunDir(path) = place.train("out", &[]).expect(0).folder(place);
    path.display().to_string()
}

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.stdout).unwrap_or_else(|e| panic!("{e}: {}", said.stdout))
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn generated_text_is_what_the_last_layer_predicts() {
    let place = Place::new();
    let run = byte_run(&place, "untied");
    let generate = ["generate", &run, "--prompt", "the r", "--json", "--max-new-tokens", "10"];
    let greedy = json(&place.tiebreak(&[&generate[..], &["--greedy"]].concat()).expect(0));
    let text = format!("the r{}", greedy["text"].as_str().unwrap());
    let lens = json(&place.tiebreak(&["lens", "show", &run, "--text", &text, "--json"]).expect(0));
    let (prompt, new) = (ids(&greedy["prompt_ids"]), ids(&greedy["ids"]));
    assert_eq!(ids(&lens["ids"]), [&prompt[..], &new].concat(), "{text:?}");
    assert_eq!(lens["layers"], serde_json::json!(["embed", "1", "2"]));
    assert_eq!((lens["kind"].as_str(), lens["step"].as_u64()), (Some("logit"), Some(60)));
    let last = &lens["cells"][2];
    for (k, id) in new.iter().enumerate() {
        let cell = &last[prompt.len() - 1 + k];
        assert_eq!(cell["top_id"].as_u64(), Some(*id), "token {k}");
        let log_p = greedy["log_probabilities"][k].as_f64().unwrap();
        assert!((cell["p"].as_f64().unwrap() / log_p.exp() - 1.0).abs() < 1e-4, "{cell} {log_p}");
    }
    for cell in last.as_array().unwrap() {
        assert_eq!((cell["rank"].as_u64(), cell["kl_bits"].as_f64()), (Some(1), Some(0.0)));
    }
    let somewhere = lens["cells"][0].as_array().unwrap().iter().any(|c| c["kl_bits"].as_f64().unwrap() > 0.1);
    assert!(somewhere, "the embedding already predicts: {lens}");
    // One candidate is the most probable one, whatever the seed and the temperature.
    let one = ["--top-k", "1", "--temperature", "3", "--seed", "9"];
    assert_eq!(json(&place.tiebreak(&[&generate[..], &one].concat()).expect(0))["ids"], greedy["ids"]);
}

#[test]
fn continuations_go_on_beyond_the_context_and_depend_on_the_seed_alone() {
    let place = Place::new();
    let run = byte_run(&place, "tied");
    let with = |more: &[&str]| {
        place.tiebreak(&[&["generate", &run, "--prompt", "the river ", "--log", "error"], more].concat())
    };
    let long = ["--max-new-tokens", "75", "--temperature", "0.7"];
    let text = with(&long).expect(0).stdout;
    assert_eq!(text, with(&long).expect(0).stdout);
    assert_ne!(text, with(&[&long[..], &["--seed", "1"]].concat()).expect(0).stdout);
    let document = json(&with(&[&long[..], &["--json"]].concat()).expect(0));
    assert_eq!(text, format!("the river {}\n", document["text"].as_str().unwrap()));
    assert!(document["finish"] == "end_of_text" || ids(&document["ids"]).len() == 75, "{document}");

    // Hot bytes are no characters: the stream stays text, and keeps every id.
    let hot = json(&with(&["--max-new-tokens", "60", "--temperature", "50", "--json"]).expect(0));
    let bytes: Vec<u8> = ids(&hot["ids"]).iter().filter_map(|&id| u8::try_from(id).ok()).collect();
    assert_eq!(hot["text"].as_str().unwrap(), String::from_utf8_lossy(&bytes));
    assert!(String::from_utf8(bytes).is_err(), "every byte made a character");

    // A file: one line each, the first as on its own.
    place.write(
        "prompts.jsonl",
        "{\"prompt\": \"the river \"}\n{\"prompt\": \"\"}\n{\"prompt\": \"of rain and bright morning\"}\n",
    );
    let said = place.tiebreak(&[
        "generate",
        &run,
        "--prompts",
        "prompts.jsonl",
        "--max-new-tokens",
        "75",
        "--temperature",
        "0.7",
    ]);
    let said = said.expect(0);
    let lines: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0], document);
    assert_eq!(ids(&lines[1]["prompt_ids"]), [256], "end-of-text begins a text");
    assert!(said.stderr.contains("prompt 2: the prompt is empty"), "{}", said.stderr);
    assert!(said.stderr.contains("prompt 3: the prompt has 26 tokens, the model sees 16 at most"), "{}", said.stderr);
    assert!(said.stderr.contains("it does not see the first 16"), "{}", said.stderr);
    assert!(said.stderr.contains("tokens per second"), "{}", said.stderr);
}

#[test]
fn what_the_text_has_and_training_had_not_is_said() {
    let place = Place::new();
    let run = byte_run(&place, "tied");
    let said = place.tiebreak(&["generate", &run, "--prompt", "한", "--max-new-tokens", "1"]).expect(0);
    assert!(said.stderr.contains("3 of 3 tokens never occur in the training text"), "{}", said.stderr);
    let said = place.tiebreak(&["lens", "show", &run, "--text", "한 x", "--width", "60"]).expect(0);
    assert!(said.stdout.contains("<ED>") && said.stdout.contains("<95>"), "{}", said.stdout);
}

#[test]
fn two_runs_share_a_screen_a_document_and_a_figure() {
    let place = Place::new();
    let (tied, untied) = (byte_run(&place, "tied"), byte_run(&place, "untied"));
    let show = ["lens", "show", &tied, &untied, "--text", "of rain"];
    let both =
        json(&place.tiebreak(&[&show[..], &["--json", "--svg", "both.svg", "--png", "both.png"]].concat()).expect(0));
    for (run, mode) in both["runs"].as_array().unwrap().iter().zip(["tied", "untied"]) {
        assert_eq!(run["head_mode"], mode);
        assert_eq!((run["tokens"].as_array().unwrap().len(), run["cells"].as_array().unwrap().len()), (7, 3));
    }
    assert_ne!(both["runs"][0]["cells"], both["runs"][1]["cells"]);
    let svg = std::fs::read_to_string(place.path("both.svg")).unwrap();
    assert!(svg.contains("(tied), step 60") && svg.contains("(untied), step 60"), "{:.300}", svg);
    assert!(std::fs::read(place.path("both.png")).unwrap().starts_with(b"\x89PNG"));
    let screen = place.tiebreak(&[&show[..], &["--view", "kl", "--width", "120"]].concat()).expect(0).stdout;
    assert!(screen.lines().next().unwrap().contains("(tied), step 60") && screen.contains(" | "), "{screen}");
    assert!(!screen.contains('\u{1b}'), "colours in a pipe: {screen:?}");
    let coloured = place.tiebreak(&[&show[..], &["--color", "always"]].concat()).expect(0).stdout;
    assert!(coloured.contains("\u{1b}["), "{coloured:?}");
}

#[test]
fn a_tuned_lens_is_shown_once_it_is_trained() {
    let place = Place::new();
    let run = byte_run(&place, "tied");
    let show = |kind: &str| {
        let said = place.tiebreak(&["lens", "show", &run, "--text", "the river", "--json", "--kind", kind]);
        json(&said.expect(0))
    };
    place.tiebreak(&["lens", "train", &run, "--train-tokens", "8192", "--eval-tokens", "512"]).expect(0);
    let (logit, tuned) = (show("logit"), show("tuned"));
    assert_eq!((logit["kind"].as_str(), tuned["kind"].as_str()), (Some("logit"), Some("tuned")));
    assert_eq!(logit["cells"][2], tuned["cells"][2], "the last layer has no translator");
    let mean = |lens: &Value| {
        let cells = lens["cells"][0].as_array().unwrap();
        cells.iter().map(|c| c["kl_bits"].as_f64().unwrap()).sum::<f64>() / cells.len() as f64
    };
    assert!(mean(&tuned) < mean(&logit), "{} {}", mean(&tuned), mean(&logit));
}
