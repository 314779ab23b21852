//! TensorBoard event files: scalars, histograms, images, hyperparameters and the chart layout.
//!
//! Formats: <https://github.com/tensorflow/tensorboard>, `summary.proto`, `event.proto`, and for hyperparameters and layout
//! the protos of those plugins. Framing comes from tensorboard-rs; files and errors are ours, because its writer panics on
//! I/O errors. Values are written in the classic fields (`simple_value`, `histo`, `image`): every TensorBoard turns them
//! into its present form, and tensorboard-proto's `SummaryMetadata` lacks the `data_class` that the present form needs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use protobuf::well_known_types::{ListValue, Value};
use protobuf::{Message, RepeatedField};
use tensorboard_proto::api::{DataType, Experiment, HParamInfo, MetricInfo, MetricName, Status};
use tensorboard_proto::event::Event;
use tensorboard_proto::layout::{Category, Chart, Layout, MultilineChartContent};
use tensorboard_proto::plugin_hparams::{HParamsPluginData, SessionEndInfo, SessionStartInfo};
use tensorboard_proto::summary::{
    HistogramProto, Summary, Summary_Image, Summary_Value, SummaryMetadata, SummaryMetadata_PluginData,
};
use tensorboard_proto::tensor::TensorProto;
use tensorboard_proto::tensor_shape::{TensorShapeProto, TensorShapeProto_Dim};
use tensorboard_proto::types::DataType as TensorType;
use tensorboard_rs::masked_crc32c::masked_crc32c;
use tensorboard_rs::record_writer::RecordWriter;
use tiebreak_data::Error;

use super::log_file::{LogFile, damaged, failed};
use super::{Tag, Tracker};

const PREFIX: &str = "events.out.tfevents.";
const SUFFIX: &str = ".tiebreak";
const SESSION_START: &str = "_hparams_/session_start_info";
const SESSION_END: &str = "_hparams_/session_end_info";
const EXPERIMENT: &str = "_hparams_/experiment";
/// TensorBoard draws a histogram with about thirty bars whatever it is given; more keep narrow peaks apart.
const BUCKETS: usize = 64;

/// Charts that draw several tags together: category, chart, tags.
const CHARTS: [(&str, &str, &[&str]); 6] = [
    ("gradients", "gradient norm: input and output side", &["grad/input_norm", "grad/output_norm"]),
    ("gradients", "signed share of the gradient", &["grad/input_signed_share", "grad/output_signed_share"]),
    ("gradients", "signed share of the update", &["update/input_signed_share", "update/output_signed_share"]),
    (
        "gradients",
        "gradient norm, the paper code's quantities",
        &["grad/authors/input_norm", "grad/authors/output_norm"],
    ),
    ("tables", "cosine to the initial table", &["embedding/input_cos_to_init", "embedding/output_cos_to_init"]),
    ("loss", "training and evaluation loss", &["train/loss", "eval/loss"]),
];

/// A hyperparameter's value. A number that is not finite is shown as text.
#[derive(Clone, Debug, PartialEq)]
pub enum HParam {
    /// A number.
    Number(f64),
    /// A word.
    Text(String),
    /// A switch.
    Bool(bool),
}

impl From<&toml::Value> for HParam {
    fn from(value: &toml::Value) -> Self {
        match value {
            toml::Value::Integer(i) => Self::Number(*i as f64),
            toml::Value::Float(x) => Self::Number(*x),
            toml::Value::Boolean(b) => Self::Bool(*b),
            toml::Value::String(s) => Self::Text(s.clone()),
            other => Self::Text(other.to_string()),
        }
    }
}

impl HParam {
    fn value(&self) -> Value {
        let mut value = Value::new();
        match self {
            Self::Number(x) if x.is_finite() => value.set_number_value(*x),
            Self::Number(x) => value.set_string_value(x.to_string()),
            Self::Text(text) => value.set_string_value(text.clone()),
            Self::Bool(on) => value.set_bool_value(*on),
        }
        value
    }
}

/// Writes the one event file of a run: `events.out.tfevents.<unix seconds>.<host>.tiebreak`.
///
/// TensorBoard stores scalars as f32; `metrics.jsonl` has them in full.
pub struct TensorBoard {
    log: LogFile,
    session_started: bool,
}

