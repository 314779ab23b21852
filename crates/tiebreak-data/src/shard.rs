//! Token shards: a header and the ids, memory-mapped.
//!
//! Little endian. Header, 256 bytes: magic (8), format version (u32), bytes per id (u32: 2 or 4), vocabulary (u64), tokens
//! (u64), documents (u64), bytes of text (u64), SHA-256 of the source text (32), of the tokenizer (32), of the ids (32), zeros,
//! and in the last 32 bytes SHA-256 of all header bytes before. The ids follow and end the file.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::files::failed;
use crate::hash::{hex, sha256};

const MAGIC: &[u8; 8] = b"TBTOKENS";
const VERSION: u32 = 1;
const HEADER: usize = 256;
const CHECKED: usize = HEADER - 32;

/// A split's tokens, each document followed by end-of-text.
#[derive(Debug)]
pub struct Shard {
    map: Mmap,
    path: PathBuf,
    wide: bool,
    vocabulary: usize,
    len: usize,
    documents: u64,
    text_bytes: u64,
}

impl Shard {
    /// Opens a shard and checks its header and length, but not every id: see [`verify`](Self::verify).
    ///
    /// # Errors
    /// [`Error::Input`] for a file that is missing, foreign, truncated, too long or of another format version.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let bad = |what: String| Error::Input(format!("{} is no usable token shard: {what}", path.display()));
        let file = File::open(path).map_err(|e| bad(e.to_string()))?;
        if !file.metadata().map_err(|e| bad(e.to_string()))?.is_file() {
            return Err(bad("not a file".into()));
        }
        // SAFETY: the map is only read. Shards are written under another name and renamed, never changed in place, so the
        // mapped file keeps its length.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(|e| bad(e.to_string()))?;
        if map.len() < HEADER || &map[..8] != MAGIC {
            return Err(bad("it does not begin with a shard header".into()));
        }
        let u32_at = |at: usize| map[at..at + 4].iter().rev().fold(0u32, |n, &b| n << 8 | u32::from(b));
        let u64_at = |at: usize| map[at..at + 8].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        if u32_at(8) != VERSION {
            return Err(bad(format!("format version {}, this program reads {VERSION}", u32_at(8))));
        }
        if sha256(&map[..CHECKED])[..] != map[CHECKED..HEADER] {
            return Err(bad("its header is damaged".into()));
        }
        let width = u32_at(12);
        if width != 2 && width != 4 {
            return Err(bad(format!("{width} bytes per id, expected 2 or 4")));
        }
        let (vocabulary, tokens) = (u64_at(16), u64_at(24));
        let expected = u128::from(tokens) * u128::from(width) + HEADER as u128;
        if map.len() as u128 != expected {
            return Err(bad(format!("{} bytes, its header says {expected}: truncated or added to", map.len())));
        }
        Ok(Self {
            path: path.into(),
            wide: width == 4,
            vocabulary: vocabulary as usize,
            len: tokens as usize,
            documents: u64_at(32),
            text_bytes: u64_at(40),
            map,
        })
    }

    /// Reads all ids once and compares them with the sum in the header.
    ///
    /// # Errors
    /// [`Error::Input`] if they differ.
    pub fn verify(&self) -> Result<(), Error> {
        if sha256(&self.map[HEADER..])[..] == self.map[112..144] {
            return Ok(());
        }
        Err(Error::Input(format!("{} is damaged: its ids do not have the sum in its header", self.path.display())))
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of ids; every token is below it.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Number of documents, which is the number of end-of-text tokens.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// Bytes of text (UTF-8) that the tokens stand for.
    pub fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// SHA-256 of the corpus, in hexadecimal.
    pub fn source_hash(&self) -> String {
        hex(&self.map[48..80])
    }

    /// SHA-256 of the tokenizer, in hexadecimal.
    pub fn tokenizer_hash(&self) -> String {
        hex(&self.map[80..112])
    }

    /// The tokens of `range`.
    ///
    /// # Panics
    /// If the range ends beyond the shard.
    pub fn tokens(&self, range: Range<usize>) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(range.len());
        self.append(range, &mut tokens);
        tokens
    }

    /// Appends the tokens of `range` to `tokens`.
    ///
    /// # Panics
    /// If the range ends beyond the shard.
    pub fn append(&self, range: Range<usize>, tokens: &mut Vec<u32>) {
        let width = if self.wide { 4 } else { 2 };
        let bytes = &self.map[HEADER + range.start * width..HEADER + range.end * width];
        if self.wide {
            tokens.extend(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        } else {
            tokens.extend(bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))));
        }
    }

    /// Calls `visit` with every token in order.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u32)) {
        let mut buffer = Vec::new();
        for start in (0..self.len).step_by(1 << 16) {
            buffer.clear();
            self.append(start..(start + (1 << 16)).min(self.len), &mut buffer);
            buffer.iter().copied().for_each(&mut visit);
        }
    }
}

/// Writes a shard document by document; the header is written last, so that an unfinished file is never taken for a shard.
pub struct ShardWriter {
    file: BufWriter<File>,
    path: PathBuf,
    vocabulary: usize,
    source_hash: [u8; 32],
    tokenizer_hash: [u8; 32],
    sum: Sha256,
    tokens: u64,
    documents: u64,
    text_bytes: u64,
    buffer: Vec<u8>,
}

