//! Lenses of runs: their text, their files, their tags.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::{Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use tiebreak_data::{
    Error, Prepared, Sampler, Shard, check_writable, evaluation_windows, prepare, sha256_hex, window_count,
    write_atomic,
};
use tiebreak_probe::ProbedModel;
use tiebreak_probe::lens::{
    CurvePoint, Ended, HeldOut, Recipe, Training, Translator, TunedLens, held_out, points, train,
};

use crate::TrainedModel;
use crate::config::{LensConfig, plain_name};
use crate::folder::RunFolder;
use crate::run::read;
use crate::tensors;
use crate::track::Tag;

/// Tokens of the held-in set, as near as whole windows come and at most a tenth of the training split.
const CHECK_TOKENS: usize = 8192;

/// Key of the safetensors metadata.
const METADATA: &str = "lens";

/// A model at a step, the text that its lens is trained and read on, and where its files go.
pub struct LensJob<'a> {
    /// The model.
    pub model: &'a dyn ProbedModel,
    /// Its run's folder.
    pub folder: &'a RunFolder,
    /// Its completed optimiser steps.
    pub step: u64,
    /// The text.
    pub data: &'a Prepared,
    /// Its name, where it is not the run's own.
    pub corpus: Option<&'a str>,
    /// Recipe and amounts.
    pub config: &'a LensConfig,
    /// Asked before every step; `false` leaves nothing behind.
    pub go_on: &'a dyn Fn() -> bool,
}

/// `probes/lens-step-<n>-<recipe>.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LensReport {
    /// How the tuned lens was trained.
    pub recipe: Recipe,
    /// Of the model.
    pub step: u64,
    /// The corpus used.
    pub corpus: String,
    /// Its content, SHA-256.
    pub corpus_hash: String,
    /// Of the parameters of the model's final norm and head, and of its soft cap: [`fingerprint`].
    pub fingerprint: String,
    /// What the translators were trained on: the training split.
    pub training: TrainingReport,
    /// What was read: the validation split.
    pub held_out: HeldOut,
    /// Held-in KL over the training.
    pub curve: Vec<CurvePoint>,
}

/// The amounts of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingReport {
    /// Tokens trained on, and behind the predictors.
    pub tokens: u64,
    /// Optimiser steps.
    pub steps: u64,
    /// Tokens of the held-in set, which were not trained on.
    pub check_tokens: usize,
    /// Why it ended.
    pub ended: Ended,
}

/// Metadata of a lens file.
#[derive(Serialize, Deserialize)]
struct Metadata {
    fingerprint: String,
    recipe: Recipe,
    /// How it was trained; absent from lenses of earlier versions.
    #[serde(default)]
    trained: Option<Amount>,
}

/// How long a lens was trained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Amount {
    /// Tokens trained on.
    pub tokens: u64,
    /// Why the training ended.
    pub ended: Ended,
}

impl Amount {
    /// In words.
    pub fn describe(self) -> String {
        let why = match self.ended {
            Ended::Settled => "until the stopping rule",
            Ended::Limit => "the limit, not settled",
            _ => "as many as asked for",
        };
        format!("{} tokens ({why})", self.tokens)
    }
}

/// A lens that was read from its file.
#[derive(Debug)]
pub struct StoredLens {
    /// The lens.
    pub lens: TunedLens,
    /// How it was trained, where the file says so.
    pub trained: Option<Amount>,
}

impl RunFolder {
    /// The lens of `step`; of another corpus than the run's where one is named.
    pub fn lens(&self, step: u64, recipe: Recipe, corpus: Option<&str>) -> PathBuf {
        self.0.join("lens").join(format!("{}.safetensors", lens_name(step, recipe, corpus)))
    }

    /// What was read through it.
    pub fn lens_report(&self, step: u64, recipe: Recipe, corpus: Option<&str>) -> PathBuf {
        self.0.join("probes").join(format!("lens-{}.json", lens_name(step, recipe, corpus)))
    }
}

fn lens_name(step: u64, recipe: Recipe, corpus: Option<&str>) -> String {
    let corpus = corpus.map(|corpus| format!("-{}", plain_name(corpus))).unwrap_or_default();
    format!("step-{step}-{}{corpus}", recipe.name())
}