impl TensorBoard {
    /// Opens the event file in the run's folder `dir`: a new one in place of any that is there, or the first `keep_bytes`
    /// bytes of the one that is there. A new file begins with the format's version and the chart layout.
    ///
    /// A resumed file gets a new name: a TensorBoard that is open then reads it again from its beginning, instead of
    /// showing what was cut off and losing its place in the file. (With `--load_fast=false` it has to be restarted.)
    pub fn open(dir: &Path, keep_bytes: Option<u64>) -> Result<Self, Error> {
        let found = event_files(dir)?;
        let Some(keep) = keep_bytes else {
            let path = dir.join(file_name(&found));
            for old in &found {
                std::fs::remove_file(old).map_err(|e| failed(old, "remove", &e))?;
            }
            let mut tensorboard = Self { log: LogFile::create(&path)?, session_started: false };
            tensorboard.begin()?;
            return Ok(tensorboard);
        };
        let old = the_one(dir, &found)?;
        let session_started = check_records(old, keep)?;
        let path = dir.join(file_name(&found));
        std::fs::rename(old, &path).map_err(|e| failed(old, "rename", &e))?;
        Ok(Self { log: LogFile::reopen(&path, keep)?, session_started })
    }

    /// Whether the one event file of `dir` has whole records up to byte `keep`.
    pub(super) fn check(dir: &Path, keep: u64) -> Result<(), Error> {
        check_records(the_one(dir, &event_files(dir)?)?, keep).map(|_| ())
    }

    /// The event file.
    pub fn path(&self) -> &Path {
        self.log.path()
    }

    /// Records the run's hyperparameters, once: a file that already has them keeps them.
    ///
    /// Runs of one `group` are shown as one row with their metrics averaged and the hyperparameters of one of them, so
    /// `group` names the arm and `hparams` leaves the seed out. An empty group is a row of its own.
    pub fn session_start(&mut self, hparams: &BTreeMap<String, HParam>, group: &str) -> Result<(), Error> {
        if self.session_started {
            return Ok(());
        }
        let mut info = SessionStartInfo::new();
        info.set_hparams(hparams.iter().map(|(name, value)| (name.clone(), value.value())).collect());
        info.set_group_name(group.to_owned());
        info.set_start_time_secs(now());
        let mut data = HParamsPluginData::new();
        data.set_session_start_info(info);
        self.session_started = true;
        self.write(&hparams_event(SESSION_START, &data, now())?)
    }

    /// Records how the run ended. TensorBoard keeps the first such record of a file, so it belongs behind the last
    /// checkpoint: a resume then removes it. A run that was interrupted and can go on has not ended.
    pub fn session_end(&mut self, success: bool) -> Result<(), Error> {
        let mut info = SessionEndInfo::new();
        info.set_status(if success { Status::STATUS_SUCCESS } else { Status::STATUS_FAILURE });
        info.set_end_time_secs(now());
        let mut data = HParamsPluginData::new();
        data.set_session_end_info(info);
        self.write(&hparams_event(SESSION_END, &data, now())?)?;
        self.log.flush()
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.write(&version_event(now()))?;
        self.layout()?;
        self.log.flush()
    }

    /// Records the charts of the custom scalars page.
    fn layout(&mut self) -> Result<(), Error> {
        let mut categories: Vec<Category> = Vec::new();
        for (title, name, tags) in CHARTS {
            let mut lines = MultilineChartContent::new();
            // TensorBoard takes them as regular expressions that match from the start.
            lines.set_tag(tags.iter().map(|tag| format!("^{tag}$")).collect());
            let mut chart = Chart::new();
            chart.set_title(name.to_owned());
            chart.set_multiline(lines);
            if categories.last().is_none_or(|category| category.title != title) {
                let mut category = Category::new();
                category.set_title(title.to_owned());
                categories.push(category);
            }
            if let Some(category) = categories.last_mut() {
                category.mut_chart().push(chart);
            }
        }
        let mut layout = Layout::new();
        layout.set_category(categories.into());
        let mut tensor = TensorProto::new();
        tensor.set_dtype(TensorType::DT_STRING);
        tensor.set_tensor_shape(TensorShapeProto::new());
        tensor.set_string_val(RepeatedField::from_vec(vec![encode(&layout)?]));
        let mut value = Summary_Value::new();
        value.set_tag("custom_scalars__config__".to_owned());
        value.set_metadata(metadata("custom_scalars", Vec::new()));
        value.set_tensor(tensor);
        self.write(&event(0, now(), vec![value]))
    }

