//! Bad input of every kind: exit 2, one message with file, key, found and expected, nothing on stdout, nothing written.

use crate::harness::{Place, Said, TINY, binary, signal};

/// What a refusal must be; `parts` must all be in the message.
fn check(place: &Place, what: &str, args: &[&str], parts: &[&str], failures: &mut Vec<String>) {
    let before = place.tree();
    let said = place.tiebreak(args);
    let after = place.tree();
    let wrong = problem(&said, parts).or_else(|| {
        let changed = |path: &&std::path::PathBuf| before.get(*path) != after.get(*path);
        let new: Vec<_> = after.keys().chain(before.keys()).filter(changed).collect();
        (!new.is_empty()).then(|| format!("wrote {new:?}"))
    });
    if let Some(wrong) = wrong {
        failures.push(format!("{what}: {args:?}: {wrong}; stderr:\n{}", said.stderr));
    }
}

fn problem(said: &Said, parts: &[&str]) -> Option<String> {
    let errors = said.stderr.lines().filter(|line| line.starts_with("error: ")).count();
    if said.code != Some(2) {
        return Some(format!("exit {:?}, expected 2", said.code));
    }
    if let Some(part) = parts.iter().find(|part| !said.stderr.contains(**part)) {
        return Some(format!("{part:?} is not in the message"));
    }
    if errors != 1 || said.stderr.contains("panicked") || said.stderr.contains("backtrace") {
        return Some(format!("{errors} messages, expected one"));
    }
    (!said.stdout.is_empty()).then(|| format!("stdout holds {:?}", said.stdout))
}

#[track_caller]
fn report(failures: Vec<String>) {
    assert!(failures.is_empty(), "{} wrong:\n\n{}", failures.len(), failures.join("\n"));
}

