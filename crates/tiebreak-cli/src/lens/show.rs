//! `tiebreak lens show`: a lens on a sentence of one's own.

use std::ffi::OsString;
use std::path::PathBuf;

use burn::tensor::{Int, Tensor, TensorData};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tiebreak_data::{Tokenizer, check_writable, write_atomic};
use tiebreak_model::interface::ModeKind;
use tiebreak_probe::ProbedModel;
use tiebreak_probe::lens::{Reading, Recipe, logit_lens, points};
use tiebreak_train::lens::{Amount, StoredLens, load_lens};
use tiebreak_train::{Error, TrainedModel, Vocabulary};

use super::picture::picture;
use super::screen::{Paper, screen};
use super::view::View;
use crate::generate::{unexpressed, unseen, utf8};
use crate::terminal::{self, ColourChoice, NARROWEST, quoted, visible, whole};

/// Which runs, which text, and how it is shown.
#[derive(Args)]
pub struct ShowArgs {
    /// A run's folder, or two: they are shown side by side with one scale of colours.
    #[arg(required = true, num_args = 1..=2)]
    runs: Vec<PathBuf>,
    /// The sentence.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: OsString,
    /// logit reads states as they are, tuned and tuned_paper translate them first (after `tiebreak lens train`).
    #[arg(long, default_value = "logit")]
    kind: Kind,
    /// What the cells hold. Logits are no probabilities before softmax, and the head was not trained to read early layers:
    /// what it makes of them is a reading, not what the layer "thinks".
    #[arg(long, default_value = "top")]
    view: View,
    /// Checkpoint to use [default: the last].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u64>)]
    step: Option<u64>,
    /// Columns [default: the terminal's].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    width: Option<usize>,
    /// Also draw a figure into this SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also draw a figure into this PNG file.
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
    /// Colours on stdout.
    #[arg(long, default_value = "auto")]
    color: ColourChoice,
    /// Print one JSON document, with every view.
    #[arg(long)]
    json: bool,
}

/// How states are read, as in the names of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Kind {
    /// As they are.
    Logit,
    /// Translated, by translators trained until the stopping rule.
    Tuned,
    /// Translated, by the paper's recipe, which reads the last layer through a translator too.
    TunedPaper,
}

/// What a layer says at a token.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The most probable next token.
    pub top: String,
    /// Its id.
    pub top_id: usize,
    /// The same to be seen.
    #[serde(skip)]
    pub shown: String,
    /// Its probability.
    pub p: f64,
    /// Place of the final prediction, from 1.
    pub rank: usize,
    /// KL(final || layer), bits.
    pub kl_bits: f64,
    /// Entropy, bits.
    pub entropy_bits: f64,
    /// Probability of the token that is read.
    pub p_input: f64,
}

/// A lens on a sentence.
#[derive(Clone, Debug, Serialize)]
pub struct Sheet {
    /// How states are read.
    pub kind: Kind,
    /// The run's folder's name, or its path where two have one name.
    pub run: String,
    /// Its checkpoint.
    pub step: u64,
    /// Its head mode.
    pub head_mode: ModeKind,
    /// V.
    pub vocabulary: usize,
    /// The sentence's tokens; bytes that are no character are U+FFFD.
    pub tokens: Vec<String>,
    /// Their ids.
    pub ids: Vec<u32>,
    /// The tokens to be seen.
    #[serde(skip)]
    pub shown: Vec<String>,
    /// How the lens was trained, where there is one that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained: Option<Amount>,
    /// `embed`, `1` .. `L`.
    pub layers: Vec<String>,
    /// By layer, then by token.
    pub cells: Vec<Vec<Cell>>,
}

/// Several of them as one document.
#[derive(Serialize)]
struct Sheets<'a> {
    runs: &'a [Sheet],
}