    fn write(&mut self, event: &Event) -> Result<(), Error> {
        let bytes = encode(event)?;
        self.log.append(|buffer| RecordWriter::new(buffer).write(&bytes))
    }

    fn write_value(&mut self, step: u64, value: Summary_Value) -> Result<(), Error> {
        self.write(&event(step, now(), vec![value]))
    }
}

impl Tracker for TensorBoard {
    fn scalars(&mut self, step: u64, scalars: &[(Tag, f64)]) -> Result<(), Error> {
        let values: Vec<_> = scalars
            .iter()
            .filter(|(_, value)| (*value as f32).is_finite())
            .map(|(tag, value)| {
                let mut v = Summary_Value::new();
                v.set_tag(tag.to_string());
                v.set_simple_value(*value as f32);
                v
            })
            .collect();
        if values.is_empty() {
            return Ok(());
        }
        self.write(&event(step, now(), values))
    }

    fn histogram(&mut self, step: u64, tag: &str, values: &[f64]) -> Result<(), Error> {
        let Some(histogram) = histogram(values) else { return Ok(()) };
        let mut value = Summary_Value::new();
        value.set_tag(tag.to_owned());
        value.set_histo(histogram);
        self.write_value(step, value)
    }

    fn image(&mut self, step: u64, tag: &str, png: &[u8]) -> Result<(), Error> {
        let (width, height, channels) = png_header(png).ok_or_else(|| {
            Error::Failed(format!("{}: image {tag} at step {step} is no PNG file", self.path().display()))
        })?;
        let mut image = Summary_Image::new();
        image.set_width(width);
        image.set_height(height);
        image.set_colorspace(channels);
        image.set_encoded_image_string(png.to_vec());
        let mut value = Summary_Value::new();
        value.set_tag(tag.to_owned());
        value.set_image(image);
        self.write_value(step, value)
    }

    fn sync(&mut self) -> Result<u64, Error> {
        self.log.sync()
    }
}

/// Declares a sweep's hyperparameters and metrics to TensorBoard, in an event file of the sweep's folder `dir`. Each
/// hyperparameter comes with all its values over the sweep; a metric is a scalar tag of the runs. Called again it
/// replaces its file, and leaves it alone if nothing changed.
///
/// TensorBoard uses one such declaration, an arbitrary one, if the folder that it was given holds several sweeps.
pub fn write_experiment(dir: &Path, hparams: &[(String, Vec<HParam>)], metrics: &[String]) -> Result<(), Error> {
    let found = event_files(dir)?;
    for old in &found {
        let same = match (seconds_in(old), found.len()) {
            (Some(seconds), 1) => {
                std::fs::read(old).map_err(|e| failed(old, "read", &e))? == experiment_file(hparams, metrics, seconds)?
            }
            _ => false,
        };
        if same {
            return Ok(());
        }
    }
    let path = dir.join(file_name(&found));
    let bytes = experiment_file(hparams, metrics, seconds_in(&path).unwrap_or_default())?;
    // Under a name that TensorBoard does not look at until it is whole.
    let partial = dir.join(".experiment.tmp");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&partial, &path)
    };
    if let Err(e) = write() {
        let _ = std::fs::remove_file(&partial);
        return Err(failed(&path, "write", &e));
    }
    for old in found.iter().filter(|old| **old != path) {
        std::fs::remove_file(old).map_err(|e| failed(old, "remove", &e))?;
    }
    Ok(())
}

/// The bytes of a sweep's event file made at `seconds`.
fn experiment_file(hparams: &[(String, Vec<HParam>)], metrics: &[String], seconds: u64) -> Result<Vec<u8>, Error> {
    let mut experiment = Experiment::new();
    experiment.set_time_created_secs(seconds as f64);
    experiment.set_hparam_infos(hparams.iter().map(|(name, domain)| hparam_info(name, domain)).collect());
    experiment.set_metric_infos(
        metrics
            .iter()
            .map(|tag| {
                // The group is a folder below the run; ours log into the run's own.
                let mut name = MetricName::new();
                name.set_tag(tag.clone());
                let mut info = MetricInfo::new();
                info.set_name(name);
                info.set_display_name(tag.clone());
                info
            })
            .collect(),
    );
    let mut data = HParamsPluginData::new();
    data.set_experiment(experiment);
    let mut bytes = Vec::new();
    for event in [version_event(seconds as f64), hparams_event(EXPERIMENT, &data, seconds as f64)?] {
        RecordWriter::new(&mut bytes)
            .write(&encode(&event)?)
            .map_err(|e| Error::Failed(format!("cannot encode a TensorBoard record: {e}")))?;
    }
    Ok(bytes)
}