/// What one key, or one section, gets wrong; `config check` must see it as well as `train`.
#[test]
fn configuration() {
    let cases: &[(&str, &[&str])] = &[
        // Misspelt, misplaced, unknown.
        ("[model]\nd_modle = 8", &["unknown key d_modle", "[model]", "did you mean model.d_model"]),
        ("[train]\nlr = 0.1", &["unknown key lr", "[train]", "did you mean optim.lr"]),
        ("[model]\nmode = \"tied\"", &["unknown key mode", "[model]", "did you mean head.mode"]),
        ("sead = 1", &["unknown key sead", "top level", "did you mean seed"]),
        ("corpus = \"sotu\"", &["unknown key corpus", "top level", "did you mean data.corpus"]),
        ("[optimizer]\nlr = 0.1", &["unknown section [optimizer]", "did you mean [optim]"]),
        ("[shedule]", &["unknown section [shedule]", "did you mean [schedule]"]),
        ("[model.attention]\nheads = 1", &["unknown", "attention", "model"]),
        ("[seed]\nx = 1", &["seed is a key, not a section"]),
        // Types.
        ("model = 3", &["model is a section"]),
        ("[model]\nd_model = \"wide\"", &["model.d_model", "wide", "expected"]),
        ("[model]\nd_model = 1.5", &["model.d_model", "1.5", "expected"]),
        ("[model]\nd_model = -16", &["model.d_model", "-16", "expected"]),
        ("[optim]\nlr = \"fast\"", &["optim.lr", "fast", "expected"]),
        ("[optim]\ndecay_embeddings = 1", &["optim.decay_embeddings", "1", "expected"]),
        ("[optim]\nbetas = 0.9", &["optim.betas", "0.9", "expected"]),
        ("[optim]\nbetas = [0.9]", &["optim.betas", "expected"]),
        ("[log]\ntables_at = [\"last\"]", &["log.tables_at", "last", "expected"]),
        ("seed = -1", &["seed", "-1", "expected"]),
        ("seed = 0.5", &["seed", "0.5", "expected"]),
        ("name = 3", &["name", "3", "expected"]),
        // Words.
        ("[head]\nmode = \"teid\"", &["head.mode", "teid", "tied", "untied"]),
        ("[model]\nmlp = \"relu\"", &["model.mlp", "relu", "swiglu", "gelu"]),
        ("[model]\nnorm = \"batch\"", &["model.norm", "batch", "layer_no_affine", "rms"]),
        ("[model]\nposition = \"alibi\"", &["model.position", "alibi", "rope", "learned"]),
        ("[model]\ninit = \"zeros\"", &["model.init", "zeros", "mitchell", "normal"]),
        ("[schedule]\nkind = \"step\"", &["schedule.kind", "step", "cosine", "linear", "constant"]),
        ("[intervene]\nposition = \"during\"", &["intervene.position", "during", "before_clip", "after_clip"]),
        ("[train]\nprecision = \"fp8\"", &["train.precision", "fp8", "f32", "bf16"]),
        // Ranges.
        ("[optim]\nlr = nan", &["optim.lr = NaN", "expected a number from 0"]),
        ("[optim]\nlr = inf", &["optim.lr = inf", "expected a number from 0"]),
        ("[optim]\nlr = -0.1", &["optim.lr = -0.1", "expected a number from 0"]),
        ("[optim]\nbetas = [0.9, 1.0]", &["optim.betas[1] = 1", "expected"]),
        ("[optim]\neps = -1e-8", &["optim.eps", "expected"]),
        ("[optim]\nclip_norm = nan", &["optim.clip_norm = NaN", "expected"]),
        ("[optim]\nweight_decay = -1", &["optim.weight_decay = -1", "expected"]),
        ("[optim]\ntable_lr_scale = inf", &["optim.table_lr_scale = inf", "expected"]),
        ("[intervene]\ninput_scale = nan", &["intervene.input_scale = NaN", "expected"]),
        ("[intervene]\noutput_scale = -1", &["intervene.output_scale = -1", "expected"]),
        ("[intervene]\npaper_output_scale = inf", &["intervene.paper_output_scale = inf", "expected"]),
        ("[schedule]\nmin_lr_ratio = 1.5", &["schedule.min_lr_ratio = 1.5", "from 0 to 1"]),
        ("[schedule]\nwarmup_start_ratio = nan", &["schedule.warmup_start_ratio = NaN", "from 0 to 1"]),
        ("[model]\nd_model = 0", &["model.d_model = 0", "expected 1 to"]),
        ("[model]\nn_layers = 0", &["model.n_layers = 0", "expected 1 to"]),
        ("[model]\nn_heads = 0", &["model.n_heads = 0", "expected 1 to"]),
        ("[model]\nd_ff = 99999999", &["model.d_ff = 99999999", "expected at most"]),
        ("[model]\nnorm_eps = 0", &["model.norm_eps = 0", "expected a positive number"]),
        ("[model]\nrope_theta = nan", &["model.rope_theta = NaN", "expected a positive number"]),
        ("[train]\nsteps = 0", &["train.steps = 0", "expected 1 to"]),
        ("[train]\nbatch_size = 0", &["train.batch_size = 0", "expected 1 to"]),
        ("[log]\nevery = 0", &["log.every = 0", "expected 1 to"]),
        ("[checkpoint]\nkeep = 0", &["checkpoint.keep = 0", "expected 1 to"]),
        ("[data]\ncontext_length = 0", &["data.context_length = 0", "expected"]),
        ("[data]\nvalidation_fraction = 1.0", &["data.validation_fraction = 1", "above 0 and below 1"]),
        ("[data]\nvalidation_fraction = nan", &["data.validation_fraction = NaN", "above 0 and below 1"]),
        ("threads = 100000", &["threads = 100000", "expected at most"]),
        ("name = \"\"", &["name = \"\"", "expected"]),
        ("name = \"a/b\"", &["name = \"a/b\"", "slashes"]),
        // Combinations.
        ("[model]\nn_heads = 3", &["model.n_heads = 3", "does not divide", "model.d_model = 16"]),
        ("[model]\nd_model = 6", &["rope", "even head width", "= 3", "model.n_heads", "learned"]),
        ("[train]\nmicro_batch_size = 3", &["train.micro_batch_size = 3", "does not divide", "train.batch_size = 4"]),
        (
            "[optim]\ninput_lr_scale = 2",
            &["optim.input_lr_scale = 2", "head.mode = \"tied\"", "table_lr_scale", "untied"],
        ),
        ("[optim]\noutput_lr_scale = 0.5", &["optim.output_lr_scale = 0.5", "head.mode = \"tied\""]),
        // Devices.
        ("device = \"gpu\"", &["device = \"gpu\"", "unknown", "flex"]),
        ("device = \"cuda:0\"", &["device = \"cuda:0\"", "--features cuda", "flex"]),
        ("device = \"metal:1\"", &["device = \"metal:1\"", "not in this build", "--features metal", "flex"]),
        ("device = \"wgpu:x\"", &["device = \"wgpu:x\"", "unknown", "wgpu:1", "wgpu:cpu"]),
        ("device = \"ndarray\"", &["device = \"ndarray\"", "not in this build", "--features ndarray", "flex"]),
        // Head modes: keys of others, roles they lack, values and combinations that mean nothing.
        ("[head]\nrank = 8", &["head.rank = 8", "\"tied\" has no such key", "low_rank_private", "factorised"]),
        ("[head]\nmode = \"partial\"\nrows = 7", &["head.rows = 7", "\"partial\"", "partial_rows"]),
        ("[head]\nmode = \"partial\"\nshared_width = 17", &["head.shared_width = 17", "model.d_model = 16"]),
        ("[head]\nmode = \"dual_head\"\ngate = 1.5", &["head.gate = 1.5", "from 0 (untied) to 1 (tied)"]),
        ("[head]\nmode = \"dual_head\"\ngate = nan", &["head.gate = NaN", "expected"]),
        (
            "[head]\nmode = \"dual_head\"\ngate = 1.0\ngate_learned = true",
            &["head.gate = 1", "head.gate_learned", "sigmoid"],
        ),
        ("[head]\nmode = \"dual_head\"\ngate_per = \"row\"", &["head.gate_per", "gate_learned"]),
        ("[head]\nmode = \"dual_head\"\ngate_per = \"state\"", &["head.gate_per", "state", "model", "row"]),
        ("[head]\nmode = \"tie_then_untie\"\nuntie_at = 1.5", &["head.untie_at = 1.5", "whole number", "fraction"]),
        ("[head]\nmode = \"tie_then_untie\"\nuntie_at = -1", &["head.untie_at = -1", "whole number"]),
        ("[head]\nmode = \"low_rank_private\"\nrank = 17", &["head.rank = 17", "model.d_model = 16"]),
        ("[head]\nmode = \"factorised\"\nrank = 0", &["head.rank = 0", "expected 1 to model.d_model = 16"]),
        ("[head]\nmode = \"partial_rows\"\nrows = 301", &["head.rows = 301", "300 ids"]),
        (
            "[head]\nmode = \"pseudo_inverse\"\n[model]\nd_model = 512\nn_heads = 2",
            &["pseudo_inverse", "300 rows", "model.d_model = 512"],
        ),
        ("[head]\nlogit_softcap = -1.0", &["head.logit_softcap = -1", "from 0 (off)"]),
        ("[head]\nz_loss = nan", &["head.z_loss = NaN", "from 0 (off)"]),
        ("[model]\nembed_scale = 0", &["model.embed_scale = 0", "expected a positive number"]),
        ("[optim]\nmap_lr_scale = 0.5", &["optim.map_lr_scale = 0.5", "\"tied\" has no map", "projected"]),
        (
            "[head]\nmode = \"partial\"\nshared_width = 16\n[optim]\ninput_lr_scale = 2",
            &["optim.input_lr_scale = 2", "\"partial\" has no parameter of that side alone"],
        ),
        ("[intervene]\nbalance_target = -1", &["intervene.balance_target = -1", "expected a number from 0"]),
        ("[intervene]\noutput_clip = nan", &["intervene.output_clip = NaN", "expected a number from 0"]),
        (
            "[intervene]\nbalance_target = 1.0\nlearned = true",
            &["intervene.balance_target and intervene.learned", "against each other"],
        ),
        (
            "[intervene]\nbalance_target = 1.0\ninput_scale = 5.0",
            &["intervene.input_scale is decided by intervene.balance_target"],
        ),
        (
            "[intervene]\nlearned = true\noutput_scale = 0.5",
            &["intervene.output_scale is decided by intervene.learned"],
        ),
        (
            "[head]\nmode = \"untied\"\n[intervene]\nlearned = true",
            &["intervene.learned", "\"untied\" has no parameter that both reach", "\"tied\""],
        ),
        ("[intervene]\ninput_scale = \"big\"", &["intervene.input_scale", "expected a number or {"]),
        (
            "[intervene]\ninput_scale = { kind = \"linear\", start = 5.0 }",
            &["intervene.input_scale", "{ kind, start, end, until }"],
        ),
        (
            "[intervene]\ninput_scale = { kind = \"linear\", start = 5.0, end = -1.0, until = 9 }",
            &["intervene.input_scale.end = -1", "expected a number from 0"],
        ),
        (
            "[intervene]\noutput_scale = { kind = \"linear\", start = 5.0, end = 1.0, until = 2.5 }",
            &["intervene.output_scale.until = 2.5", "whole number"],
        ),
        (
            "[intervene]\ninput_scale = { kin = \"linear\", start = 5.0, end = 1.0, until = 9 }",
            &["unknown key kin in [intervene.input_scale]", "did you mean intervene.input_scale.kind"],
        ),
        ("[aux]\nreconstruction = -1.0", &["aux.reconstruction = -1", "from 0 (off)"]),
        ("[aux]\nsymmetry = 1.0", &["aux.symmetry = 1", "\"tied\"", "one matrix", "untied"]),
        ("[aux]\nsymmetry_refresh = 9", &["aux.symmetry_refresh = 9", "without aux.symmetry"]),
        ("[intervene]\nbalance_target = 1e3", &["intervene.balance_target = 1000", "0.01 to 100"]),
        (
            "[intervene]\nbalance_target = 1.0\noutput_scale = 0.0",
            &["intervene.balance_target", "intervene.output_scale = 0", "remove one"],
        ),
        ("[optim]\ntable_warmup_steps = 61", &["optim.table_warmup_steps = 61", "train.steps = 60"]),
        ("[head]\nmode = \"tie_then_untie\"\nuntie_at = 60", &["head.untie_at = 60", "train.steps = 60", "tied"]),
        (
            "[head]\nmode = \"tie_then_untie\"\nuntie_at = 0.0\n[intervene]\nlearned = true",
            &["intervene.learned", "no parameter that both reach"],
        ),
        ("[head]\nlogit_softcap = 2000.0", &["head.logit_softcap = 2000", "1000"]),
        ("[aux]\nsymmetry_refresh = 0", &["aux.symmetry_refresh = 0", "expected 1 to"]),
        ("[aux]\nsymetry = 1.0", &["unknown key symetry in [aux]", "did you mean aux.symmetry"]),
        ("[probe]\nevery = -1", &["probe.every", "-1"]),
        ("[probe]\npermutations = 10001", &["probe.permutations = 10001", "expected 0 to 10000"]),
        ("[probe]\nreference = [\"\"]", &["probe.reference", "empty name"]),
        ("[lens]\nafter_training = 1", &["lens.after_training", "boolean"]),
        ("[lens]\nrecipe = \"bogus\"", &["lens.recipe", "bogus", "converged", "paper"]),
        ("[lens]\ntrain_tokens = 5", &["lens.train_tokens = 5", "one window"]),
        // Names of data.
        ("[data]\ncorpus = \"sotuu\"", &["data.corpus", "sotuu", "did you mean \"sotu\"", "synthetic"]),
        ("[data]\ncorpus = \"\"", &["data.corpus", "empty"]),
        ("[data]\ncorpus = \"none.txt\"", &["data.corpus", "none.txt", "no such"]),
        ("[data]\nfallback = \"syntetic\"", &["data.fallback", "syntetic", "did you mean \"synthetic\""]),
        ("[data]\ntokenizer = \"gtp2\"", &["data.tokenizer", "gtp2", "did you mean \"gpt2\""]),
        ("[data]\ntokenizer = \"none.json\"", &["data.tokenizer", "none.json", "no such file"]),
        ("[data]\ntokenizer = \"\"", &["data.tokenizer", "empty"]),
        ("[data]\ntokenizer = \"bpe:x\"", &["data.tokenizer", "bpe:x", "expected bpe:N"]),
        ("[data]\ntokenizer = \"bpe:256\"", &["data.tokenizer", "bpe:256", "257"]),
    ];
    let (place, mut failures) = (Place::new(), Vec::new());
    for (toml, parts) in cases {
        place.write_run("bad.toml", toml);
        let parts = [&["bad.toml"], *parts].concat();
        // A path that does not exist, and a device, need no file to be read; so `config check` sees them too.
        check(&place, toml, &["config", "check", "bad.toml"], &parts, &mut failures);
        check(&place, toml, &["train", "bad.toml", "--out", "out"], &parts, &mut failures);
    }
    report(failures);
}

