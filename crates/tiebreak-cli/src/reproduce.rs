//! `tiebreak reproduce`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tiebreak_report::{Ended, Options, Scale};
use tiebreak_sweep::LaunchOptions;
use tiebreak_train::Error;

/// The paper's experiments: their runs, figures and a verdict per claim.
#[derive(Args)]
pub struct Reproduce {
    /// quick: minutes, two seeds, judges nothing; full: hours.
    #[arg(long, default_value = "quick")]
    scale: ScaleName,
    /// An experiment's name (its folder's); may be repeated or joined with commas [default: all].
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Device of all runs [default: as the experiments' files say, which is auto].
    #[arg(long)]
    device: Option<String>,
    /// Folder of runs and results [default: runs/reproduce-SCALE].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Runs at a time [default: what suits the cores].
    #[arg(long, allow_negative_numbers = true, value_parser = crate::terminal::whole::<usize>)]
    jobs: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ScaleName {
    /// Two seeds of small models.
    Quick,
    /// What the committed results come from.
    Full,
}

impl Reproduce {
    /// Runs it.
    pub fn run(self, launch: LaunchOptions) -> Result<Ended, Error> {
        let scale = match self.scale {
            ScaleName::Quick => Scale::Quick,
            ScaleName::Full => Scale::Full,
        };
        let out = self.out.unwrap_or_else(|| PathBuf::from(format!("runs/reproduce-{}", scale.name())));
        let launch = LaunchOptions { jobs: self.jobs, ..launch };
        tiebreak_report::reproduce(&Options { scale, only: self.only, device: self.device, out, launch })
    }
}