/// SHA-256 (hex) of what turns states into distributions: the final norm's parameters, those of the head, and the soft cap.
pub fn fingerprint(model: &dyn ProbedModel) -> String {
    let norm = model.norm_parameters();
    let mut bytes = format!("norm {} softcap {:?}\n", norm.len(), model.head().map.softcap).into_bytes();
    for tensor in norm.iter().chain(&model.head_parameters()) {
        bytes.extend(format!("{:?}\n", tensor.dims()).into_bytes());
        bytes.extend(tensor.to_data().iter::<f32>().flat_map(f32::to_le_bytes));
    }
    sha256_hex(&bytes)
}

/// [`measure_lens`], then [`save_lens`].
///
/// # Errors
/// As both.
pub fn train_lens(job: &LensJob) -> Result<Option<LensReport>, Error> {
    let Some((lens, report)) = measure_lens(job)? else { return Ok(None) };
    save_lens(job, &lens, &report)?;
    Ok(Some(report))
}

/// Trains a tuned lens on the training split and reads both lenses on the validation split. `None` if it was told to stop.
///
/// # Errors
/// [`Error::Input`] for a model whose states are no finite numbers and for files that could not be written afterwards;
/// [`Error::Failed`] for a training that ends in no finite number.
pub fn measure_lens(job: &LensJob) -> Result<Option<(TunedLens, LensReport)>, Error> {
    for path in job.files() {
        check_writable(&path)?;
    }
    let (model, data, config) = (job.model, job.data, job.config);
    let (context, device) = (model.context(), model.device());
    let windows = Windows::new(&data.train, context);
    let ids = |shard: &Shard, windows: &[usize]| {
        let batch = read(shard, windows, context);
        let tensor =
            |ids: Vec<i32>| Tensor::<2, Int>::from_data(TensorData::new(ids, [windows.len(), context]), &device);
        [tensor(batch.inputs), tensor(batch.targets)]
    };
    let per_step = (config.recipe.step_tokens() / context).max(1);
    // Arms and seeds of one corpus and tokenizer see the same tokens in the same order.
    let mut sampler = Sampler::named("lens_order", 0, windows.train.len());
    let check: Vec<Tensor<2, Int>> = windows
        .check
        .chunks(per_step)
        .map(|w| {
            let [i, _] = ids(&data.train, w);
            i
        })
        .collect();
    let started = Instant::now();
    let trained = train(
        model,
        Training {
            recipe: config.recipe,
            tokens: config.train_tokens as u64,
            step_tokens: (per_step * context) as u64,
            batch: &mut |step| {
                let windows: Vec<usize> = sampler.batch(step, per_step).iter().map(|i| windows.train[*i]).collect();
                let [inputs, _] = ids(&data.train, &windows);
                inputs
            },
            check: &check,
            go_on: job.go_on,
            report: &mut |point| log(point, started),
        },
    );
    let tokens = trained.baselines.tokens;
    match trained.ended {
        Ended::Interrupted => return Ok(None),
        Ended::NotFinite => return Err(not_finite(job, &trained.curve)),
        Ended::Limit => {
            tracing::warn!("the lens has not settled after {tokens} tokens; give lens.train_tokens to go on")
        }
        Ended::Settled | Ended::Tokens => {}
    }
    let predictors = trained.baselines.predictors(&device);
    let windows_read = evaluation_windows(data.validation.len(), context, config.eval_tokens);
    let batches = windows_read.chunks(per_step).map(|w| ids(&data.validation, w));
    let Some(held_out) = held_out(model, &trained.lens, &predictors, batches, job.go_on) else { return Ok(None) };
    let fingerprint = fingerprint(model);
    let report = LensReport {
        recipe: config.recipe,
        step: job.step,
        corpus: data.info.corpus.clone(),
        corpus_hash: data.info.corpus_hash.clone(),
        fingerprint,
        training: TrainingReport {
            tokens,
            steps: trained.steps,
            check_tokens: windows.check.len() * context,
            ended: trained.ended,
        },
        held_out,
        curve: trained.curve,
    };
    tracing::info!("lens trained and read in {:.1} s", started.elapsed().as_secs_f64());
    Ok(Some((trained.lens, report)))
}