/// What only the text itself shows.
#[test]
fn data() {
    let place = Place::new();
    let files: &[(&str, &[u8])] = &[
        ("empty.txt", b""),
        ("blank.txt", b" \n\t\n"),
        ("latin1.txt", b"caf\xe9 au lait"),
        ("short.txt", b"Only a few words are in this text."),
        ("paper.pdf", b"%PDF"),
        ("broken.jsonl", b"{\"text\": \"good\"}\n{\"text\": \n"),
        ("field.jsonl", b"{\"text\": \"good\"}\n{\"body\": \"x\"}\n"),
        ("number.jsonl", b"{\"text\": 3}\n"),
        ("latin1.jsonl", b"{\"text\": \"caf\xe9\"}\n"),
        ("folder/readme.md", b"no text here"),
        ("not.json", b"hello"),
        ("other.json", b"{\"version\": \"1.0\"}"),
        // Words alone: nothing ends a text.
        ("no-end.json", &word_tokenizer(&["a", "b", "[UNK]"], "null")),
        // One damaged id, and the tables would need a hundred gigabytes.
        (
            "far-id.json",
            &String::from_utf8(word_tokenizer(&["a", "b", "</s>"], "null"))
                .unwrap()
                .replace("\"b\": 1", "\"b\": 4294967294")
                .into_bytes(),
        ),
        // Byte-level, but most bytes have no id.
        (
            "no-bytes.json",
            &word_tokenizer(
                &["a", "b", "<|endoftext|>"],
                r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}"#,
            ),
        ),
    ];
    for (name, bytes) in files {
        place.write(name, bytes);
    }
    let cases: &[(&str, &[&str])] = &[
        ("[data]\ncorpus = \"empty.txt\"", &["empty.txt", "empty"]),
        ("[data]\ncorpus = \"blank.txt\"", &["blank.txt", "empty"]),
        ("[data]\ncorpus = \"latin1.txt\"", &["latin1.txt", "UTF-8", "0xe9", "offset 3"]),
        ("[data]\ncorpus = \"latin1.jsonl\"", &["latin1.jsonl", "UTF-8", "0xe9", "offset 13"]),
        ("[data]\ncorpus = \"paper.pdf\"", &["paper.pdf", "expected", ".txt", ".jsonl"]),
        ("[data]\ncorpus = \"broken.jsonl\"", &["broken.jsonl", "2", "JSON"]),
        ("[data]\ncorpus = \"field.jsonl\"", &["field.jsonl", "2", "text"]),
        ("[data]\ncorpus = \"number.jsonl\"", &["number.jsonl", "1", "text"]),
        ("[data]\ncorpus = \"folder\"", &["folder", "no .txt or .jsonl"]),
        ("[data]\ncorpus = \"short.txt\"", &["split", "empty", "data.validation_fraction"]),
        (
            "[data]\ncontext_length = 3000\n[eval]\ntokens = 0",
            &["validation split", "tokens", "data.context_length = 3000", "3001"],
        ),
        ("[data]\ncontext_length = 500000\n[eval]\ntokens = 0", &["split has", "data.context_length = 500000"]),
        ("[data]\nvalidation_fraction = 1e-9", &["validation split is empty", "data.validation_fraction"]),
        ("[data]\ntokenizer = \"bpe:200000\"", &["data.tokenizer = \"bpe:200000\"", "ids only", "or less"]),
        ("[data]\ntokenizer = \"not.json\"", &["not.json", "no usable tokenizer", "JSON"]),
        ("[data]\ntokenizer = \"other.json\"", &["other.json", "no usable tokenizer"]),
        ("[data]\ntokenizer = \"no-end.json\"", &["no-end.json", "no token that ends a text", "<|endoftext|>"]),
        ("[data]\ntokenizer = \"far-id.json\"", &["far-id.json", "\"b\"", "4294967294", "below 1000000"]),
        ("[data]\ntokenizer = \"no-bytes.json\"", &["no-bytes.json", "byte-level", "of the 256 bytes have no id"]),
    ];
    let mut failures = Vec::new();
    for (toml, parts) in cases {
        place.write_run("bad.toml", toml);
        check(&place, toml, &["train", "bad.toml", "--out", "out"], parts, &mut failures);
        check(&place, toml, &["data", "prepare", "bad.toml"], parts, &mut failures);
    }
    place.write("cut.bin", b"tiebreak");
    let commands: &[(&[&str], &[&str])] = &[
        (&["data", "inspect", "cut.bin"], &["cut.bin"]),
        (&["data", "inspect", "none"], &["none", "no such file or folder"]),
        (&["data", "inspect", "latin1.txt"], &["latin1.txt", "offset 3"]),
        (&["data", "fetch", "sotuu"], &["sotuu", "did you mean \"sotu\""]),
    ];
    for (args, parts) in commands {
        check(&place, "data", args, parts, &mut failures);
    }
    report(failures);
}