impl ShardWriter {
    /// Begins a shard at `path`. Ids take two bytes each where `vocabulary` ids fit, else four.
    ///
    /// # Errors
    /// [`Error::Failed`] if the file cannot be written.
    pub fn create(
        path: &Path,
        vocabulary: usize,
        source_hash: [u8; 32],
        tokenizer_hash: [u8; 32],
    ) -> Result<Self, Error> {
        let mut file = BufWriter::new(File::create(path).map_err(|e| failed("create", path, e))?);
        file.write_all(&[0; HEADER]).map_err(|e| failed("write", path, e))?;
        Ok(Self {
            file,
            path: path.into(),
            vocabulary,
            source_hash,
            tokenizer_hash,
            sum: Sha256::new(),
            tokens: 0,
            documents: 0,
            text_bytes: 0,
            buffer: Vec::new(),
        })
    }

    fn wide(&self) -> bool {
        self.vocabulary > 1 << 16
    }

    /// Appends one document's tokens (with its end-of-text), which stand for `text_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Failed`] for an id that is not below the vocabulary, or if the file cannot be written.
    pub fn push(&mut self, tokens: &[u32], text_bytes: usize) -> Result<(), Error> {
        self.buffer.clear();
        for &id in tokens {
            if id as usize >= self.vocabulary {
                return Err(Error::Failed(format!(
                    "cannot write {}: the tokenizer gave id {id}, its vocabulary has {} ids",
                    self.path.display(),
                    self.vocabulary
                )));
            }
            let bytes = id.to_le_bytes();
            self.buffer.extend_from_slice(if self.wide() { &bytes } else { &bytes[..2] });
        }
        self.sum.update(&self.buffer);
        self.file.write_all(&self.buffer).map_err(|e| failed("write", &self.path, e))?;
        self.tokens += tokens.len() as u64;
        self.documents += 1;
        self.text_bytes += text_bytes as u64;
        Ok(())
    }

    /// Writes the header and syncs the file.
    ///
    /// # Errors
    /// [`Error::Failed`] if the file cannot be written.
    pub fn finish(self) -> Result<(), Error> {
        let width: u32 = if self.wide() { 4 } else { 2 };
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&width.to_le_bytes());
        for number in [self.vocabulary as u64, self.tokens, self.documents, self.text_bytes] {
            header.extend_from_slice(&number.to_le_bytes());
        }
        header.extend_from_slice(&self.source_hash);
        header.extend_from_slice(&self.tokenizer_hash);
        header.extend_from_slice(&self.sum.finalize());
        header.resize(CHECKED, 0);
        let sum = sha256(&header);
        header.extend_from_slice(&sum);
        let fail = |e: std::io::Error| failed("write", &self.path, e);
        let mut file = self.file.into_inner().map_err(|e| fail(e.into_error()))?;
        file.seek(SeekFrom::Start(0)).map_err(fail)?;
        file.write_all(&header).map_err(fail)?;
        file.sync_all().map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(path: &Path, vocabulary: usize, documents: &[&[u32]]) {
        let mut writer = ShardWriter::create(path, vocabulary, [1; 32], [2; 32]).unwrap();
        for tokens in documents {
            writer.push(tokens, 10).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn round_trip_in_both_widths() {
        let dir = tempfile::tempdir().unwrap();
        for (vocabulary, bytes_per_id) in [(65_536, 2), (65_537, 4)] {
            let path = dir.path().join("a.bin");
            write(&path, vocabulary, &[&[1, 65_535], &[3, 4, 5]]);
            let shard = Shard::open(&path).unwrap();
            shard.verify().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), 256 + 5 * bytes_per_id);
            assert_eq!((shard.len(), shard.documents(), shard.text_bytes()), (5, 2, 20));
            assert_eq!(shard.vocabulary(), vocabulary);
            assert_eq!(shard.tokens(0..5), [1, 65_535, 3, 4, 5]);
            assert_eq!(shard.tokens(1..3), [65_535, 3]);
            assert_eq!(shard.source_hash(), "01".repeat(32));
            assert_eq!(shard.tokenizer_hash(), "02".repeat(32));
            assert_eq!(crate::frequencies(&shard).iter().sum::<u64>(), 5);
        }
    }

    #[test]
    fn ids_outside_the_vocabulary_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = ShardWriter::create(&dir.path().join("a.bin"), 10, [0; 32], [0; 32]).unwrap();
        assert!(writer.push(&[9, 10], 1).unwrap_err().to_string().contains("id 10"));
    }

    #[test]
    fn damaged_and_foreign_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        write(&path, 100, &[&[1, 2, 3]]);
        let good = fs::read(&path).unwrap();
        let refusal = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = Shard::open(&path).and_then(|s| s.verify()).unwrap_err().to_string();
            assert!(error.contains("a.bin"), "{error}");
            error
        };
        assert!(refusal(&good[..good.len() - 1]).contains("truncated"));
        assert!(refusal(&[&good[..], &[0]].concat()).contains("added to"));
        assert!(refusal(&good[..100]).contains("does not begin with"));
        assert!(refusal(b"").contains("a.bin"));
        assert!(refusal(&[b'x'; 1000]).contains("does not begin with"));
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        assert!(refusal(&with(8, 9)).contains("format version 9"));
        assert!(refusal(&with(16, 99)).contains("header is damaged"));
        assert!(refusal(&with(256, 99)).contains("ids do not have the sum"));
        // A writer that was stopped leaves no header.
        let mut writer = ShardWriter::create(&path, 100, [0; 32], [0; 32]).unwrap();
        writer.push(&[1], 1).unwrap();
        drop(writer);
        assert!(Shard::open(&path).is_err());
        assert!(Shard::open(&dir.path().join("none.bin")).is_err());
    }
}