impl LensJob<'_> {
    /// The lens and what was read through it.
    fn files(&self) -> [PathBuf; 2] {
        let recipe = self.config.recipe;
        [self.folder.lens(self.step, recipe, self.corpus), self.folder.lens_report(self.step, recipe, self.corpus)]
    }
}

fn log(point: &CurvePoint, started: Instant) {
    let kl = point.kl_bits.iter().map(|kl| format!("{kl:.3}")).collect::<Vec<_>>().join(" ");
    let CurvePoint { tokens, rate, .. } = point;
    let seconds = started.elapsed().as_secs_f64();
    tracing::info!("lens: {tokens} tokens, held-in KL {kl} bits, rate {rate:.4}, {seconds:.1} s");
}

fn not_finite(job: &LensJob, curve: &[CurvePoint]) -> Error {
    let names = points(job.model.layers());
    let last = curve.last();
    let bad = last.and_then(|last| last.kl_bits.iter().position(|kl| !kl.is_finite())).unwrap_or(0);
    let run = job.folder.0.display();
    match last {
        Some(last) if last.tokens > 0 => Error::Failed(format!(
            "{run}: the lens of point {} became no finite number within {} tokens; the model's states are too large for it",
            names[bad], last.tokens
        )),
        _ => job.folder.no_numbers(job.step, &format!("point {}", names[bad])),
    }
}

/// Which windows of the training split are trained on, and which are the held-in set.
struct Windows {
    train: Vec<usize>,
    check: Vec<usize>,
}

impl Windows {
    fn new(shard: &Shard, context: usize) -> Self {
        let all = window_count(shard.len(), context);
        let wanted = (CHECK_TOKENS / context).min(all / 10).max(1);
        let check = evaluation_windows(shard.len(), context, wanted * context);
        let train: Vec<usize> = (0..all).filter(|window| check.binary_search(window).is_err()).collect();
        // A split of one window has nothing to hold in.
        Self { train: if train.is_empty() { check.clone() } else { train }, check }
    }
}

fn json_failed(e: serde_json::Error) -> Error {
    Error::Failed(format!("lens: {e}"))
}

/// A lens's file: `<point>/A` `[d, d]` and `<point>/b` `[1, d]`, with h' = h + A h + b.
fn lens_bytes(lens: &TunedLens, fingerprint: String, trained: Option<Amount>) -> Result<Vec<u8>, Error> {
    let names = points(lens.translators.len());
    let named = names.iter().zip(&lens.translators);
    let tensors: Vec<(String, Tensor<2>)> = named
        .flat_map(|(point, t)| {
            let a_dd = t.transposed_dd.clone().transpose();
            [(format!("{point}/A"), a_dd), (format!("{point}/b"), t.offset_1d.clone())]
        })
        .collect();
    let metadata = Metadata { fingerprint, recipe: lens.recipe, trained };
    let metadata = serde_json::to_string(&metadata).map_err(json_failed)?;
    tensors::to_bytes(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)), (METADATA, metadata))
}

/// Writes both files. A lens that had settled and gives way to one that has not is told of.
///
/// # Errors
/// [`Error::Failed`] for files that cannot be written.
pub fn save_lens(job: &LensJob, lens: &TunedLens, report: &LensReport) -> Result<(), Error> {
    let files = job.files();
    let new = Amount { tokens: report.training.tokens, ended: report.training.ended };
    if let Some(old) = load_lens(&files[0], job.model, lens.recipe).ok().and_then(|stored| stored.trained)
        && old.ended == Ended::Settled
        && new.ended != Ended::Settled
    {
        tracing::warn!(
            "{}: a lens trained on {} gives way to one trained on {}",
            files[0].display(),
            old.describe(),
            new.describe()
        );
    }
    let lens = lens_bytes(lens, report.fingerprint.clone(), Some(new))?;
    let report = serde_json::to_vec_pretty(report).map_err(json_failed)?;
    // The report last: where it is, the lens is.
    for (path, bytes) in files.into_iter().zip([lens, report]) {
        let folder = path.parent().unwrap_or(&job.folder.0);
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::Failed(format!("{}: cannot be made: {e}", folder.display())))?;
        write_atomic(&path, &bytes)?;
    }
    Ok(())
}