fn word_tokenizer(words: &[&str], decoder: &str) -> Vec<u8> {
    let vocabulary: Vec<String> = words.iter().enumerate().map(|(id, word)| format!("{word:?}: {id}")).collect();
    format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": null, "decoder": {decoder},
            "model": {{"type": "WordLevel", "vocab": {{{}}}, "unk_token": {:?}}}}}"#,
        vocabulary.join(", "),
        words[words.len() - 1]
    )
    .into_bytes()
}

/// Files that are missing or no TOML, `--set` in every wrong form, and what the command line itself refuses.
#[test]
fn commands() {
    let place = Place::new();
    place.write("broken.toml", "name = \"x\"\n[model\nd_model = 8\n");
    place.write("twice.toml", "seed = 1\nseed = 2\n");
    place.write("latin1.toml", b"name = \"x\"\n# caf\xe9\n");
    place.write("folder/a.txt", "a");
    let cases: &[(&[&str], &[&str])] = &[
        (&["train", "none.toml"], &["none.toml", "cannot be read"]),
        (&["train", "folder"], &["folder", "cannot be read"]),
        (&["train", "broken.toml"], &["broken.toml", "line 2"]),
        (&["train", "twice.toml"], &["twice.toml", "line 2", "seed"]),
        (&["train", "latin1.toml"], &["latin1.toml", "byte 16", "UTF-8"]),
        (&["config", "check", "none.toml"], &["none.toml", "cannot be read"]),
        (&["config", "show", "broken.toml"], &["broken.toml", "line 2"]),
        (&["data", "prepare", "none.toml"], &["none.toml", "cannot be read"]),
        (&["data", "inspect", "none.toml"], &["none.toml", "cannot be read"]),
        (&["inspect", "none.toml"], &["none.toml", "cannot be read"]),
        (&["inspect", "folder"], &["folder", "no run", "config.toml", "status.json"]),
        (&["train", "run.toml", "--set", "optim.lr"], &["--set", "optim.lr", "expected key=value"]),
        (&["train", "run.toml", "--set", "=1"], &["is no key", "optim.lr"]),
        (&["train", "run.toml", "--set", ".lr=1"], &["is no key"]),
        (&["train", "run.toml", "--set", "optim.=1"], &["is no key", "optim.lr"]),
        (&["train", "run.toml", "--set", "optim..lr=1"], &["is no key"]),
        (&["train", "run.toml", "--set", "optim.lrr=1"], &["unknown key lrr", "[optim]", "did you mean optim.lr"]),
        (&["train", "run.toml", "--set", "optm.lr=1"], &["unknown section [optm]", "did you mean [optim]"]),
        (&["train", "run.toml", "--set", "optim.lr=fast"], &["optim.lr", "fast", "expected"]),
        (&["train", "run.toml", "--set", "optim.lr=nan"], &["optim.lr = NaN", "expected"]),
        (&["train", "run.toml", "--set", "optim.lr="], &["optim.lr", "expected"]),
        (&["train", "run.toml", "--set", "optim=1"], &["optim", "section"]),
        (&["train", "run.toml", "--set", "seed.x=1"], &["seed is a key, not a section"]),
        (&["train", "run.toml", "--set", "seed=1", "--set", "seed.x=1"], &["seed"]),
        (&["train", "run.toml", "--set", "head.mode=tide"], &["head.mode", "tide", "tied", "untied"]),
        (&["inspect", "run.toml", "--set", "model.n_heads=3"], &["model.n_heads = 3", "does not divide"]),
        (&["config", "check", "run.toml", "--set", "optim.lrr=1"], &["unknown key lrr"]),
        // The parser's own.
        (&["trian", "run.toml"], &["trian", "train"]),
        (&["train"], &["RUN"]),
        (&["train", "run.toml", "--rusume"], &["--rusume", "--resume"]),
        (&["train", "run.toml", "--out"], &["--out"]),
        (&["--log", "loud", "train", "run.toml"], &["loud"]),
        (&["sweep", "run.toml", "--jobs", "two"], &["--jobs", "two"]),
        (&["sweep", "run.toml", "--launcher", "slurm"], &["slurm", "local"]),
        (&["compare"], &["DIRS"]),
    ];
    let mut failures = Vec::new();
    for (args, parts) in cases {
        check(&place, "command", args, parts, &mut failures);
    }
    report(failures);
}

