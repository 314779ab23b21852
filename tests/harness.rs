//! The binary as a user runs it, small runs to give it, and what they leave.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A run of a fraction of a second: 60 steps of a model of about 13,000 parameters.
pub const TINY: &str = r#"
name = "tiny"
device = "flex"
threads = 1
[data]
corpus = "text.jsonl"
tokenizer = "bpe:300"
context_length = 16
[model]
d_model = 16
n_layers = 2
n_heads = 2
[schedule]
warmup_steps = 5
[train]
steps = 60
batch_size = 4
[eval]
every = 10
tokens = 2000
[log]
tables_at = [0, 10, 30]
[checkpoint]
every = 7
"#;

/// Of the binary, as of the tests.
const FEATURES: &[&str] = if cfg!(feature = "vulkan") {
    &["--features", "tiebreak-tests/vulkan"]
} else if cfg!(feature = "wgpu") {
    &["--features", "tiebreak-tests/wgpu"]
} else if cfg!(feature = "wgpu-unfused") {
    &["--features", "tiebreak-tests/wgpu-unfused"]
} else {
    &[]
};

/// The binary, built once per test process with the profile of the tests.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        // <target>/<profile>/deps/integration-<hash>
        let test = std::env::current_exe().unwrap();
        let folder = test.ancestors().nth(2).unwrap();
        let profile = folder.file_name().unwrap().to_str().unwrap();
        let built = Command::new(env!("CARGO"))
            // With a test among the targets features are resolved as for the tests themselves, so no dependency is built twice.
            .args(["build", "--workspace", "--bins", "--test", "integration"])
            .args(FEATURES)
            .args(["--profile", if profile == "debug" { "dev" } else { profile }])
            .arg("--target-dir")
            .arg(folder.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        folder.join(format!("tiebreak{}", std::env::consts::EXE_SUFFIX))
    })
}

/// The cache of this test process, so that each kind of data is prepared once.
pub fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let old = |path: &Path| {
            let age = path.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
            age.is_some_and(|age| age > Duration::from_secs(3600))
        };
        // Nothing runs when a test process ends, so the next one clears away.
        for path in std::fs::read_dir(parent).unwrap().flatten().map(|e| e.path()) {
            if path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("cache-")) && old(&path) {
                let _ = std::fs::remove_dir_all(path);
            }
        }
        let path = parent.join(format!("cache-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    })
}

/// What a command did.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    pub fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Panics unless the command ended with `code`; else gives it back.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// The run's folder, which is all that stdout may hold.
    #[track_caller]
    pub fn folder(&self, place: &Place) -> RunDir {
        let path = self.stdout.strip_suffix('\n').unwrap_or_default();
        assert!(!path.is_empty() && !path.contains('\n'), "stdout is no single line: {self:?}");
        RunDir(place.path(path))
    }
}

/// A folder of its own with `run.toml` ([`TINY`]) and its text; commands run in it.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        place.write("run.toml", TINY);
        place.write("text.jsonl", text());
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// [`TINY`] with the keys of `toml` over it, as `name`.
    pub fn write_run(&self, name: &str, toml: &str) {
        fn merge(into: &mut toml::Table, from: toml::Table) {
            for (key, value) in from {
                match (into.get_mut(&key), value) {
                    (Some(toml::Value::Table(inner)), toml::Value::Table(value)) => merge(inner, value),
                    (_, value) => _ = into.insert(key, value),
                }
            }
        }
        let mut run: toml::Table = TINY.parse().unwrap();
        merge(&mut run, toml.parse().unwrap_or_else(|e| panic!("{toml}: {e}")));
        self.write(name, toml::to_string(&run).unwrap());
    }

    /// A command in this folder. The variables of a calling shell that tiebreak reads do not reach it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).env("TIEBREAK_CACHE", cache());
        // A software adapter takes minutes to tune products in full.
        command.env("CUBECL_AUTOTUNE_LEVEL", "minimal");
        command.env_remove("TIEBREAK_OFFLINE").env_remove("TIEBREAK_FORCE_FALLBACK").env_remove("RAYON_NUM_THREADS");
        command
    }

    pub fn tiebreak(&self, args: &[&str]) -> Said {
        Said::of(self.command(binary()).args(args))
    }

    /// `train run.toml --out OUT`, then `more`.
    pub fn train(&self, out: &str, more: &[&str]) -> Said {
        self.tiebreak(&[&["train", "run.toml", "--out", out], more].concat())
    }

    /// The same, not waited for.
    pub fn start(&self, out: &str, more: &[&str]) -> Child {
        let mut command = self.command(binary());
        command.args(["train", "run.toml", "--out", out]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// The only run below `out`.
    #[track_caller]
    pub fn run_below(&self, out: &str) -> RunDir {
        let folders: Vec<_> = std::fs::read_dir(self.path(out)).unwrap().flatten().map(|e| e.path()).collect();
        assert_eq!(folders.len(), 1, "{folders:?}");
        RunDir(folders[0].clone())
    }

    /// The same while a process may still be making it.
    pub fn started_below(&self, out: &str) -> Option<RunDir> {
        std::fs::read_dir(self.path(out)).ok()?.flatten().next().map(|e| RunDir(e.path()))
    }

    /// Every path below this folder, with the bytes of files.
    pub fn tree(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        tree(self.dir.path())
    }
}

/// Every path below `root`, with the bytes of files and `None` for folders.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for path in std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()) {
        if path.is_dir() {
            found.extend(tree(&path));
            found.insert(path, None);
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.insert(path, Some(bytes));
        }
    }
    found
}