/// Reads the lens of `recipe` in the file `path` for `model`.
///
/// # Errors
/// [`Error::Input`] for a file that is missing, no lens, another model's, or of another recipe.
pub fn load_lens(path: &Path, model: &dyn ProbedModel, recipe: Recipe) -> Result<StoredLens, Error> {
    let name = path.display();
    let refuse = |what: String| Error::Input(format!("{name}: {what}; train it again with `tiebreak lens train`"));
    let bytes = match std::fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Input(format!("{name}: no such lens; train it with `tiebreak lens train`")));
        }
        other => other.map_err(|e| refuse(format!("cannot be read: {e}")))?,
    };
    let device = model.device();
    let (mut stored, metadata) = tensors::from_bytes(&bytes, &device).map_err(&refuse)?;
    let metadata = metadata.get(METADATA).ok_or_else(|| refuse("no lens (it lacks the metadata of one)".into()))?;
    let metadata: Metadata = serde_json::from_str(metadata).map_err(|e| refuse(format!("no lens: {e}")))?;
    let (expected, [_, d]) = (fingerprint(model), model.head().output_vd.dims());
    if metadata.fingerprint != expected {
        return Err(refuse(format!(
            "the lens of another model: it was trained for the final norm and output table {:.12}, this model has {expected:.12}",
            metadata.fingerprint
        )));
    }
    if metadata.recipe != recipe {
        return Err(refuse(format!("of the recipe {}, expected {}", metadata.recipe.name(), recipe.name())));
    }
    let mut take = |name: String, shape: [usize; 2]| match stored.remove(&name) {
        Some(tensor) if tensor.dims() == shape => Ok(tensor),
        Some(tensor) => Err(refuse(format!("{name} has shape {:?}, expected {shape:?}", tensor.dims()))),
        None => Err(refuse(format!("{name} is missing"))),
    };
    let names = points(model.layers());
    let translators = names[..model.layers()].iter().map(|point| {
        let a_dd = take(format!("{point}/A"), [d, d])?;
        let offset_1d = take(format!("{point}/b"), [1, d])?;
        Ok(Translator::new(a_dd, offset_1d))
    });
    let translators = translators.collect::<Result<Vec<_>, Error>>()?;
    match stored.keys().next() {
        None => Ok(StoredLens { lens: TunedLens { recipe, translators }, trained: metadata.trained }),
        Some(extra) => Err(refuse(format!("{extra} is no part of this model's lens"))),
    }
}

/// The text of another corpus, in the tokens of the model's own tokenizer.
///
/// # Errors
/// As [`prepare`].
pub fn other_corpus(model: &TrainedModel, corpus: &str) -> Result<Prepared, Error> {
    let mut config = model.config.data.clone();
    config.corpus = corpus.into();
    config.fallback = String::new();
    // A tokenizer that is named by its training would be trained again, on the other text.
    let file = tempfile::Builder::new().prefix("tokenizer-").suffix(".json").tempfile();
    let file = file.map_err(|e| Error::Failed(format!("a temporary file cannot be made: {e}")))?;
    if let Some(json) = model.data.tokenizer.json() {
        write_atomic(file.path(), json)?;
        config.tokenizer = file.path().display().to_string();
    }
    let data = prepare(&config).map_err(|e| e.at("--corpus"))?;
    if data.info.tokenizer_hash != model.data.info.tokenizer_hash {
        return Err(Error::Failed(format!("--corpus {corpus}: its tokens are not those of the run's tokenizer")));
    }
    Ok(data)
}