fn hparam_info(name: &str, domain: &[HParam]) -> HParamInfo {
    let mut info = HParamInfo::new();
    info.set_name(name.to_owned());
    let all = |is: fn(&HParam) -> bool| !domain.is_empty() && domain.iter().all(is);
    info.set_field_type(if all(|v| matches!(v, HParam::Number(x) if x.is_finite())) {
        DataType::DATA_TYPE_FLOAT64
    } else if all(|v| matches!(v, HParam::Bool(_))) {
        DataType::DATA_TYPE_BOOL
    } else {
        DataType::DATA_TYPE_STRING
    });
    let mut values: Vec<Value> = Vec::new();
    for value in domain.iter().map(HParam::value) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    let mut list = ListValue::new();
    list.set_values(values.into());
    info.set_domain_discrete(list);
    info
}

/// Our event files in `dir`, by name.
fn event_files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX)) {
                files.push(entry.path());
            }
        }
        files.sort();
        Ok(files)
    };
    list().map_err(|e| failed(dir, "list", &e))
}

/// The seconds in an event file's name.
fn seconds_in(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}

/// A name for now, later than those of the files that are there.
fn file_name(found: &[PathBuf]) -> String {
    let after = found.iter().filter_map(|path| seconds_in(path)).map(|seconds| seconds.saturating_add(1)).max();
    let seconds = (now() as u64).max(after.unwrap_or(0));
    let host: String = gethostname::gethostname()
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
        .collect();
    format!("{PREFIX}{seconds}.{host}{SUFFIX}")
}

/// A resume needs exactly one event file.
fn the_one<'a>(dir: &Path, found: &'a [PathBuf]) -> Result<&'a PathBuf, Error> {
    match found {
        [one] => Ok(one),
        several => {
            let what =
                format!("holds {} files {PREFIX}*{SUFFIX}, but a resume needs the one of the run", several.len());
            Err(damaged(dir, &what))
        }
    }
}

/// Checks lengths and both checksums of the records in the first `keep` bytes of `path`, and tells whether
/// hyperparameters are among them. They come before the first scalar, so only the first records are looked into.
fn check_records(path: &Path, keep: u64) -> Result<bool, Error> {
    let io = |e: std::io::Error| failed(path, "read", &e);
    let file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    if length < keep {
        return Err(damaged(path, &format!("holds {length} bytes, but the checkpoint was written at {keep}")));
    }
    let mut reader = BufReader::new(file);
    let (mut at, mut records, mut session, mut body) = (0u64, 0, false, Vec::new());
    while at < keep {
        let bad = || damaged(path, &format!("has no whole record at byte {at}, before the checkpoint's {keep} bytes"));
        let mut head = [0; 12];
        if keep - at < 16 {
            return Err(bad());
        }
        reader.read_exact(&mut head).map_err(io)?;
        let [size, crc] = [&head[..8], &head[8..]];
        let size_crc = masked_crc32c(size).to_le_bytes();
        let size = size.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        if size_crc != crc || size > keep - at - 16 {
            return Err(bad());
        }
        body.resize(size as usize + 4, 0);
        reader.read_exact(&mut body).map_err(io)?;
        let (data, crc) = body.split_at(size as usize);
        if masked_crc32c(data).to_le_bytes() != crc {
            return Err(bad());
        }
        session |= records < 8 && data.windows(SESSION_START.len()).any(|window| window == SESSION_START.as_bytes());
        at += size + 16;
        records += 1;
    }
    Ok(session)
}

fn version_event(seconds: f64) -> Event {
    let mut event = Event::new();
    event.set_wall_time(seconds);
    event.set_file_version("brain.Event:2".to_owned());
    event
}

fn event(step: u64, seconds: f64, values: Vec<Summary_Value>) -> Event {
    let mut summary = Summary::new();
    summary.set_value(values.into());
    let mut event = Event::new();
    event.set_wall_time(seconds);
    event.set_step(i64::try_from(step).unwrap_or(i64::MAX));
    event.set_summary(summary);
    event
}

