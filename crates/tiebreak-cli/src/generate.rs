//! `tiebreak generate`.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anstyle::Style;
use clap::Args;
use serde::{Deserialize, Serialize};
use tiebreak_data::{TextStream, Tokenizer};
use tiebreak_model::generation::{Continuation, Decoder, Finish, Policy, Sampler, window_start};
use tiebreak_model::rng::Stream;
use tiebreak_train::{Error, TrainedModel};

use crate::terminal::{ColourChoice, harmless, styled, whole};

/// What to continue, and how.
#[derive(Args)]
pub struct GenerateArgs {
    /// A run's folder.
    run: PathBuf,
    /// Text to continue; "" starts a new text.
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        required_unless_present = "prompts",
        conflicts_with = "prompts"
    )]
    prompt: Option<OsString>,
    /// File with one JSON object {"prompt": TEXT} per line, - for stdin; prints one JSON line for each.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Most tokens to add; the end of the text may come before.
    #[arg(long, value_name = "N", default_value_t = 100, allow_negative_numbers = true, value_parser = whole::<usize>)]
    max_new_tokens: usize,
    /// Always the most probable token (of equal ones the lowest id), instead of chance.
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p"])]
    greedy: bool,
    /// Divides the logits: below 1 sharpens, above 1 flattens [default: 1].
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Only among the K most probable tokens.
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<usize>)]
    top_k: Option<usize>,
    /// Of these, only the smallest set that holds at least P of their probability.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Seed of the random choices; prompt number i of a file has a stream of its own.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = whole::<u64>)]
    seed: u64,
    /// Checkpoint to use [default: the last].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u64>)]
    step: Option<u64>,
    /// Colours on stdout.
    #[arg(long, default_value = "auto")]
    color: ColourChoice,
    /// Print one JSON document with ids and log-probabilities.
    #[arg(long)]
    json: bool,
}

/// A line of `--prompts`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: String,
}

/// A prompt and its ids.
struct Prompt {
    text: String,
    /// What the model reads; end-of-text alone where the text has no tokens.
    ids: Vec<u32>,
    /// What the user should know.
    notes: Vec<String>,
}

/// One continuation.
#[derive(Serialize)]
struct Generated {
    prompt: String,
    /// What follows the prompt.
    text: String,
    finish: Finish,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    /// ln of each id's probability under the model, before temperature and cuts: nats.
    log_probabilities: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Generates and prints.
pub fn generate(args: &GenerateArgs) -> Result<(), Error> {
    let policy = args.policy()?;
    let texts = match (&args.prompts, &args.prompt) {
        (Some(file), _) => read_prompts(file)?,
        (None, prompt) => vec![utf8("--prompt", prompt.as_deref().unwrap_or_default())?.to_owned()],
    };
    let model = TrainedModel::look(&args.run, args.step)?;
    let data = &model.data;
    let mut decoder = model.decoder();
    let context = decoder.context();
    let prompts = texts.into_iter().enumerate().map(|(number, text)| {
        let place = args.prompts.as_ref().map_or("--prompt".into(), |f| format!("{}:{}", f.display(), number + 1));
        Prompt::new(text, &data.tokenizer, data.counts.as_deref(), context).map_err(|e| e.at(place))
    });
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;

    let (mut tokens, mut time, mut ended, texts) = (0, Duration::ZERO, 0, prompts.len());
    for (number, prompt) in prompts.into_iter().enumerate() {
        for note in &prompt.notes {
            match &args.prompts {
                Some(_) => tracing::warn!("prompt {}: {note}", number + 1),
                None => tracing::warn!("{note}"),
            }
        }
        let sampler = Sampler::new(policy, Stream::new(args.seed, &format!("generate/{number}")));
        let mut screen = Screen::new(args);
        screen.show(&prompt.text, Style::new().bold())?;
        let started = Instant::now();
        let run = || continue_prompt(prompt, &mut decoder, sampler, args.max_new_tokens, &data.tokenizer, &mut screen);
        let generated = run()?.ok_or_else(|| model.folder.no_numbers(model.step, "logits"))?;
        time += started.elapsed();
        tokens += generated.ids.len();
        ended += usize::from(generated.finish == Finish::EndOfText);
        if screen.live {
            screen.show("\n", Style::new())?;
        } else if args.prompts.is_some() {
            let line = serde_json::to_string(&generated).map_err(|e| Error::Failed(format!("JSON: {e}")))?;
            crate::print(&line)?;
        } else {
            crate::print_either(true, &generated, String::new)?;
        }
        if screen.gone {
            return Ok(());
        }
    }
    let seconds = time.as_secs_f64();
    tracing::info!(
        "{tokens} tokens in {seconds:.2} s, {:.0} tokens per second; the model ended {ended} of {texts} texts",
        tokens as f64 / seconds.max(1e-9)
    );
    Ok(())
}

impl GenerateArgs {
    fn policy(&self) -> Result<Policy, Error> {
        if self.greedy {
            return Ok(Policy::Greedy);
        }
        let (temperature, top_p) = (self.temperature.unwrap_or(1.0), self.top_p.unwrap_or(1.0));
        let refuse = |text: String| Err(Error::Input(text));
        if !(temperature > 0.0 && temperature.is_finite()) {
            return refuse(format!(
                "--temperature {temperature}: expected a finite number above 0; --greedy always takes the most probable token"
            ));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return refuse(format!("--top-p {top_p}: expected a number above 0, at most 1 (1 keeps every token)"));
        }
        if self.top_k == Some(0) {
            return refuse("--top-k 0: expected at least 1; leave it out to keep every token".into());
        }
        Ok(Policy::Random { temperature, top_k: self.top_k, top_p })
    }
}

/// An argument as text.
pub fn utf8<'a>(name: &str, text: &'a OsStr) -> Result<&'a str, Error> {
    match std::str::from_utf8(text.as_encoded_bytes()) {
        Ok(_) => text.to_str().ok_or_else(|| Error::Input(format!("{name}: the text is no Unicode"))),
        Err(e) => Err(Error::Input(format!(
            "{name}: the text is no UTF-8 (wrong from byte {} on); convert it, for instance with iconv",
            e.valid_up_to()
        ))),
    }
}