#[test]
fn an_unknown_word_in_tiebreak_simd_is_refused_and_known_ones_are_not() {
    let place = Place::new();
    let with = |word: &str| Said::of(place.command(binary()).args(["devices"]).env("TIEBREAK_SIMD", word));
    let refused = with("avx1024").expect(2).stderr;
    assert!(refused.contains("TIEBREAK_SIMD=avx1024") && refused.contains("avx512, avx2, plain or off"), "{refused}");
    for word in ["avx512", "avx2", "plain", "off", ""] {
        with(word).expect(0);
    }
}

/// Folders that cannot be, or must not become, a run's.
#[test]
fn output_folders() {
    let place = Place::new();
    let run = place.train("out", &[]).expect(0).folder(&place);
    let (name, inside) = (run.0.file_name().unwrap().to_str().unwrap().to_owned(), "out/");
    let itself = format!("{inside}{name}");
    // Another run's folder under this run's name.
    place.tiebreak(&["train", "run.toml", "--out", "other", "--set", "seed=1"]).expect(0);
    let other = place.run_below("other");
    std::fs::create_dir_all(place.path("foreign")).unwrap();
    std::fs::rename(&other.0, place.path("foreign").join(&name)).unwrap();
    place.write(&format!("photos/{name}/holiday.jpg"), "x");
    place.write(&format!("torn/{name}/status.json"), "{\"state\": ");
    place.write("file", "x");
    place.write(&format!("in-place/{name}"), "x");
    let mut failures = Vec::new();
    let cases: &[(&str, &[&str])] = &[
        (&itself, &["--out", &name, "run's own folder", "choose"]),
        ("foreign", &[&name, "holds another run", "--out"]),
        ("photos", &[&name, "holiday.jpg", "no run", "--out"]),
        ("torn", &[&name, "status.json"]),
        ("file", &["--out", "file"]),
        ("file/below", &["--out", "file"]),
        ("in-place", &["--out", &name]),
        // Root may write everywhere but there.
        #[cfg(target_os = "linux")]
        ("/proc/tiebreak", &["--out", "/proc/tiebreak"]),
    ];
    for (out, parts) in cases {
        for resume in [&[][..], &["--resume"]] {
            let args = [&["train", "run.toml", "--out", out], resume].concat();
            check(&place, "--out", &args, parts, &mut failures);
        }
    }
    report(failures);
}

/// An unfinished run is told apart from one that lives.
#[test]
fn unfinished_and_locked_runs() {
    let place = Place::new();
    let long = ["--set", "train.steps=1000000"];
    let mut child = place.start("out", &long);
    crate::harness::wait_until("a first checkpoint", || {
        place.started_below("out").is_some_and(|run| !run.checkpoints().is_empty())
    });
    let run = place.run_below("out");
    let name = run.0.file_name().unwrap().to_str().unwrap();
    for resume in [&[][..], &["--resume"]] {
        let said = place.tiebreak(&[&["train", "run.toml", "--out", "out"], &long[..], resume].concat());
        assert_eq!(problem(&said, &[name, "another process"]), None, "{said:?}");
    }
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    let mut failures = Vec::new();
    let args = [&["train", "run.toml", "--out", "out"], &long[..]].concat();
    check(&place, "unfinished", &args, &[name, "unfinished", "interrupted", "--resume", "--out"], &mut failures);
    report(failures);
}

const SWEEP: &str = r#"
[sweep]
name = "s"
base = "run.toml"
seeds = [0, 1]
baseline = "tied"
metric = "eval/ppl"
[[sweep.arms]]
name = "tied"
[[sweep.arms]]
name = "untied"
set = { "head.mode" = "untied" }
"#;

