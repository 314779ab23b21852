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
/// a sibling file is written, synced and renamed, then the folder is synced. Mode 0644.
///
/// # Errors
/// [`Error::Failed`] naming the path; the old file is untouched and no sibling stays behind.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let fail = |error: std::io::Error| failed("write", path, error);
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(parent).map_err(fail)?;
    file.write_all(bytes).map_err(fail)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644)).map_err(fail)?;
    }
    file.as_file().sync_all().map_err(fail)?;
    file.persist(path).map_err(|e| fail(e.error))?;
    sync_dir(parent).map_err(fail)
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