/// The lens/ tags of a step: of the lens that has just been read, and of those of other recipes that lie beside it and are of
/// the same model, for a log that was cut back has lost theirs.
pub fn all_scalars(folder: &RunFolder, read: &LensReport) -> Vec<(Tag, f64)> {
    let mut tags = read.scalars();
    for recipe in [Recipe::Converged, Recipe::Paper].into_iter().filter(|recipe| *recipe != read.recipe) {
        let path = folder.lens_report(read.step, recipe, None);
        let Ok(bytes) = std::fs::read(&path) else { continue };
        match serde_json::from_slice::<LensReport>(&bytes) {
            Ok(other) if (other.step, &other.fingerprint) == (read.step, &read.fingerprint) => {
                // Both have read the logit lens.
                let prefix = format!("lens/{}/", recipe.tag());
                tags.extend(other.scalars().into_iter().filter(|(tag, _)| tag.starts_with(&prefix)));
            }
            Ok(_) => tracing::warn!("{}: of another model, so it is not logged", path.display()),
            Err(e) => tracing::warn!("{}: {e}: no report of a lens, so it is not logged", path.display()),
        }
    }
    tags
}

impl LensReport {
    /// The lens/ tags.
    pub fn scalars(&self) -> Vec<(Tag, f64)> {
        let of = |point: &str, kind: &str, summary: &tiebreak_probe::lens::Summary| {
            let tag = |name: &str| Tag::from(format!("lens/{kind}/{point}/{name}"));
            summary.values().into_iter().map(|(name, value)| (tag(name), value)).collect::<Vec<_>>()
        };
        let points = self.held_out.points.iter();
        let tuned = self.recipe.tag();
        points.flat_map(|p| [of(&p.point, "logit", &p.logit), of(&p.point, tuned, &p.tuned)].concat()).collect()
    }