/// A sweep's file, each case one change of a good one.
#[test]
fn sweeps() {
    let place = Place::new();
    let change = |from: &str, to: &str| {
        assert!(SWEEP.contains(from), "{from}");
        SWEEP.replacen(from, to, 1)
    };
    let add = |text: &str| format!("{SWEEP}{text}\n");
    let cases: Vec<(String, &[&str])> = vec![
        (change("\"untied\"\nset", "\"tied\"\nset"), &["two arms", "\"tied\""]),
        (change("seeds = [0, 1]", "seeds = [0, 0]"), &["sweep.seeds", "0 twice"]),
        (change("seeds = [0, 1]", "seeds = []"), &["sweep.seeds", "expected a list"]),
        (change("seeds = [0, 1]", "seeds = [-1]"), &["sweep.seeds", "-1", "expected"]),
        (change("seeds = [0, 1]", "seeds = 2"), &["sweep.seeds = 2", "expected"]),
        (change("seeds = [0, 1]\n", ""), &["sweep.seeds is missing"]),
        (change("baseline = \"tied\"", "baseline = \"teid\""), &["sweep.baseline", "teid", "did you mean \"tied\""]),
        (change("\"eval/ppl\"", "\"eval/pll\""), &["sweep.metric", "eval/pll", "eval/ppl"]),
        (
            change("\"eval/ppl\"", "\"grad/output_over_inptu\""),
            &["sweep.metric", "did you mean \"grad/output_over_input\""],
        ),
        (change("\"eval/ppl\"", "\"align/cca\""), &["sweep.metric", "align/cca", "no such tag", "eval/{loss,ppl"]),
        (
            change("\"eval/ppl\"", "\"align/input_to_output/cca\""),
            &["arm \"tied\"", "sweep.metric", "align/input_to_output/cca", "probe.every"],
        ),
        (
            change("\"eval/ppl\"", "\"grad/shared_input_norm\""),
            &["arm \"untied\"", "sweep.metric", "grad/shared_input_norm", "shares no parameter"],
        ),
        (
            change("\"eval/ppl\"", "\"residual/3/update_over_stream\""),
            &["arm \"tied\"", "sweep.metric", "model.n_layers = 2"],
        ),
        (change("run.toml", "none.toml"), &["sweep.base", "none.toml"]),
        (change("base = \"run.toml\"\n", ""), &["sweep.base is missing"]),
        (change("name = \"s\"", "name = \"a/b\""), &["sweep.name", "a/b"]),
        (change("seeds", "seed"), &["unknown key seed", "[sweep]", "did you mean \"seeds\""]),
        (change("[sweep]", "[sweeps]"), &["sweeps", "[sweep]"]),
        (change("set = ", "sets = "), &["unknown key sets", "untied", "did you mean \"set\""]),
        (change("head.mode", "head.mod"), &["arm \"untied\"", "unknown key mod", "did you mean head.mode"]),
        (change("= \"untied\" }", "= \"untide\" }"), &["arm \"untied\"", "head.mode", "untide", "untied"]),
        (change("\"head.mode\" = \"untied\"", "seed = 3"), &["arm \"untied\"", "seed", "sweep.seeds"]),
        (
            change("\"head.mode\" = \"untied\"", "\"optim.input_lr_scale\" = 2"),
            &["arm \"untied\"", "optim.input_lr_scale"],
        ),
        (change("\"head.mode\" = \"untied\"", "device = \"cuda\""), &["arm \"untied\"", "device", "--features cuda"]),
        (change("\"head.mode\" = \"untied\"", "\"data.corpus\" = \"sotuu\""), &["arm \"untied\"", "sotuu", "sotu"]),
        (add("match_parameters = \"teid\""), &["arm \"untied\"", "match_parameters", "teid", "did you mean \"tied\""]),
        (add("match_parameters = \"untied\""), &["match_parameters", "is the arm itself"]),
        (
            add("match_parameters = \"tied\"").replace("\"head.mode\"", "\"data.tokenizer\" = \"gpt2\", \"head.mode\""),
            &["arm \"untied\"", "match_parameters", "within 1 %"],
        ),
        (add("[sweep.grid]\n\"optim.lrr\" = [1.0]"), &["unknown key lrr", "did you mean optim.lr"]),
        (add("[sweep.grid]\n\"optim.lr\" = 1.0"), &["[sweep.grid] optim.lr", "expected a list"]),
        (add("[sweep.grid]\n\"optim.lr\" = []"), &["[sweep.grid] optim.lr", "at least one"]),
        (add("[sweep.grid]\n\"optim.lr\" = [nan]"), &["optim.lr = NaN", "expected"]),
        (add("[sweep.grid]\n\"head.mode\" = [\"tied\"]"), &["\"untied\"", "head.mode", "grid"]),
        (add("[sweep.grid]\nseed = [1]"), &["[sweep.grid]", "seed", "sweep.seeds"]),
        (TINY.into(), &["top level", "train"]),
        ("[sweep]\nname = \"s\"\nbase = \"run.toml\"\nseeds = [0]\n".into(), &["no arms", "[[sweep.arms]]"]),
        ("".into(), &["[sweep]"]),
    ];
    let mut failures = Vec::new();
    for (toml, parts) in &cases {
        place.write("bad.toml", toml);
        let parts = [&["bad.toml"], *parts].concat();
        // Which kind of file an empty one is, `config check` cannot know.
        if toml.contains("[sweep]") {
            check(&place, toml, &["config", "check", "bad.toml"], &parts, &mut failures);
        }
        check(&place, toml, &["sweep", "bad.toml", "--out", "out", "--dry-run"], &parts, &mut failures);
        check(&place, toml, &["sweep", "bad.toml", "--out", "out"], &parts, &mut failures);
    }
    place.write("sweep.toml", SWEEP);
    place.write("file", "x");
    place.write("locked/s/sweep.lock/x", "x");
    for (args, parts) in [
        (&["train", "sweep.toml"][..], &["sweep.toml", "sweep"][..]),
        (&["inspect", "sweep.toml"], &["sweep.toml", "a sweep", "config show"]),
        (&["sweep", "sweep.toml", "--set", "seed=3"], &["seed=3", "sweep.seeds"]),
        (&["sweep", "sweep.toml", "--set", "sweep.seedz=[3]"], &["unknown key seedz", "seeds"]),
        (&["sweep", "sweep.toml", "--set", "optim.lrr=3"], &["unknown key lrr", "optim.lr"]),
        (
            &["sweep", "sweep.toml", "--set", "data.context_length=100000", "--set", "eval.tokens=0"],
            &["split has", "data.context_length"],
        ),
        (&["sweep", "sweep.toml", "--jobs", "0"], &["--jobs 0", "at least 1"]),
        (&["sweep", "sweep.toml", "--jobs", "0", "--dry-run"], &["--jobs 0", "at least 1"]),
        // A folder in which no lock can be taken, as in one that belongs to somebody else.
        (&["sweep", "sweep.toml", "--out", "locked"], &["--out locked", "sweep.lock", "choose another --out"]),
        (&["sweep", "sweep.toml", "--out", "file"], &["--out", "file"]),
        (&["sweep", "sweep.toml", "--out", "file/below"], &["--out", "file"]),
    ] {
        check(&place, "sweep", args, parts, &mut failures);
    }
    report(failures);
}

