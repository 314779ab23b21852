//! `tiebreak lens`.

mod picture;
mod screen;
mod show;
mod view;

use clap::Subcommand;
use tiebreak_train::Error;

/// What can be done with lenses.
#[derive(Subcommand)]
pub enum LensCommand {
    /// What every layer says of each token of a sentence, in one run or two side by side.
    Show(show::ShowArgs),
}

/// Runs the command.
pub fn lens(command: &LensCommand) -> Result<(), Error> {
    match command {
        LensCommand::Show(args) => show::show(args),
    }
}
