//! Writing files whole, locking, and where the cache lies.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::Error;

/// An error message that names what was tried and on which path.
pub(crate) fn failed(what: &str, path: &Path, error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("cannot {what} {}: {error}", path.display()))
}

/// Creates a folder and the ones above it.
pub(crate) fn create_dir(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|e| failed("create the folder", path, e))
}

/// Writes `bytes` to `path` so that a reader, or a crash at any moment, sees the old file or the new one and nothing between:
/// a sibling file is written, synced and renamed, then the folder is synced. Mode 0644. Links are followed, so that they stay
/// and what they point to is replaced; a device or pipe cannot be replaced and is written to.
///
/// # Errors
/// [`Error::Failed`] naming the path; the old file is untouched and no sibling stays behind.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let fail = |error: std::io::Error| failed("write", path, error);
    let Target::File(target) = target(path).map_err(fail)? else {
        let mut device = OpenOptions::new().write(true).open(path).map_err(fail)?;
        return device.write_all(bytes).map_err(fail);
    };
    let parent = folder_of(&target);
    let mut file = temporary(parent).map_err(|e| failed("write", path, e))?;
    file.write_all(bytes).map_err(fail)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644)).map_err(fail)?;
    }
    file.as_file().sync_all().map_err(fail)?;
    file.persist(&target).map_err(|e| fail(e.error))?;
    sync_dir(parent).map_err(fail)
}

/// Finds out whether [`write_atomic`] could write `path`, before the work whose result goes there; a missing folder counts as
/// one that can be made. Gives the file that would be written, behind all links.
///
/// # Errors
/// [`Error::Input`] naming the path.
pub fn check_writable(path: &Path) -> Result<PathBuf, Error> {
    let refuse = |what: String| Error::Input(format!("{}: cannot be written: {what}", path.display()));
    let target = match target(path).map_err(|e| refuse(e.to_string()))? {
        Target::Device => return Ok(path.canonicalize().unwrap_or_else(|_| path.to_path_buf())),
        Target::File(target) if target.is_dir() => return Err(refuse("it is a folder".into())),
        Target::File(target) => std::path::absolute(&target).map_err(|e| refuse(e.to_string()))?,
    };
    let existing = folder_of(&target).ancestors().find(|folder| folder.symlink_metadata().is_ok());
    temporary(existing.unwrap_or(Path::new("/"))).map_err(refuse)?;
    let name = target.file_name().ok_or_else(|| refuse("it names no file".into()))?;
    Ok(folder_of(&target).canonicalize().map_or_else(|_| target.clone(), |folder| folder.join(name)))
}

/// What a path stands for when something is to be written there.
enum Target {
    /// A regular file (or nothing yet, or a folder) behind all links.
    File(PathBuf),
    /// A device, pipe or socket.
    Device,
}

fn target(path: &Path) -> std::io::Result<Target> {
    // The links of /dev/fd lead to names that are no paths, so what is there is asked first.
    if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(Target::Device);
    }
    let mut target = path.to_path_buf();
    // As many links as Linux follows; one may lead to what is not there yet.
    for _ in 0..40 {
        match fs::read_link(&target) {
            Ok(link) => target = folder_of(&target).join(link),
            Err(_) => return Ok(Target::File(target)),
        }
    }
    Err(std::io::Error::other("too many links"))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file that nobody sees yet; the error does not name it, for nobody chose its name.
fn temporary(folder: &Path) -> Result<tempfile::NamedTempFile, String> {
    let file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(folder);
    file.map_err(|e| e.to_string().split(" at path ").next().unwrap_or_default().to_owned())
}