/// `compare` on what cannot be compared.
#[test]
fn comparisons() {
    let place = Place::new();
    std::fs::create_dir(place.path("empty")).unwrap();
    place.write("file", "x");
    place.train("one", &["--set", "train.steps=3"]).expect(0);
    place.train("mixed", &["--set", "train.steps=3"]).expect(0);
    place.train("mixed", &["--set", "train.steps=3", "--set", "optim.lr=0.1", "--set", "seed=1"]).expect(0);
    place.train("other", &["--set", "train.steps=3", "--set", "optim.lr=0.1"]).expect(0);
    for (name, file, text) in [
        ("torn-metrics", "metrics.jsonl", "{\"step\":3,\"tag\":\"eval/ppl\",\"val\n"),
        ("torn-status", "status.json", "{\"state\": \"compl"),
        ("torn-config", "config.toml", "[model\n"),
        ("torn-env", "env.json", "{"),
    ] {
        let run = place.train(name, &["--set", "train.steps=3"]).expect(0).folder(&place);
        std::fs::write(run.0.join(file), text).unwrap();
    }
    let mut failures = Vec::new();
    for (args, parts) in [
        (&["compare", "none"][..], &["none", "no such folder"][..]),
        (&["compare", "file"], &["file", "not a folder"]),
        (&["compare", "empty"], &["empty", "no runs found", "status.json"]),
        (&["compare", "one"], &["baseline \"tied\"", "no such arm", "tiny", "--baseline"]),
        (&["compare", "one", "--baseline", "tinny"], &["\"tinny\"", "did you mean \"tiny\""]),
        (&["compare", "one", "--baseline", "tiny", "--metric", "eval/pll"], &["eval/pll", "eval/ppl", "eval/loss"]),
        (
            &["compare", "mixed", "--baseline", "tiny"],
            &["arm \"tiny\"", "two configurations", "optim.lr", "--allow-mixed"],
        ),
        (
            &["compare", "one", "other", "--baseline", "tiny"],
            &["arm \"tiny\"", "two runs of seed 0", "optim.lr", "--allow-mixed"],
        ),
        (&["compare", "torn-metrics", "--baseline", "tiny", "--json"], &["metrics.jsonl", "line 1"]),
        (&["compare", "torn-status", "--baseline", "tiny"], &["status.json"]),
        (&["compare", "torn-config", "--baseline", "tiny"], &["config.toml", "line 1"]),
        (&["compare", "torn-env", "--baseline", "tiny"], &["env.json"]),
    ] {
        check(&place, "compare", args, parts, &mut failures);
    }
    report(failures);
}

/// Changes what follows the header of a safetensors file.
fn overwrite(path: &std::path::Path, change: impl Fn(&mut [u8])) {
    let mut bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    change(&mut bytes[8 + header..]);
    std::fs::write(path, bytes).unwrap();
}

/// Tables that cannot be compared, or not be measured.
#[test]
fn probed_tables() {
    let place = Place::new();
    place.write("file", "x");
    let train = |out: &str, more: &[&str]| {
        place.train(out, &[&["--set", "train.steps=3"], more].concat()).expect(0).folder(&place)
    };
    let table = |run: &crate::harness::RunDir| run.0.join("tables/step-3.safetensors");
    let (tied, untied) = (train("tied", &[]), train("untied", &["--set", "head.mode=untied", "--set", "seed=1"]));
    let [tied_path, untied_path] = [&tied, &untied].map(|run| run.0.to_str().unwrap().to_owned());
    let other_bytes = train("bytes", &["--set", "data.tokenizer=bytes", "--set", "seed=2"]).0;
    let split = train("split", &["--set", "data.validation_fraction=0.2"]).0;
    let wide = train("wide", &["--set", "model.d_model=32"]).0;
    // More columns than ids that occur.
    let narrow_text = ["--set", "data.tokenizer=bytes", "--set", "model.d_model=64", "--set", "head.mode=untied"];
    let few = train("few", &narrow_text).0;
    let no_tables = train("no-tables", &[]);
    std::fs::remove_dir_all(no_tables.0.join("tables")).unwrap();
    let no_first = train("no-first", &[]).0;
    std::fs::remove_file(no_first.join("tables/step-0.safetensors")).unwrap();
    let no_first = no_first.to_str().unwrap().to_owned();
    let (nan, zero, cut) = (train("nan", &[]), train("zero", &[]), train("cut", &[]));
    overwrite(&table(&nan), |data| data.chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&f32::NAN.to_le_bytes())));
    overwrite(&table(&zero), |data| data.fill(0));
    let whole = std::fs::read(table(&cut)).unwrap();
    std::fs::write(table(&cut), &whole[..whole.len() - 1]).unwrap();
    let foreign = train("foreign", &[]);
    std::fs::copy(wide.join("tables/step-3.safetensors"), table(&foreign)).unwrap();
    let torn = train("torn", &[]);
    std::fs::write(torn.0.join("env.json"), "{").unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (split, wide, few, other_bytes) = (text(&split), text(&wide), text(&few), text(&other_bytes));
    let [no_tables, nan, zero, cut, foreign, torn] =
        [no_tables, nan, zero, cut, foreign, torn].map(|run| run.0.to_str().unwrap().to_owned());
    let mut failures = Vec::new();
    let cases: &[(&[&str], &[&str])] = &[
        (&["none"], &["none", "no run", "config.toml"]),
        (&["file"], &["file", "no run"]),
        (&[&no_tables], &[&no_tables, "has kept no tables"]),
        (&[&tied_path, "--step", "2"], &[&tied_path, "no tables of step 2", "steps 0, 3", "log.tables_at"]),
        (&[&tied_path, &other_bytes], &["tokenizer or data differ", "tokenizer", &other_bytes]),
        (&[&tied_path, &split], &["tokenizer or data differ", "tokenizer or data differ"]),
        (&[&untied_path, &wide], &["{16, 32} columns", "identity needs equal widths", "--only knn"]),
        (&[&few], &[":input", "64 columns", "a map of that many columns fits anything"]),
        (&[&nan], &["row", "holds NaN", "expected finite numbers"]),
        (&[&zero], &["row", "all zeros"]),
        (&[&nan, &untied_path, "--only", "knn"], &[":tied", "row", "holds NaN"]),
        (&[&cut], &["step-3.safetensors", "not a whole safetensors file", "--step 0 reads the other step"]),
        (&[&foreign], &["step-3.safetensors", "input is 300 x 32", "300 x 16", "another model"]),
        (&[&torn], &["env.json", "not a run's record"]),
        (&[&tied_path, "--only", "alignmnet"], &["--only alignmnet", "did you mean \"alignment\"", "norm_frequency"]),
        (&[&tied_path, "--permutations", "100000"], &["permutations = 100000", "at most 10000"]),
        (&[&tied_path, "--permutations", "-1"], &["-1", "--permutations", "whole number from 0"]),
        (
            &[&no_first],
            &["step-0.safetensors", "no tables of step 0 were kept", "learned and evolution", "--only alignment,"],
        ),
        (&[&no_first, "--step", "1"], &["there are those of step 3 ("]),
        (&[&tied_path, "--pairs", "some"], &["--pairs", "some", "all"]),
        (&[], &["RUN"]),
    ];
    for (args, parts) in cases {
        let args = [&["probe"], *args].concat();
        check(&place, "probe", &args, parts, &mut failures);
    }
    // What needs no map does without more rows than columns, and neighbours without one width.
    place.tiebreak(&["probe", &few, "--only", "knn,geometry,evolution,norm_frequency"]).expect(0);
    place.tiebreak(&["probe", &untied_path, &wide, "--only", "knn"]).expect(0);
    // The text that gave the counts has changed.
    let text = std::fs::read_to_string(place.path("text.jsonl")).unwrap();
    place.write("text.jsonl", text + "{\"text\": \"one more document\"}\n");
    check(
        &place,
        "changed",
        &["probe", &tied_path],
        &[&tied_path, "no longer what the run was trained on"],
        &mut failures,
    );
    report(failures);
}