/// Reads and prints.
pub fn show(args: &ShowArgs) -> Result<(), Error> {
    let text = utf8("--text", &args.text)?;
    if args.width.is_some_and(|width| width < NARROWEST) {
        return Err(Error::Input(format!("--width {}: expected at least {NARROWEST}", args.width.unwrap_or(0))));
    }
    let mut targets = Vec::new();
    for file in args.svg.iter().chain(&args.png) {
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        if parent.is_some_and(|parent| !parent.is_dir()) || file.is_dir() {
            return Err(Error::Input(format!(
                "{}: no such folder, or a folder itself; name a file to write",
                file.display()
            )));
        }
        targets.push(check_writable(file)?);
    }
    if let [svg, png] = &targets[..]
        && svg == png
    {
        return Err(Error::Input(format!("--svg and --png both name {}: give each a file of its own", svg.display())));
    }
    let models = args.runs.iter().map(|run| TrainedModel::look(run, args.step)).collect::<Result<Vec<_>, _>>()?;
    if let [a, b] = &models[..]
        && a.data.tokenizer.hash() != b.data.tokenizer.hash()
    {
        return Err(Error::Input(format!(
            "{} and {} have different tokenizers ({} and {}), so their columns would stand for different tokens: show them \
             one at a time",
            args.runs[0].display(),
            args.runs[1].display(),
            a.config.data.tokenizer,
            b.config.data.tokenizer
        )));
    }
    let data = &models[0].data;
    let ids = data.tokenizer.try_encode(text).map_err(|e| e.at("--text"))?;
    if ids.is_empty() {
        return Err(Error::Input("--text: no tokens; give a sentence".into()));
    }
    for model in &models {
        let context = model.probed().context();
        if ids.len() > context {
            return Err(Error::Input(format!(
                "--text: {} tokens, but {} reads at most {}: shorten the text",
                ids.len(),
                model.folder.0.display(),
                context
            )));
        }
    }
    for note in unexpressed(text, &ids, &data.tokenizer).into_iter().chain(unseen(&ids, data.counts.as_deref())) {
        tracing::warn!("{note}");
    }
    let mut sheets = models.iter().map(|model| Sheet::read(model, &ids, args.kind)).collect::<Result<Vec<_>, _>>()?;
    if let [a, b] = &mut sheets[..]
        && a.run == b.run
    {
        [a.run, b.run] = [0, 1].map(|i| args.runs[i].display().to_string());
    }
    if args.svg.is_some() || args.png.is_some() {
        let figure = picture(&sheets, args.view)?;
        let files = [(&args.svg, figure.svg.as_bytes()), (&args.png, &figure.png)];
        for (file, bytes) in files.iter().filter_map(|(file, bytes)| Some((file.as_ref()?, bytes))) {
            write_atomic(file, bytes)?;
            tracing::info!("wrote {}", file.display());
        }
    }
    match &sheets[..] {
        [sheet] if args.json => crate::print_either(true, sheet, String::new),
        _ if args.json => crate::print_either(true, &Sheets { runs: &sheets }, String::new),
        _ => {
            let width = args.width.unwrap_or_else(terminal::width);
            let paper = Paper { width, colours: args.color.on(), cursor: terminal::moves_cursor() };
            crate::print(&screen(&sheets, args.view, paper))
        }
    }
}

impl Sheet {
    /// Run, head mode and step.
    pub fn title(&self) -> String {
        let mode = serde_json::to_value(self.head_mode).ok();
        let mode = mode.as_ref().and_then(|mode| mode.as_str()).unwrap_or_default();
        format!("{} ({mode}), step {}", self.run, self.step)
    }

    fn read(model: &TrainedModel<Vocabulary>, ids: &[u32], kind: Kind) -> Result<Self, Error> {
        let probed = &model.probed();
        let wide: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
        let ids_bt = Tensor::<2, Int>::from_data(TensorData::new(wide, [1, ids.len()]), &probed.device());
        let stored = match kind {
            Kind::Logit => None,
            Kind::Tuned => Some(tuned(model, Recipe::Converged)?),
            Kind::TunedPaper => Some(tuned(model, Recipe::Paper)?),
        };
        let readings = match &stored {
            None => logit_lens(probed, ids_bt),
            Some(stored) => stored.lens.readings(probed, ids_bt),
        };
        let layers = points(probed.layers());
        let finite = |r: &Reading| r.p.is_finite() && r.kl_nats.is_finite() && r.entropy_nats.is_finite();
        if let Some(bad) = readings.iter().position(|row| !row.iter().all(finite)) {
            return Err(model.folder.no_numbers(model.step, &format!("point {}", layers[bad])));
        }
        let tokenizer = &model.data.tokenizer;
        let name = model.folder.0.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_owned()));
        Ok(Self {
            kind,
            run: name.unwrap_or_else(|| model.folder.0.clone().into()).to_string_lossy().into_owned(),
            step: model.step,
            head_mode: model.config.head.mode,
            vocabulary: tokenizer.vocabulary(),
            tokens: ids.iter().map(|&id| token(tokenizer, id)).collect(),
            ids: ids.to_vec(),
            shown: ids.iter().map(|&id| shown(tokenizer, id)).collect(),
            layers,
            trained: stored.and_then(|stored| stored.trained),
            cells: readings.iter().map(|row| row.iter().map(|r| Cell::new(r, tokenizer)).collect()).collect(),
        })
    }
}

/// The lens that `lens train` left.
fn tuned(model: &TrainedModel<Vocabulary>, recipe: Recipe) -> Result<StoredLens, Error> {
    let path = model.folder.lens(model.step, recipe, None);
    if !path.is_file() {
        let run = quoted(&model.folder.0);
        return Err(Error::Input(format!(
            "{}: no tuned lens was trained at step {1} with the recipe {2}: `tiebreak lens train {run} --step {1} --recipe {2}` \
             trains one",
            model.folder.0.display(),
            model.step,
            recipe.name()
        )));
    }
    load_lens(&path, &model.probed(), recipe)
}

impl Cell {
    fn new(reading: &Reading, tokenizer: &Tokenizer) -> Self {
        let id = reading.top as u32;
        let bits = |nats: f32| f64::from(nats) / std::f64::consts::LN_2;
        Self {
            top: token(tokenizer, id),
            top_id: reading.top,
            shown: shown(tokenizer, id),
            p: reading.p.into(),
            rank: reading.rank,
            kl_bits: bits(reading.kl_nats),
            entropy_bits: bits(reading.entropy_nats),
            p_input: reading.p_input.into(),
        }
    }
}

/// A token as text.
fn token(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned()
}

/// A token to be seen.
fn shown(tokenizer: &Tokenizer, id: u32) -> String {
    match visible(&tokenizer.token_bytes(id)) {
        _ if id == tokenizer.end_of_text() => "<end>".into(),
        text if text.is_empty() => format!("<id {id}>"),
        text => text,
    }
}