/// The hyperparameter page reads the metadata; the tensor only has to be there.
fn hparams_event(tag: &str, data: &HParamsPluginData, seconds: f64) -> Result<Event, Error> {
    let mut shape = TensorShapeProto::new();
    shape.mut_dim().push(TensorShapeProto_Dim::new());
    let mut tensor = TensorProto::new();
    tensor.set_dtype(TensorType::DT_FLOAT);
    tensor.set_tensor_shape(shape);
    let mut value = Summary_Value::new();
    value.set_tag(tag.to_owned());
    value.set_metadata(metadata("hparams", encode(data)?));
    value.set_tensor(tensor);
    Ok(event(0, seconds, vec![value]))
}

fn metadata(plugin: &str, content: Vec<u8>) -> SummaryMetadata {
    let mut data = SummaryMetadata_PluginData::new();
    data.set_plugin_name(plugin.to_owned());
    data.set_content(content);
    let mut metadata = SummaryMetadata::new();
    metadata.set_plugin_data(data);
    metadata
}

fn encode(message: &impl Message) -> Result<Vec<u8>, Error> {
    message.write_to_bytes().map_err(|e| Error::Failed(format!("cannot encode a TensorBoard record: {e}")))
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Equal buckets between the smallest and the largest finite value; none without such a value.
fn histogram(values: &[f64]) -> Option<HistogramProto> {
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let min = finite().reduce(f64::min)?;
    let max = finite().reduce(f64::max)?;
    let buckets = if min == max { 1 } else { BUCKETS };
    // Halves, because the difference of two f64 can overflow.
    let half = max / 2.0 - min / 2.0;
    let mut counts = vec![0.0; buckets];
    let (mut num, mut sum, mut sum_squares) = (0.0, 0.0, 0.0);
    for x in finite() {
        let place = if half > 0.0 { (x / 2.0 - min / 2.0) / half * buckets as f64 } else { 0.0 };
        counts[(place as usize).min(buckets - 1)] += 1.0;
        num += 1.0;
        sum += x;
        sum_squares += x * x;
    }
    let limits = (1..=buckets).map(|i| {
        let share = i as f64 / buckets as f64;
        if i == buckets { max } else { min * (1.0 - share) + max * share }
    });
    let mut histogram = HistogramProto::new();
    histogram.set_min(min);
    histogram.set_max(max);
    histogram.set_num(num);
    histogram.set_sum(sum);
    histogram.set_sum_squares(sum_squares);
    histogram.set_bucket_limit(limits.collect());
    histogram.set_bucket(counts);
    Some(histogram)
}

/// Width, height and channels from a PNG's signature and IHDR chunk (PNG specification, 5.2 and 11.2.1).
fn png_header(png: &[u8]) -> Option<(i32, i32, i32)> {
    let ihdr = png.strip_prefix(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR")?;
    let number = |at: usize| Some(i32::from_be_bytes(ihdr.get(at..at + 4)?.try_into().ok()?)).filter(|n| *n > 0);
    let channels = match ihdr.get(9)? {
        0 => 1,
        2 | 3 => 3,
        4 => 2,
        6 => 4,
        _ => return None,
    };
    Some((number(0)?, number(4)?, channels))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(path: &Path) -> Vec<Event> {
        let bytes = std::fs::read(path).unwrap();
        check_records(path, bytes.len() as u64).unwrap();
        let (mut at, mut events) = (0, Vec::new());
        while at < bytes.len() {
            let size = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            events.push(Event::parse_from_bytes(&bytes[at + 12..at + 12 + size]).unwrap());
            at += size + 16;
        }
        events
    }

    fn log(tensorboard: &mut TensorBoard, step: u64, value: f64) {
        tensorboard.scalars(step, &[("train/loss".into(), value)]).unwrap();
    }

    fn png(width: u32, height: u32, color: u8) -> Vec<u8> {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        png.extend(width.to_be_bytes());
        png.extend(height.to_be_bytes());
        png.extend([8, color, 0, 0, 0]);
        png
    }

    #[test]
    fn framing_matches_the_published_checksum() {
        // First record of an event file: `file_version` at wall time 0.
        let mut bytes = Vec::new();
        RecordWriter::new(&mut bytes).write(&encode(&version_event(0.0)).unwrap()).unwrap();
        assert_eq!(&bytes[..8], &15u64.to_le_bytes());
        assert_eq!(&bytes[12..27], b"\x1a\x0dbrain.Event:2");
        // RFC 3720, B.4: CRC32C of 32 zero bytes is 0x8a9136aa; masked by rotation and constant.
        assert_eq!(masked_crc32c(&[0; 32]), 0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn a_run_has_one_file_that_begins_with_version_and_layout() {
        let dir = tempfile::tempdir().unwrap();
        let mut tensorboard = TensorBoard::open(dir.path(), None).unwrap();
        log(&mut tensorboard, 7, 1.5);
        tensorboard.scalars(8, &[("a".into(), f64::NAN), ("b".into(), 1e300), ("c".into(), -2.0)]).unwrap();
        tensorboard.scalars(9, &[("a".into(), f64::INFINITY)]).unwrap();
        tensorboard.sync().unwrap();
        assert_eq!(event_files(dir.path()).unwrap(), [tensorboard.path()]);
        let events = records(tensorboard.path());
        assert_eq!(events[0].get_file_version(), "brain.Event:2");
        let layout = events[1].get_summary().get_value()[0].get_tensor().get_string_val()[0].clone();
        let layout = Layout::parse_from_bytes(&layout).unwrap();
        let chart = &layout.get_category()[0].get_chart()[0];
        assert_eq!(chart.get_multiline().get_tag(), ["^grad/input_norm$", "^grad/output_norm$"]);
        assert_eq!(layout.get_category().iter().map(|c| c.get_chart().len()).collect::<Vec<_>>(), [4, 1, 1]);
        let value = &events[2].get_summary().get_value()[0];
        assert_eq!((events[2].get_step(), value.get_tag(), value.get_simple_value()), (7, "train/loss", 1.5));
        let tags: Vec<_> = events[3].get_summary().get_value().iter().map(Summary_Value::get_tag).collect();
        assert_eq!(tags, ["c"], "what f32 cannot hold is left out");
        assert_eq!(events.len(), 4);
        drop(tensorboard);
        let again = TensorBoard::open(dir.path(), None).unwrap();
        assert_eq!(event_files(dir.path()).unwrap(), [again.path()]);
        assert_eq!(records(again.path()).len(), 2);
    }

    #[test]
    fn a_resume_continues_at_the_checkpoint_without_a_second_session() {
        let dir = tempfile::tempdir().unwrap();
        let hparams = BTreeMap::from([("head.mode".to_owned(), HParam::Text("tied".to_owned()))]);
        let mut tensorboard = TensorBoard::open(dir.path(), None).unwrap();
        tensorboard.session_start(&hparams, "tied").unwrap();
        log(&mut tensorboard, 1, 3.0);
        let keep = tensorboard.sync().unwrap();
        log(&mut tensorboard, 2, 2.0);
        tensorboard.session_end(false).unwrap();
        let old = tensorboard.path().to_owned();
        drop(tensorboard);
        // As a killed run leaves it.
        let bytes = std::fs::read(&old).unwrap();
        std::fs::write(&old, &bytes[..bytes.len() - 5]).unwrap();

        let mut tensorboard = TensorBoard::open(dir.path(), Some(keep)).unwrap();
        assert_ne!(tensorboard.path(), old);
        assert_eq!(event_files(dir.path()).unwrap(), [tensorboard.path()]);
        tensorboard.session_start(&hparams, "tied").unwrap();
        log(&mut tensorboard, 2, 2.5);
        tensorboard.session_end(true).unwrap();
        let events = records(tensorboard.path());
        let said: Vec<_> =
            events[2..].iter().map(|e| (e.get_step(), e.get_summary().get_value()[0].get_tag())).collect();
        assert_eq!(said, [(0, SESSION_START), (1, "train/loss"), (2, "train/loss"), (0, SESSION_END)]);
        assert_eq!(events[4].get_summary().get_value()[0].get_simple_value(), 2.5);
    }

    #[test]
    fn damaged_files_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |keep| match TensorBoard::open(dir.path(), Some(keep)) {
            Err(Error::Failed(message)) => message,
            _ => panic!("accepted {keep}"),
        };
        assert!(refused(0).contains("holds 0 files"));
        let mut tensorboard = TensorBoard::open(dir.path(), None).unwrap();
        log(&mut tensorboard, 1, 3.0);
        let keep = tensorboard.sync().unwrap();
        let path = tensorboard.path().to_owned();
        drop(tensorboard);
        let good = std::fs::read(&path).unwrap();
        assert!(refused(keep + 1).contains("but the checkpoint was written at"));
        assert!(refused(keep - 1).contains("no whole record"));
        for at in [3, 9, 14, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            let message = refused(keep);
            assert!(message.contains("no whole record") && message.contains(".tiebreak"), "{message}");
            assert_eq!(std::fs::read(&path).unwrap(), bad);
        }
    }

    #[test]
    fn images_keep_width_and_height_apart() {
        let dir = tempfile::tempdir().unwrap();
        let mut tensorboard = TensorBoard::open(dir.path(), None).unwrap();
        let wide = png(300, 20, 6);
        tensorboard.image(4, "table", &wide).unwrap();
        tensorboard.sync().unwrap();
        let events = records(tensorboard.path());
        let image = events[2].get_summary().get_value()[0].get_image();
        assert_eq!((image.get_width(), image.get_height(), image.get_colorspace()), (300, 20, 4));
        assert_eq!(image.get_encoded_image_string(), wide);
        for bad in [&wide[..20], b"GIF89a", &png(0, 5, 2), &png(5, u32::MAX, 2), &png(5, 5, 1), b""] {
            let Err(Error::Failed(message)) = tensorboard.image(4, "table", bad) else { panic!("accepted") };
            assert!(message.contains("image table at step 4"), "{message}");
        }
    }

    #[test]
    fn histograms_count_every_finite_value_once() {
        let values: Vec<f64> = (0..1000).map(|i| f64::from(i) / 1000.0).chain([f64::NAN, f64::INFINITY]).collect();
        let h = histogram(&values).unwrap();
        assert_eq!((h.get_num(), h.get_min(), h.get_max()), (1000.0, 0.0, 0.999));
        assert_eq!(h.get_bucket().iter().sum::<f64>(), 1000.0);
        assert!(h.get_bucket().iter().all(|n| (15.0..=16.0).contains(n)), "{:?}", h.get_bucket());
        let mut below = 0.0;
        for (limit, count) in h.get_bucket_limit().iter().zip(h.get_bucket()) {
            below += count;
            let exact = values.iter().filter(|x| *x <= limit).count() as f64;
            assert!((below - exact).abs() <= 1.0, "{below} {exact}");
        }
        let huge = histogram(&[f64::MIN, 0.0, f64::MAX]).unwrap();
        assert!(huge.get_bucket_limit().iter().all(|x| x.is_finite()));
        assert!(huge.get_bucket_limit().windows(2).all(|w| w[0] < w[1]));
        assert_eq!(huge.get_bucket().iter().sum::<f64>(), 3.0);
        assert_eq!(histogram(&[2.0, 2.0]).unwrap().get_bucket(), [2.0]);
        assert_eq!(histogram(&[f64::NAN]), None);
    }

    #[test]
    fn an_experiment_declares_domains_and_is_rewritten_only_if_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let number = |x| HParam::Number(x);
        let hparams = |top| {
            vec![
                ("input_scale".to_owned(), vec![number(1.0), number(top), number(1.0)]),
                ("mode".to_owned(), vec![HParam::Text("tied".to_owned()), HParam::Text("untied".to_owned())]),
                ("odd".to_owned(), vec![number(f64::NAN), HParam::Bool(true)]),
            ]
        };
        let metrics = ["eval/ppl".to_owned()];
        write_experiment(dir.path(), &hparams(5.0), &metrics).unwrap();
        let first = event_files(dir.path()).unwrap();
        let events = records(&first[0]);
        let value = &events[1].get_summary().get_value()[0];
        assert_eq!(value.get_tag(), EXPERIMENT);
        let data = HParamsPluginData::parse_from_bytes(value.get_metadata().get_plugin_data().get_content()).unwrap();
        let infos = data.get_experiment().get_hparam_infos();
        let types: Vec<_> = infos.iter().map(HParamInfo::get_field_type).collect();
        use DataType::*;
        assert_eq!(types, [DATA_TYPE_FLOAT64, DATA_TYPE_STRING, DATA_TYPE_STRING]);
        assert_eq!(infos[0].get_domain_discrete().get_values().len(), 2, "values are listed once");
        let metric = data.get_experiment().get_metric_infos()[0].get_name();
        assert_eq!((metric.get_group(), metric.get_tag()), ("", "eval/ppl"));

        write_experiment(dir.path(), &hparams(5.0), &metrics).unwrap();
        assert_eq!(event_files(dir.path()).unwrap(), first);
        write_experiment(dir.path(), &hparams(6.0), &metrics).unwrap();
        let second = event_files(dir.path()).unwrap();
        assert!(second.len() == 1 && second != first, "{second:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