fn read_prompts(file: &Path) -> Result<Vec<String>, Error> {
    let name = file.display();
    let mut bytes = Vec::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().lock().read_to_end(&mut bytes),
        false => std::fs::File::open(file).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(|e| Error::Input(format!("{name}: cannot be read: {e}")))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let line = 1 + e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
        Error::Input(format!("{name}:{line}: no UTF-8"))
    })?;
    let line = |(number, line): (usize, &str)| {
        let refuse = |what: &dyn std::fmt::Display| {
            let place = number + 1;
            Error::Input(format!("{name}:{place}: {what}; expected one JSON object {{\"prompt\": TEXT}} per line"))
        };
        // An array of one text would pass for the object's fields in order.
        if line.trim_start().starts_with('[') {
            return Err(refuse(&"an array"));
        }
        let parsed: Result<Line, _> = serde_json::from_str(line);
        parsed.map(|line| line.prompt).map_err(|e| refuse(&e))
    };
    let prompts = text.lines().enumerate().map(line).collect::<Result<Vec<_>, _>>()?;
    if prompts.is_empty() {
        return Err(Error::Input(format!("{name}: empty; expected one JSON object {{\"prompt\": TEXT}} per line")));
    }
    Ok(prompts)
}

impl Prompt {
    fn new(text: String, tokenizer: &Tokenizer, counts: Option<&[u64]>, context: usize) -> Result<Self, Error> {
        let mut ids = tokenizer.try_encode(&text)?;
        let mut notes = Vec::new();
        if let Some(note) = unexpressed(&text, &ids, tokenizer) {
            notes.push(note);
        }
        if let Some(note) = unseen(&ids, counts) {
            notes.push(note);
        }
        if ids.is_empty() {
            let what = if text.is_empty() { "the prompt is empty" } else { "the prompt has no tokens" };
            notes.push(format!("{what}: starting a new text, after the token that ends one"));
            ids.push(tokenizer.end_of_text());
        }
        let hidden = window_start(ids.len(), context);
        if hidden > 0 {
            notes.push(format!(
                "the prompt has {} tokens, the model sees {context} at most: it does not see the first {hidden}",
                ids.len()
            ));
        }
        Ok(Self { text, ids, notes })
    }
}

/// Says so if the ids stand for another text.
pub fn unexpressed(text: &str, ids: &[u32], tokenizer: &Tokenizer) -> Option<String> {
    let read = tokenizer.decode(ids);
    (read.trim() != text.trim())
        .then(|| format!("the tokenizer cannot express all of the text: the model reads {:?}", harmless(&read)))
}

/// Says so if the model was never trained on some of the ids; `counts` are those of the training text, where it is known.
pub fn unseen(ids: &[u32], counts: Option<&[u64]>) -> Option<String> {
    let counts = counts?;
    let unseen = ids.iter().filter(|&&id| counts[id as usize] == 0).count();
    (unseen > 0).then(|| {
        format!(
            "{unseen} of {} tokens never occur in the training text: the model has learnt nothing of what they stand for",
            ids.len()
        )
    })
}

/// The continuation; `None` where the model gives no finite numbers.
fn continue_prompt(
    prompt: Prompt,
    decoder: &mut dyn Decoder,
    sampler: Sampler,
    most: usize,
    tokenizer: &Tokenizer,
    screen: &mut Screen,
) -> Result<Option<Generated>, Error> {
    let mut stream = TextStream::after(tokenizer, &prompt.ids);
    let (mut text, mut ids, mut log_probabilities) = (String::new(), Vec::new(), Vec::new());
    let mut continuation = Continuation::new(decoder, sampler, &prompt.ids, most, Some(tokenizer.end_of_text()));
    for choice in continuation.by_ref() {
        let Ok(choice) = choice else { return Ok(None) };
        ids.push(choice.id);
        log_probabilities.push(choice.log_probability);
        let new = stream.push(choice.id);
        screen.show(&new, Style::new())?;
        text += &new;
        if screen.gone {
            break;
        }
    }
    let finish = continuation.finish().unwrap_or(Finish::Length);
    let rest = stream.finish();
    screen.show(&rest, Style::new())?;
    text += &rest;
    let Prompt { text: prompt, ids: prompt_ids, notes } = prompt;
    Ok(Some(Generated { prompt, text, finish, prompt_ids, ids, log_probabilities, notes }))
}

/// stdout while text comes, if text is what it shows.
struct Screen {
    /// Text is shown as it comes.
    live: bool,
    colours: bool,
    /// stdout is a terminal, which control characters would steer.
    terminal: bool,
    /// The reader went away.
    gone: bool,
}

impl Screen {
    fn new(args: &GenerateArgs) -> Self {
        let live = !args.json && args.prompts.is_none();
        Self { live, colours: args.color.on(), terminal: std::io::stdout().is_terminal(), gone: false }
    }

    fn show(&mut self, text: &str, style: Style) -> Result<(), Error> {
        if !self.live || self.gone || text.is_empty() {
            return Ok(());
        }
        let text = if self.terminal { harmless(text) } else { text.into() };
        let text = styled(&text, style, self.colours && style != Style::new());
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => self.gone = true,
            Err(e) => return Err(Error::Failed(format!("stdout: {e}"))),
            Ok(()) => {}
        }
        Ok(())
    }
}
