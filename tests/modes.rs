//! Every head mode through every command: trained, killed and resumed, looked into, continued. A new mode is among them.

use serde_json::Value;
use tiebreak_model::interface::{HeadConfig, ModeKind};

use crate::harness::{Place, RunDir, Said, assert_same};
use crate::resume::{interrupted, resume};

/// Values of a mode's own keys that fit a tiny model; a key that is not named here keeps its default.
const SMALL: [(&str, &str); 4] = [("shared_width", "5"), ("rank", "3"), ("rows", "100"), ("untie_at", "47")];

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.stdout).unwrap_or_else(|e| panic!("{e}: {}", said.stdout))
}

#[test]
fn every_head_mode_in_every_command() {
    let place = Place::new();
    for (index, mode) in ModeKind::ALL.into_iter().enumerate() {
        let head = HeadConfig { mode, ..HeadConfig::default() };
        let name = head.mode_name();
        let mut sets = vec![format!("head.mode={name}"), format!("name={name}")];
        let common = ["train.steps=100", "log.provenance_every=2", "data.tokenizer=bytes", "eval.tokens=0"];
        sets.extend(common.map(String::from));
        // The loss between the sides has a memory of its own.
        sets.extend((!head.one_matrix(257, 16)).then(|| "aux.symmetry=0.01".into()));
        // Every other mode with changed logits and vectors.
        if index % 2 == 0 {
            let mapped =
                ["head.logit_softcap=5.0", "head.z_loss=1e-3", "model.embed_norm=true", "model.embed_scale=2.0"];
            sets.extend(mapped.map(String::from));
        }
        sets.extend(
            SMALL.into_iter().filter(|(key, _)| head.uses(key)).map(|(key, value)| format!("head.{key}={value}")),
        );
        let more: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let run = place.train("whole", &more).expect(0).folder(&place);
        interrupted(&place, &name, &more, 21, libc::SIGKILL);
        assert_same(&resume(&place, &name, &more), &run, &name);
        is_loaded_as_it_was_kept(&run);
        is_looked_into(&place, &run, &head);
    }
}

/// What is loaded from the last checkpoint, without a look at the data, is the pair that was kept at that step.
fn is_loaded_as_it_was_kept(run: &RunDir) {
    let device = burn::tensor::Device::flex();
    let tiebreak_train::TrainedModel { model, step: last, .. } =
        tiebreak_train::TrainedModel::look(&run.0, None).unwrap();
    let kept = run.0.join(format!("tables/step-{last}.safetensors"));
    let kept = tiebreak_train::tensors::read(&kept, &device).unwrap();
    let (pair, host) = (model.interface.pair(), tiebreak_train::step::host::<2>);
    assert_eq!(host(&pair.input_vd), host(&kept["input"]), "{}", run.0.display());
    assert_eq!(host(&pair.output_vd), host(kept.get("output").unwrap_or(&kept["input"])), "{}", run.0.display());
    assert_eq!(kept.contains_key("output"), !model.interface.one_matrix());
}

fn is_looked_into(place: &Place, run: &RunDir, head: &HeadConfig) {
    let (folder, name) = (run.0.to_str().unwrap(), head.mode_name());
    let one_matrix = head.one_matrix(257, 16);

    let inspected = json(&place.tiebreak(&["inspect", folder, "--json"]).expect(0));
    assert_eq!(inspected["head_mode"], *name);
    assert!(inspected["describes"].as_str().unwrap().starts_with(&format!("{name}: ")), "{inspected}");
    assert_eq!(inspected["parameters"], run.json("env.json")["parameters"]);

    let probed = json(&place.tiebreak(&["probe", folder, "--json", "--permutations", "2"]).expect(0));
    let tables = probed["models"][0]["tables"].as_array().unwrap();
    assert_eq!(tables.len(), if one_matrix { 1 } else { 2 }, "{probed}");
    for table in tables {
        // Those of steps 0, 10, 30 and 100, on whichever side of a switch.
        assert_eq!(table["evolution"].as_array().unwrap().len(), 4, "{name}: {table}");
    }
    let pairs = probed["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), usize::from(!one_matrix), "{probed}");
    for pair in pairs {
        let value = pair["metrics"]["procrustes"]["value"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&value), "{pair}");
        assert!(pair["learned"]["tokens"].as_u64().unwrap() > 0, "{pair}");
    }

    // The evaluation, both lenses and the decoder see the same logits: bias, soft-cap, factors and all.
    let train = ["lens", "train", folder, "--train-tokens", "2048", "--eval-tokens", "0", "--json"];
    let lens = json(&place.tiebreak(&train).expect(0));
    let last = &lens["held_out"]["points"][2];
    for kind in ["logit", "tuned"] {
        assert_eq!(last[kind]["kl_bits"], 0.0, "{name} {kind}");
        let (read, evaluated) = (last[kind]["ce_nats"].as_f64().unwrap(), run.value(100, "eval/loss").unwrap());
        assert!((read - evaluated).abs() < 1e-5, "{name} {kind}: {read} instead of {evaluated}");
    }
    let generate = ["generate", folder, "--prompt", "the r", "--json", "--max-new-tokens", "8", "--greedy"];
    let greedy = json(&place.tiebreak(&generate).expect(0));
    let text = format!("the r{}", greedy["text"].as_str().unwrap());
    let (prompt, new) = (greedy["prompt_ids"].as_array().unwrap(), greedy["ids"].as_array().unwrap());
    for kind in ["logit", "tuned"] {
        let show = ["lens", "show", folder, "--text", &text, "--json", "--kind", kind];
        let shown = json(&place.tiebreak(&show).expect(0));
        assert_eq!(shown["ids"].as_array().unwrap(), &[&prompt[..], new].concat(), "{name} {text:?}");
        for (k, id) in new.iter().enumerate() {
            let cell = &shown["cells"][2][prompt.len() - 1 + k];
            assert_eq!(cell["top_id"], *id, "{name} {kind}, token {k}");
            let log_p = greedy["log_probabilities"][k].as_f64().unwrap();
            assert!((cell["p"].as_f64().unwrap() / log_p.exp() - 1.0).abs() < 1e-4, "{name} {kind}: {cell} {log_p}");
        }
    }
    let unknown: Vec<_> = run.metrics().into_iter().filter(|(_, tag, _)| !tiebreak_sweep::is_tag(tag)).collect();
    assert!(unknown.is_empty(), "{name}: {unknown:?}");
    run.check_tidy();
}