/// Makes a rename inside `path` durable; not possible (and not needed) where folders cannot be opened.
pub(crate) fn sync_dir(path: &Path) -> std::io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// An exclusive advisory lock on a file, held until it is dropped or its process ends. The file stays where it is: removing it
/// would let two holders lock two files of one name.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock if nobody holds it; `None` if somebody does. The file and its folder are created where needed.
    ///
    /// # Errors
    /// [`Error::Failed`] if the file cannot be opened or the file system cannot lock.
    pub fn try_acquire(path: &Path) -> Result<Option<Self>, Error> {
        let file = Self::open(path)?;
        // `is_held` takes the lock for an instant: a few tries tell it from a real holder.
        for _ in 0..5 {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self { _file: file })),
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
                Err(TryLockError::Error(e)) => return Err(failed("lock", path, e)),
            }
        }
        Ok(None)
    }

    /// Takes the lock, waiting for as long as somebody else holds it.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub fn acquire(path: &Path) -> Result<Self, Error> {
        if let Some(lock) = Self::try_acquire(path)? {
            return Ok(lock);
        }
        tracing::info!("waiting for another process that holds {}", path.display());
        let file = Self::open(path)?;
        file.lock().map_err(|e| failed("lock", path, e))?;
        Ok(Self { _file: file })
    }

    /// Whether somebody holds the lock now. A missing file is not held; one that cannot be examined counts as held, because
    /// taking over what may be alive does more harm than waiting.
    pub fn is_held(path: &Path) -> bool {
        match File::open(path) {
            Ok(file) => file.try_lock_shared().is_err(),
            Err(e) => e.kind() != std::io::ErrorKind::NotFound,
        }
    }

    fn open(path: &Path) -> Result<File, Error> {
        if let Some(parent) = path.parent() {
            create_dir(parent)?;
        }
        let open = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        open.map_err(|e| failed("open the lock file", path, e))
    }
}

/// The folder for fetched packages and prepared shards: `$TIEBREAK_CACHE`, else `tiebreak` in the user's cache folder.
///
/// # Errors
/// [`Error::Failed`] if the user has no cache folder and the variable is not set.
pub fn cache_dir() -> Result<PathBuf, Error> {
    if let Some(folder) = std::env::var_os("TIEBREAK_CACHE").filter(|v| !v.is_empty()) {
        return std::path::absolute(&folder).map_err(|e| failed("use TIEBREAK_CACHE =", Path::new(&folder), e));
    }
    match directories::BaseDirs::new() {
        Some(dirs) => Ok(dirs.cache_dir().join("tiebreak")),
        None => Err(Error::Failed(
            "no cache folder: the user has no home folder; set TIEBREAK_CACHE to a folder that can be written".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_whole_files_with_the_right_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        }
        let missing = dir.path().join("no/such/folder/x");
        assert!(matches!(write_atomic(&missing, b""), Err(Error::Failed(m)) if m.contains("no/such/folder/x")));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_what_it_points_to_is_replaced() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("below")).unwrap();
        fs::write(at("below/file"), b"one").unwrap();
        symlink("below/file", at("inner")).unwrap();
        symlink("inner", at("outer")).unwrap();
        symlink("below/new", at("to-nothing")).unwrap();
        symlink("round", at("round")).unwrap();
        for (link, file) in [("outer", "below/file"), ("to-nothing", "below/new")] {
            assert_eq!(check_writable(&at(link)).unwrap(), at(file).canonicalize().unwrap_or(at(file)));
            write_atomic(&at(link), b"two").unwrap();
            assert!(at(link).is_symlink() && !at(file).is_symlink(), "{link}");
            assert_eq!(fs::read(at(file)).unwrap(), b"two");
        }
        assert!(at("inner").is_symlink());
        assert!(write_atomic(&at("round"), b"").unwrap_err().to_string().contains("too many links"));
        assert!(check_writable(&at("round")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_written_to_and_stays() {
        use std::os::unix::fs::FileTypeExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(check_writable(&path).is_ok());
        let reader = thread::spawn({
            let path = path.clone();
            move || fs::read(path).unwrap()
        });
        write_atomic(&path, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), b"").unwrap();
        assert!(check_writable(&dir.path().join("not/yet/there")).is_ok());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the try leaves nothing");
        let refused = |path: &Path| match check_writable(path) {
            Err(Error::Input(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(refused(dir.path()).contains("folder"));
        let text = refused(&dir.path().join("file/below"));
        assert!(text.contains("file/below: cannot be written") && !text.contains(".tmp-"), "{text}");
        if cfg!(target_os = "linux") {
            let text = refused(Path::new("/proc/x.svg"));
            assert!(text.contains("/proc/x.svg") && !text.contains(".tmp-"), "{text}");
            let text = write_atomic(Path::new("/proc/x.svg"), b"").unwrap_err().to_string();
            assert!(text.contains("/proc/x.svg") && !text.contains(".tmp-"), "{text}");
        }
    }

    #[test]
    fn a_lock_excludes_and_ends_with_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/.lock");
        assert!(!Lock::is_held(&path));
        let lock = Lock::try_acquire(&path).unwrap().unwrap();
        assert!(Lock::is_held(&path));
        assert!(Lock::try_acquire(&path).unwrap().is_none());
        drop(lock);
        assert!(!Lock::is_held(&path));
        let waited = Lock::acquire(&path).unwrap();
        assert!(Lock::is_held(&path));
        drop(waited);
    }
}