    /// A table by point, and what it is to be read beside.
    pub fn to_text(&self) -> String {
        let (t, h) = (&self.training, &self.held_out);
        let mut text = format!(
            "{} lens at step {}, {}: {} in {} steps, read on {} held-out tokens\n\n{:<9}",
            self.recipe.name(),
            self.step,
            self.corpus,
            Amount { tokens: t.tokens, ended: t.ended }.describe(),
            t.steps,
            h.tokens,
            "point"
        );
        for kind in ["logit", self.recipe.tag()] {
            let _ = write!(text, "{:>16} {:>8} {:>6} {:>6}", format!("{kind} KL"), "fraction", "agree", "right");
        }
        let cells = |text: &mut String, s: &tiebreak_probe::lens::Summary| {
            let fraction = s.kl_fraction.map_or("-".into(), |x| format!("{x:.4}"));
            let _ = write!(text, "{:>16.4} {fraction:>8} {:>6.3} {:>6.3}", s.kl_bits, s.top1_agreement, s.accuracy);
        };
        for p in &h.points {
            let _ = write!(text, "\n{:<9}", p.point);
            cells(&mut text, &p.logit);
            cells(&mut text, &p.tuned);
        }
        let bigram = h.bigram.as_ref().map(|bigram| ("bigram", bigram));
        for (name, summary) in std::iter::once(("constant", &h.constant)).chain(bigram) {
            let _ = write!(text, "\n{name:<9}");
            cells(&mut text, summary);
        }
        text + "\n\nKL(final || lens) in bits per token; fraction of the constant predictor's; agree: the final top id on top; \
                right: the next token on top.\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Probed;
    use burn::tensor::Device;
    use tiebreak_data::ShardWriter;
    use tiebreak_model::interface::HeadConfig;
    use tiebreak_model::trunk::norm::NormKind;
    use tiebreak_model::{Model, ModelConfig, Placement};

    fn model(seed: u64, norm: NormKind) -> Model {
        let shape = ModelConfig { d_model: 8, n_layers: 2, n_heads: 2, d_ff: 12, norm, ..ModelConfig::default() };
        Model::init(&shape, &HeadConfig::default(), 11, 4, seed, &Placement::f32(&Device::flex()))
    }

    fn refused(path: &Path, model: &dyn ProbedModel) -> String {
        match load_lens(path, model, Recipe::Converged) {
            Err(Error::Input(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lens_is_read_back_by_its_own_model_and_by_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lens.safetensors");
        for norm in [NormKind::LayerNoAffine, NormKind::Rms] {
            let (own, other) = (model(0, norm), model(1, norm));
            let probed = |model| Probed { model, context: 4 };
            let (own, other) = (probed(&own), probed(&other));
            let mut lens = TunedLens::identity(&own, Recipe::Paper);
            let a_dd = Tensor::<1, Int>::arange(0..64, &own.device()).float().reshape([8, 8]);
            lens.translators[1] = Translator::new(a_dd.clone(), Tensor::ones([1, 8], &own.device()));
            let trained = Some(Amount { tokens: 7, ended: Ended::Limit });
            std::fs::write(&path, lens_bytes(&lens, fingerprint(&own), trained).unwrap()).unwrap();
            assert!(refused(&path, &own).contains("of the recipe paper, expected converged"));
            let StoredLens { lens: read, trained: found } = load_lens(&path, &own, Recipe::Paper).unwrap();
            assert_eq!(found, trained);
            assert_eq!((read.recipe, read.translators.len()), (Recipe::Paper, 2));
            assert_eq!(read.translators[1].transposed_dd.to_data(), a_dd.clone().transpose().to_data());
            let h = Tensor::<2>::ones([1, 8], &own.device());
            let moved: Vec<f32> = read.apply(&own, 2, h).to_data().iter().collect();
            // The last point, normed to 0 by a layer norm or to 1 by an rms norm; A's rows sum to 8 (8 i) + 28.
            let first = if norm == NormKind::LayerNoAffine { 1.0 } else { 1.0 + 28.0 + 1.0 };
            assert!((moved[0] - first).abs() < 1e-3, "{moved:?}");
            assert!(refused(&path, &other).contains("the lens of another model"));
        }
        let (a, b) = (model(0, NormKind::LayerNoAffine), model(0, NormKind::Rms));
        let print = |model: &Model| fingerprint(&Probed { model, context: 4 });
        assert_eq!(print(&a), print(&model(0, NormKind::LayerNoAffine)));
        assert_ne!(print(&a), print(&b), "the norm counts too");
    }

    #[test]
    fn what_is_no_lens_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lens.safetensors");
        let model = model(0, NormKind::LayerNoAffine);
        let model = Probed { model: &model, context: 4 };
        assert!(refused(&path, &model).contains("no such lens"));
        let bytes = lens_bytes(&TunedLens::identity(&model, Recipe::Converged), fingerprint(&model), None).unwrap();
        let mut short = TunedLens::identity(&model, Recipe::Converged);
        short.translators.pop();
        let mut wide = TunedLens::identity(&model, Recipe::Converged);
        wide.translators[0] = Translator::identity(4, &model.device());
        let lens = |lens: &TunedLens| lens_bytes(lens, fingerprint(&model), None).unwrap();
        let table = tensors::to_bytes([("a", &model.output_vd())].into_iter(), ("step", "1".into())).unwrap();
        for (bytes, part) in [
            (Vec::new(), "not a whole safetensors file"),
            (bytes[..bytes.len() - 1].to_vec(), "not a whole safetensors file"),
            (table, "no lens"),
            (lens(&short), "1/A is missing"),
            (lens(&wide), "embed/A has shape [4, 4], expected [8, 8]"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let text = refused(&path, &model);
            assert!(text.contains(part) && text.contains("lens.safetensors"), "{text}");
        }
    }

    #[test]
    fn the_held_in_windows_are_not_trained_on() {
        let dir = tempfile::tempdir().unwrap();
        let of = |tokens: usize| {
            let path = dir.path().join(format!("{tokens}.bin"));
            let mut writer = ShardWriter::create(&path, 11, [0; 32], [1; 32]).unwrap();
            writer.push(&vec![3; tokens], tokens).unwrap();
            writer.finish().unwrap();
            Windows::new(&Shard::open(&path).unwrap(), 4)
        };
        let many = of(100_001);
        assert_eq!((many.train.len(), many.check.len()), (25_000 - 2048, 2048));
        assert!(many.check.iter().all(|w| many.train.binary_search(w).is_err()));
        let few = of(81);
        assert_eq!((few.train.len(), few.check.len()), (18, 2));
        let one = of(5);
        assert_eq!((one.train, one.check), (vec![0], vec![0]), "a split of one window");
    }
}