/// `generate` and `lens show`: options, prompts and runs.
#[test]
fn looking_into_a_run() {
    let (place, mut failures) = (Place::new(), Vec::new());
    let run = place.train("out", &[]).expect(0).folder(&place).0.display().to_string();
    place.write_run("bytes.toml", "[data]\ntokenizer = \"bytes\"");
    let bytes =
        place.tiebreak(&["train", "bytes.toml", "--out", "bytes"]).expect(0).folder(&place).0.display().to_string();
    place.write("empty.jsonl", "");
    place.write("array.jsonl", "[\"a\"]\n");
    place.write("broken.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 3}\n");
    place.write("other.jsonl", "{\"prompt\": \"a\", \"seed\": 1}\n");
    place.write("latin.jsonl", b"{\"prompt\": \"a\"}\n{\"prompt\": \"caf\xe9\"}\n");
    let generate: &[(&[&str], &[&str])] = &[
        (&["--prompt", "a", "--temperature", "0"], &["--temperature 0", "above 0", "--greedy"]),
        (&["--prompt", "a", "--temperature", "-1"], &["--temperature -1", "above 0"]),
        (&["--prompt", "a", "--temperature", "nan"], &["--temperature NaN", "above 0"]),
        (&["--prompt", "a", "--temperature", "inf"], &["--temperature inf", "finite number"]),
        (&["--prompt", "a", "--seed", "-1"], &["-1", "--seed", "whole number from 0"]),
        (&["--prompt", "a", "--max-new-tokens", "-1"], &["-1", "--max-new-tokens", "whole number from 0"]),
        (&["--prompt", "a", "--step", "-1"], &["-1", "--step", "whole number from 0"]),
        (&["--prompts", "array.jsonl"], &["array.jsonl:1: an array", "{\"prompt\": TEXT}"]),
        (&["--prompts", "-"], &["-: empty", "{\"prompt\": TEXT}"]),
        (&["--prompt", "a", "--top-p", "0"], &["--top-p 0", "at most 1"]),
        (&["--prompt", "a", "--top-p", "1.01"], &["--top-p 1.01", "at most 1"]),
        (&["--prompt", "a", "--top-p", "-0.5"], &["--top-p -0.5", "at most 1"]),
        (&["--prompt", "a", "--top-k", "0"], &["--top-k 0", "at least 1"]),
        (&["--prompt", "a", "--top-k", "-3"], &["-3", "--top-k"]),
        (&["--prompt", "a", "--greedy", "--temperature", "1"], &["--greedy", "--temperature"]),
        (&["--prompt", "a", "--prompts", "x"], &["--prompt", "--prompts"]),
        (&[], &["--prompt"]),
        (&["--prompt", "a", "--step", "5"], &["no checkpoint of step 5", "56, 60"]),
        (&["--prompts", "none.jsonl"], &["none.jsonl", "cannot be read"]),
        (&["--prompts", "empty.jsonl"], &["empty.jsonl", "empty", "{\"prompt\": TEXT}"]),
        (&["--prompts", "broken.jsonl"], &["broken.jsonl:2", "{\"prompt\": TEXT}"]),
        (&["--prompts", "other.jsonl"], &["other.jsonl:1", "seed"]),
        (&["--prompts", "latin.jsonl"], &["latin.jsonl:2", "no UTF-8"]),
    ];
    for (args, parts) in generate {
        check(&place, "generate", &[&["generate", &run], *args].concat(), parts, &mut failures);
    }
    check(&place, "generate", &["generate", "out", "--prompt", "a"], &["out", "no run"], &mut failures);
    let long = "rain ".repeat(100);
    let show: &[(&[&str], &[&str])] = &[
        (&["--text", "a", "--kind", "tuned"], &["no tuned lens", "step 60", "tiebreak lens train", "converged"]),
        (&["--text", "a", "--step", "5"], &["no checkpoint of step 5", "56, 60"]),
        (&["--text", ""], &["--text", "no tokens"]),
        (&["--text", &long], &["--text", "reads at most 16", "shorten"]),
        (&["--text", "a", "--width", "3"], &["--width 3", "at least 20"]),
        (&["--text", "a", "--view", "kll"], &["kll", "--view"]),
        (&["--text", "a", "--svg", "none/x.svg"], &["none/x.svg", "no such folder"]),
        (&["--text", "a", "--png", "out"], &["out", "folder"]),
        (&["--text", "a", "--svg", "x", "--png", "out/../x"], &["--svg and --png", "/x"]),
        #[cfg(target_os = "linux")]
        (&["--text", "a", "--svg", "/proc/x.svg"], &["/proc/x.svg: cannot be written"]),
        (&[&bytes, "--text", "a"], &["different tokenizers", "bpe:300", "bytes"]),
        (&[&bytes, &run, "--text", "a"], &["no more were expected"]),
        (&[], &["--text"]),
    ];
    for (args, parts) in show {
        check(&place, "lens show", &[&["lens", "show", &run], *args].concat(), parts, &mut failures);
    }
    #[cfg(unix)]
    for (option, args) in
        [("--prompt", &["generate", &run, "--prompt"][..]), ("--text", &["lens", "show", &run, "--text"])]
    {
        use std::os::unix::ffi::OsStrExt;
        let said = Said::of(place.command(binary()).args(args).arg(std::ffi::OsStr::from_bytes(b"caf\xe9")));
        if let Some(wrong) = problem(&said, &[option, "no UTF-8", "byte 3"]) {
            failures.push(format!("{args:?}: {wrong}; stderr:\n{}", said.stderr));
        }
    }
    report(failures);
}
