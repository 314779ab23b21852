//! `tiebreak inspect`.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use tiebreak_model::interface::ModeKind;
use tiebreak_model::{MemoryLine, ParameterCount};
use tiebreak_train::config::{self, RunConfig};
use tiebreak_train::{Error, Records};

/// What a configuration builds.
#[derive(Serialize)]
pub struct Report {
    head_mode: ModeKind,
    describes: String,
    vocabulary: usize,
    d_model: usize,
    parameters: ParameterCount,
    tables: Tables,
    /// Training, 2 per multiply-add, matrix products only, the head's product in every mode.
    flops_per_token: usize,
    memory: Vec<MemoryLine>,
}

/// What the token interface costs.
#[derive(Serialize)]
struct Tables {
    /// Parameters of every table and map of the head mode.
    parameters: usize,
    /// Of all parameters.
    share: f64,
    /// Two tables of their own: 2 V d.
    two_tables: usize,
    /// What the mode saves against them; below 0, what it costs.
    saved: i64,
}

/// Reports on a run's folder or a run configuration.
pub fn inspect(target: &Path, sets: &[String]) -> Result<Report, Error> {
    // A run knows its vocabulary; its tokenizer's file may have changed or gone since.
    let run = if target.is_dir() { Some(Records::open(target)?) } else { None };
    let path = run.as_ref().map_or_else(|| target.to_path_buf(), |run| run.folder.config());
    if config::read_table(&path)?.contains_key("sweep") {
        return Err(Error::Input(format!(
            "{}: a sweep; inspect takes a run's folder or a run's configuration (`tiebreak config show` lists a sweep's cells)",
            path.display()
        )));
    }
    let config = config::load(&path, sets)?.config;
    let vocabulary = match run {
        Some(run) => run.data.vocabulary,
        None => config.data.vocabulary()?,
    };
    config.validate_head_for(vocabulary).map_err(|e| e.at(path.display()))?;
    Ok(report(&config, vocabulary))
}

fn report(config: &RunConfig, vocabulary: usize) -> Report {
    let (model, context) = (&config.model, config.data.context_length);
    let parameters = model.count(&config.head, vocabulary, context);
    let (interface, two_tables) = (parameters.embedding + parameters.head, 2 * vocabulary * model.d_model);
    let tables = Tables {
        parameters: interface,
        share: interface as f64 / parameters.unique as f64,
        two_tables,
        saved: two_tables as i64 - interface as i64,
    };
    Report {
        head_mode: config.head.mode,
        describes: config.head.describe(vocabulary, model.d_model),
        vocabulary,
        d_model: model.d_model,
        parameters,
        tables,
        flops_per_token: config.flops_per_token(vocabulary),
        memory: model.memory(&config.head, vocabulary, context, config.train.micro_batch_size * context),
    }
}

impl Report {
    /// For people.
    pub fn to_text(&self) -> String {
        let ParameterCount { unique, embedding, head, trunk } = self.parameters;
        let (v, d, tables) = (self.vocabulary, self.d_model, &self.tables);
        let saves = match tables.saved {
            0 => "this mode saves nothing".into(),
            saved if saved > 0 => format!("this mode saves {saved}"),
            cost => format!("this mode costs {} more", -cost),
        };
        let mut text = format!(
            "{}\nlogits      h [1, {d}] times U^T [{d}, {v}] gives logits [1, {v}]\n\
             parameters  {unique} (embedding {embedding}, head {head}, trunk {trunk})\n\
             tables      {} of them, {:.1} %; two tables [{v}, {d}] have {}, so {saves}\n\
             FLOPs       {} per token of training (2 per multiply-add, matrix products, backward = 2 forward)\n",
            self.describes,
            tables.parameters,
            100.0 * tables.share,
            tables.two_tables,
            self.flops_per_token
        );
        for MemoryLine { name, bytes } in &self.memory {
            let _ = writeln!(text, "memory      {:>8.1} MiB  {name}", *bytes as f64 / 1048576.0);
        }
        if head == 0 {
            text += "a shared matrix counts once, under embedding\n";
        }
        text
    }
}
