//! `tiebreak lens`.

mod picture;
mod screen;
mod show;
mod view;

pub use show::show;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Subcommand, ValueEnum};
use tiebreak_probe::lens::Recipe;
use tiebreak_train::lens::{LensJob, LensReport, measure_lens, other_corpus, save_lens};
use tiebreak_train::{Error, TrainedModel};

use crate::Json;
use crate::terminal::whole;

#[derive(Subcommand)]
pub enum LensCommand {
    /// Train a tuned lens on a run and read it, and the logit lens, on held-out text, point by point.
    Train {
        /// A run's folder.
        run: PathBuf,
        /// Completed steps of the checkpoint to read [default: the last one kept].
        #[arg(long, allow_negative_numbers = true, value_parser = whole::<u64>)]
        step: Option<u64>,
        /// Another corpus, in the tokens of the run's tokenizer [default: the run's].
        #[arg(long)]
        corpus: Option<String>,
        /// How the translators are trained [default: lens.recipe of the run].
        #[arg(long)]
        recipe: Option<RecipeName>,
        /// Training tokens, 0: until the stopping rule [default: lens.train_tokens of the run].
        #[arg(long, allow_negative_numbers = true, value_parser = whole::<usize>)]
        train_tokens: Option<usize>,
        /// Held-out tokens at most, 0: all [default: lens.eval_tokens of the run].
        #[arg(long, allow_negative_numbers = true, value_parser = whole::<usize>)]
        eval_tokens: Option<usize>,
        #[command(flatten)]
        json: Json,
    },
    /// What every layer says of each token of a sentence, in one run or two side by side.
    Show(show::ShowArgs),
}

/// Recipes on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub enum RecipeName {
    /// Adam until the stopping rule, each point with its own translator.
    Converged,
    /// The paper's: few steps of SGD under one clip, read with the neighbour's translator.
    Paper,
}

/// What `lens train` says beside the run.
pub struct Choice {
    pub step: Option<u64>,
    pub corpus: Option<String>,
    pub recipe: Option<RecipeName>,
    pub train_tokens: Option<usize>,
    pub eval_tokens: Option<usize>,
}

/// Prints what was read.
pub type Tell<'a> = dyn Fn(&LensReport) -> Result<(), Error> + Sync + 'a;

/// Trains and reads a lens, on all cores; `false`, and nothing written, if `stop` was set before the end.
pub fn train(run: &Path, choice: &Choice, tell: &Tell, stop: &AtomicBool) -> Result<bool, Error> {
    // Among the pool's threads: from outside, every parallel loop would wait for one of them to wake.
    rayon::scope(|_| train_here(run, choice, tell, stop))
}

fn train_here(run: &Path, choice: &Choice, tell: &Tell, stop: &AtomicBool) -> Result<bool, Error> {
    let model = TrainedModel::load(run, choice.step)?;
    let mut config = model.config.clone();
    if let Some(recipe) = choice.recipe {
        config.lens.recipe = match recipe {
            RecipeName::Converged => Recipe::Converged,
            RecipeName::Paper => Recipe::Paper,
        };
    }
    if let Some(tokens) = choice.train_tokens {
        config.lens.train_tokens = tokens;
        config.resolve().map_err(|e| e.at("--train-tokens"))?;
    }
    if let Some(tokens) = choice.eval_tokens {
        config.lens.eval_tokens = tokens;
        config.resolve().map_err(|e| e.at("--eval-tokens"))?;
    }
    config.resolve()?;
    let other = choice.corpus.as_deref().map(|corpus| other_corpus(&model, corpus)).transpose()?;
    let job = LensJob {
        model: &model.probed(),
        folder: &model.folder,
        step: model.step,
        data: other.as_ref().unwrap_or(&model.data),
        corpus: choice.corpus.as_deref().filter(|corpus| *corpus != model.config.data.corpus),
        config: &config.lens,
        go_on: &|| !stop.load(Ordering::Relaxed),
    };
    let Some((lens, report)) = measure_lens(&job)? else { return Ok(false) };
    // Neither a folder that cannot be written to nor a reader that is gone loses the result.
    let told = tell(&report);
    save_lens(&job, &lens, &report)?;
    told.map(|()| true)
}