/// 120 documents of words in which the next word depends on the last, about 90 kB; always the same.
fn text() -> String {
    let words =
        ["the", "river", "stone", "under", "walks", "slowly", "and", "bright", "morning", "sings", "of", "rain"];
    let mut state = 1u64;
    let mut next = |n: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    let mut text = String::new();
    for document in 0..120 {
        text += &format!("{{\"text\": \"Document {document}.");
        let mut word = 0;
        for _ in 0..130 {
            word = (5 * word + next(4)) % 12;
            text += &format!(" {}{}", words[word as usize], ["", "", ",", "s"][next(4) as usize]);
        }
        text += "\"}\n";
    }
    text
}

/// A run's folder.
#[derive(Clone, Debug)]
pub struct RunDir(pub PathBuf);

impl RunDir {
    pub fn json(&self, file: &str) -> Value {
        let bytes = std::fs::read(self.0.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{file}: {e}"))
    }

    pub fn state(&self) -> String {
        self.json("status.json")["state"].as_str().unwrap().to_owned()
    }

    /// Steps with a complete checkpoint, ascending.
    pub fn checkpoints(&self) -> Vec<u64> {
        let entries = std::fs::read_dir(self.0.join("checkpoints")).into_iter().flatten().flatten();
        let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
        let mut steps: Vec<u64> = names.filter_map(|n| n.strip_prefix("step-")?.parse().ok()).collect();
        steps.sort();
        steps
    }

    /// Lines of `metrics.jsonl`: step, tag, value.
    #[track_caller]
    pub fn metrics(&self) -> Vec<(u64, String, f64)> {
        let text = std::fs::read_to_string(self.0.join("metrics.jsonl")).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "the last line is cut");
        let line = |line: &str| {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            let tag = value["tag"].as_str().unwrap().to_owned();
            (value["step"].as_u64().unwrap(), tag, value["value"].as_f64().unwrap())
        };
        text.lines().map(line).collect()
    }

    pub fn value(&self, step: u64, tag: &str) -> Option<f64> {
        self.metrics().into_iter().find(|(s, t, _)| *s == step && t == tag).map(|(_, _, v)| v)
    }

    /// Panics if a (step, tag) occurs twice or an unfinished file is left.
    #[track_caller]
    pub fn check_tidy(&self) {
        let mut seen = BTreeSet::new();
        for (step, tag, _) in self.metrics() {
            assert!(seen.insert((step, tag.clone())), "{tag} at step {step} twice");
        }
        let unfinished = |p: &PathBuf| p.file_name().unwrap().to_string_lossy().contains(".tmp");
        let left: Vec<_> = tree(&self.0).into_keys().filter(unfinished).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// Everything that two runs of one configuration must agree in, bit for bit.
    #[track_caller]
    pub fn result(&self) -> BTreeMap<String, Vec<u8>> {
        let last = self.checkpoints().last().copied().expect("a checkpoint");
        let mut result = BTreeMap::new();
        let folders = [self.0.join(format!("checkpoints/step-{last}")), self.0.join("tables")];
        for (path, bytes) in folders.iter().flat_map(|f| tree(f)) {
            let name = path.strip_prefix(&self.0).unwrap().display().to_string();
            // state.json holds the lengths of the logs, in which speeds are written with more or fewer digits.
            if !name.ends_with("state.json") {
                result.insert(name, bytes.unwrap());
            }
        }
        // Speed is the one thing that differs between machines and moments.
        let metrics = self.metrics().into_iter().map(|(step, tag, value)| {
            let bits = if tag == "train/tokens_per_second" { 0 } else { value.to_bits() };
            format!("{step} {tag} {bits:016x}\n")
        });
        result.insert("metrics.jsonl".into(), metrics.collect::<String>().into_bytes());
        result
    }
}

/// Panics, naming what differs, unless two runs gave the same bits.
#[track_caller]
pub fn assert_same(found: &RunDir, expected: &RunDir, what: &str) {
    let (found, expected) = (found.result(), expected.result());
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, bytes) in &found {
        if *bytes == expected[name] {
            continue;
        }
        let lines = String::from_utf8_lossy(bytes).into_owned();
        let other = String::from_utf8_lossy(&expected[name]).into_owned();
        let line = lines.lines().zip(other.lines()).find(|(a, b)| a != b);
        let line = if name.ends_with("jsonl") { line } else { None };
        panic!("{what}: {name} differs ({} and {} bytes): {line:?}", bytes.len(), expected[name].len());
    }
}

/// Waits until `done`, and panics if that takes a minute.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "waited a minute for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal to a child that was not waited for yet.
pub fn signal(child: &Child, signal: i32) {
    signal_pid(child.id(), signal);
}

/// Sends a signal to a process that a test's own child started.
pub fn signal_pid(pid: u32, signal: i32) {
    let pid = libc::pid_t::try_from(pid).unwrap();
    // SAFETY: takes two numbers and touches no memory of ours.
    #[allow(unsafe_code)]
    let result = unsafe { libc::kill(pid, signal) };
    assert_eq!(result, 0, "kill {pid}: {}", std::io::Error::last_os_error());
}
