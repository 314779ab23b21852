//! Text to ids and back.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use rayon::prelude::*;
use tiktoken_rs::{CoreBPE, r50k_base_singleton};
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};

use crate::config::LARGEST_BPE;
use crate::hash::sha256_hex;
use crate::{Document, Error};

/// Name of the end-of-text token that a trained tokenizer gets, after GPT-2's.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Special tokens that end a text, in order of preference.
const ENDS: [&str; 7] = [END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>", "[EOS]", "<|eos|>", "<|endofdocument|>"];

/// Pairs of rarer tokens than this are not merged: what was seen once is a memory, not a regularity.
const RAREST_MERGE: u64 = 2;

/// Number of ids of [`Tokenizer::bytes`]: one per byte, and end-of-text.
pub(crate) const BYTES_IDS: usize = 257;
/// Number of ids of [`Tokenizer::gpt2`], of which end-of-text is the last.
pub(crate) const GPT2_IDS: usize = 50_257;

/// Maps text to ids below [`vocabulary`](Self::vocabulary) and back. End-of-text is an id of its own that no text encodes to.
pub struct Tokenizer {
    kind: Kind,
    vocabulary: usize,
    end_of_text: u32,
    hash: String,
}

enum Kind {
    Bytes,
    Gpt2(&'static CoreBPE),
    File(Box<FileTokenizer>),
}

struct FileTokenizer {
    inner: tokenizers::Tokenizer,
    /// The tokenizer.json this was read from.
    json: Vec<u8>,
    /// What each id stands for.
    bytes: Vec<Vec<u8>>,
    byte_level: bool,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} ids, end-of-text {}, {})", self.vocabulary, self.end_of_text, self.hash)
    }
}

impl Tokenizer {
    /// One id per byte; end-of-text is 256.
    pub fn bytes() -> Self {
        Self { kind: Kind::Bytes, vocabulary: BYTES_IDS, end_of_text: 256, hash: sha256_hex(b"tiebreak bytes 1") }
    }

    /// GPT-2's 50,257 ids; end-of-text is 50256.
    pub fn gpt2() -> Self {
        let bpe = r50k_base_singleton();
        let mut ranks = Vec::new();
        let end_of_text = GPT2_IDS as u32 - 1;
        for id in 0..end_of_text {
            let bytes = bpe.decode_bytes(&[id]).unwrap_or_default();
            ranks.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            ranks.extend(bytes);
        }
        Self { kind: Kind::Gpt2(bpe), vocabulary: GPT2_IDS, end_of_text, hash: sha256_hex(&ranks) }
    }

    /// Trains byte-level BPE of exactly `vocabulary` ids: 256 bytes, merges, and end-of-text as the last id.
    ///
    /// # Errors
    /// [`Error::Input`] if `documents` allow fewer merges; it says how many ids are possible.
    pub fn train(documents: &[Document], vocabulary: usize) -> Result<Self, Error> {
        let failed = |e: tokenizers::Error| Error::Failed(format!("cannot train the tokenizer bpe:{vocabulary}: {e}"));
        let byte_level = ByteLevel::new(false, false, true);
        let mut inner = TokenizerBuilder::<BPE, NormalizerWrapper, ByteLevel, ByteLevel, ByteLevel>::new()
            .with_model(BPE::default())
            .with_pre_tokenizer(Some(byte_level))
            .with_post_processor(Some(byte_level))
            .with_decoder(Some(byte_level))
            .build()
            .map_err(failed)?;
        let mut trainer = BpeTrainerBuilder::new()
            .vocab_size(vocabulary - 1)
            .min_frequency(RAREST_MERGE)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .show_progress(false)
            .build();
        inner.train(&mut trainer, documents.iter().map(|d| d.text.as_str())).map_err(failed)?;
        let possible = inner.get_vocab_size(false) + 1;
        if possible < vocabulary {
            return Err(Error::Input(format!(
                "data.tokenizer = \"bpe:{vocabulary}\": the training split has pairs for {possible} ids only; use bpe:{possible} or \
                 less, or more text"
            )));
        }
        inner.add_special_tokens([AddedToken::from(END_OF_TEXT, true)]).map_err(failed)?;
        let json = inner.to_string(false).map_err(failed)?;
        Self::from_json(json.into_bytes(), "the trained tokenizer")
    }

    /// Reads a tokenizer.json.
    ///
    /// # Errors
    /// [`Error::Input`] for a file that cannot be read, is no tokenizer, or lacks ids that are needed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let json =
            fs::read(path).map_err(|e| Error::Input(format!("data.tokenizer: cannot read {}: {e}", path.display())))?;
        Self::from_json(json, &path.display().to_string())
    }

    fn from_json(json: Vec<u8>, what: &str) -> Result<Self, Error> {
        let bad = |why: String| Error::Input(format!("{what} is no usable tokenizer: {why}"));
        let value: serde_json::Value = serde_json::from_slice(&json).map_err(|e| bad(format!("no JSON: {e}")))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(&json).map_err(|e| bad(e.to_string()))?;
        // The text itself never means a special token, and a file's wish to cut or pad texts is not ours.
        inner.set_encode_special_tokens(true);
        inner.with_truncation(None).map_err(|e| bad(e.to_string()))?;
        inner.with_padding(None);
        let vocabulary: HashMap<String, u32> = inner.get_vocab(true);
        // Ids become rows of tables: a damaged one would ask for more memory than there is.
        let size = match vocabulary.iter().max_by_key(|(_, id)| **id) {
            Some((token, &id)) if id as usize >= LARGEST_BPE => {
                return Err(bad(format!("the token {token:?} has the id {id}, expected ids below {LARGEST_BPE}")));
            }
            largest => largest.map_or(0, |(_, &id)| id as usize + 1),
        };
        let Some(end_of_text) = ENDS.iter().find_map(|name| vocabulary.get(*name).copied()) else {
            return Err(bad(format!("it has no token that ends a text; expected one of {}", ENDS.join(", "))));
        };
        let byte_level = mentions(&value["decoder"], "ByteLevel");
        let chars = byte_chars();
        if byte_level {
            let missing = chars.keys().filter(|c| !vocabulary.contains_key(c.to_string().as_str())).count();
            if missing > 0 {
                return Err(bad(format!("it is byte-level, but {missing} of the 256 bytes have no id")));
            }
        }
        let added = inner.get_added_tokens_decoder();
        let mut bytes = vec![Vec::new(); size];
        for (token, &id) in &vocabulary {
            if id == end_of_text {
                continue;
            }
            bytes[id as usize] = if added.contains_key(&id) {
                token.clone().into_bytes()
            } else if byte_level {
                token
                    .chars()
                    .flat_map(|c| chars.get(&c).map_or_else(|| c.to_string().into_bytes(), |&b| vec![b]))
                    .collect()
            } else {
                plain_bytes(token)
            };
        }
        let hash = sha256_hex(&json);
        let kind = Kind::File(Box::new(FileTokenizer { inner, json, bytes, byte_level }));
        Ok(Self { kind, vocabulary: size, end_of_text, hash })
    }

    /// Number of ids, end-of-text among them.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The id that follows every document.
    pub fn end_of_text(&self) -> u32 {
        self.end_of_text
    }

    /// SHA-256 of what the tokenizer is, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The tokenizer.json, where there is one.
    pub fn json(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::File(file) => Some(&file.json),
            _ => None,
        }
    }

    /// The ids of `text`, without end-of-text.
    ///
    /// # Errors
    /// [`Error::Input`] if a tokenizer.json cannot express the text.
    pub fn try_encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        match &self.kind {
            Kind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Kind::Gpt2(bpe) => Ok(short_blanks(text).into_iter().flat_map(|part| bpe.encode_ordinary(part)).collect()),
            Kind::File(file) => match file.inner.encode_fast(text, false) {
                Ok(encoding) => Ok(encoding.get_ids().to_vec()),
                Err(e) => Err(Error::Input(format!("the tokenizer cannot encode the text: {e}"))),
            },
        }
    }

    /// As [`try_encode`](Self::try_encode), for tokenizers that can express any text (all but some tokenizer.json files); where one
    /// cannot, the error is logged and there are no ids.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.try_encode(text).unwrap_or_else(|e| {
            tracing::error!("{e}");
            Vec::new()
        })
    }

    /// The text that `ids` stand for; bytes that are no UTF-8 become U+FFFD, and end-of-text nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        if let Kind::File(file) = &self.kind
            && !file.byte_level
        {
            return file.inner.decode(ids, true).unwrap_or_default();
        }
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether a text is its tokens' bytes one after the other, which some tokenizer.json files do not promise.
    pub(crate) fn joins_bytes(&self) -> bool {
        !matches!(&self.kind, Kind::File(file) if !file.byte_level)
    }

    /// The bytes that `id` stands for: none for end-of-text and for ids beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        if id == self.end_of_text {
            return Vec::new();
        }
        match &self.kind {
            Kind::Bytes => u8::try_from(id).map(|b| vec![b]).unwrap_or_default(),
            Kind::Gpt2(bpe) => bpe.decode_bytes(&[id]).unwrap_or_default(),
            Kind::File(file) => file.bytes.get(id as usize).cloned().unwrap_or_default(),
        }
    }

    /// Ids of each document, end-of-text included, on all cores.
    pub(crate) fn encode_documents(&self, documents: &[Document]) -> Result<Vec<Vec<u32>>, Error> {
        let encode = |document: &Document| {
            let mut ids = self.try_encode(&document.text).map_err(|e| match e {
                Error::Input(m) | Error::Failed(m) => Error::Input(format!("{}: {m}", document.name)),
            })?;
            ids.push(self.end_of_text);
            Ok(ids)
        };
        documents.par_iter().map(encode).collect()
    }
}

/// `text` in parts that hold no more than this many blanks in a row: GPT-2's pattern backtracks over them, and its crate panics when
/// the stack is full.
fn short_blanks(text: &str) -> Vec<&str> {
    const LONGEST: usize = 10_000;
    let (mut parts, mut start, mut run) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        if run > LONGEST {
            parts.push(&text[start..i]);
            (start, run) = (i, 1);
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Whether a component of a tokenizer.json, or of a sequence of them, has the type `kind`.
fn mentions(value: &serde_json::Value, kind: &str) -> bool {
    match value {
        serde_json::Value::Object(map) => {
            map.get("type").is_some_and(|t| t == kind) || map.values().any(|v| mentions(v, kind))
        }
        serde_json::Value::Array(list) => list.iter().any(|v| mentions(v, kind)),
        _ => false,
    }
}

/// The printable character that stands for each byte in byte-level vocabularies: itself where it is printable Latin-1, else the
/// next one from U+0100.
fn byte_chars() -> HashMap<char, u8> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (char::from(byte), byte),
            _ => {
                next += 1;
                // 68 code points from U+0100 are all characters.
                (char::from_u32(next - 1).unwrap_or('\u{fffd}'), byte)
            }
        })
        .collect()
}

/// The bytes of a token of a tokenizer that is not byte-level: `<0x0A>` is a byte and U+2581 a blank.
fn plain_bytes(token: &str) -> Vec<u8> {
    let byte = token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')).and_then(|t| u8::from_str_radix(t, 16).ok());
    byte.map_or_else(|| token.replace('\u{2581}', " ").into_bytes(), |b| vec![b])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents() -> Vec<Document> {
        (0..50)
            .map(|i| Document {
                name: format!("{i}"),
                text: format!("The {i} quick foxes jumped; the lazy dogs — all {} of them — slept.\n", i * i),
            })
            .collect()
    }

    #[test]
    fn all_kinds_round_trip_any_text() {
        let text = "Hello world,\r\n\tmoté 語 \u{0}<|endoftext|> 🎉  x";
        for (tokenizer, vocabulary) in [
            (Tokenizer::bytes(), 257),
            (Tokenizer::gpt2(), 50_257),
            (Tokenizer::train(&documents(), 300).unwrap(), 300),
        ] {
            assert_eq!(tokenizer.vocabulary(), vocabulary);
            assert_eq!(tokenizer.end_of_text() as usize, vocabulary - 1);
            let ids = tokenizer.encode(text);
            assert!(ids.iter().all(|&id| id < tokenizer.end_of_text()), "the text holds no end-of-text");
            assert_eq!(tokenizer.decode(&ids), text);
            let bytes: usize = ids.iter().map(|&id| tokenizer.token_bytes(id).len()).sum();
            assert_eq!(bytes, text.len());
            assert!(tokenizer.token_bytes(tokenizer.end_of_text()).is_empty());
            assert!(tokenizer.token_bytes(vocabulary as u32).is_empty());
            assert_eq!(tokenizer.hash().len(), 64);
        }
        assert_eq!(Tokenizer::gpt2().encode("Hello world"), [15496, 995]);
    }

    #[test]
    fn endless_blanks_are_no_trouble() {
        let text = format!("a{}b", " \n".repeat(500_000));
        let tokenizer = Tokenizer::gpt2();
        assert_eq!(tokenizer.decode(&tokenizer.encode(&text)), text);
        assert_eq!(short_blanks("a  b"), ["a  b"]);
    }

    #[test]
    fn training_is_deterministic_and_depends_on_the_text() {
        let one = Tokenizer::train(&documents(), 300).unwrap();
        let mut backwards = documents();
        backwards.reverse();
        assert_eq!(one.hash(), Tokenizer::train(&documents(), 300).unwrap().hash());
        assert_eq!(one.hash(), Tokenizer::train(&backwards, 300).unwrap().hash());
        let other = documents().into_iter().map(|d| Document { text: d.text.replace("foxes", "geese"), ..d });
        assert_ne!(one.hash(), Tokenizer::train(&other.collect::<Vec<_>>(), 300).unwrap().hash());
        // Ids 0..256 are the bytes.
        let mut bytes: Vec<u8> = (0..256).flat_map(|id| one.token_bytes(id)).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn too_many_merges_are_refused_with_the_number_possible() {
        let error = Tokenizer::train(&documents(), 50_000).unwrap_err().to_string();
        let possible: usize = error.split("pairs for ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(Tokenizer::train(&documents(), possible).is_ok());
        assert!(Tokenizer::train(&documents(), possible + 1).is_err());
    }

    #[test]
    fn tokenizer_files_are_read_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let trained = Tokenizer::train(&documents(), 300).unwrap();
        fs::write(&path, trained.json().unwrap()).unwrap();
        let read = Tokenizer::open(&path).unwrap();
        assert_eq!(read.hash(), trained.hash());
        assert_eq!(read.encode("the lazy dogs"), trained.encode("the lazy dogs"));
        let json = String::from_utf8(trained.json().unwrap().to_vec()).unwrap();
        let refusal = |json: &str| {
            fs::write(&path, json).unwrap();
            let error = Tokenizer::open(&path).unwrap_err().to_string();
            assert!(error.contains("tokenizer.json"), "{error}");
            error
        };
        assert!(refusal(&json.replace(END_OF_TEXT, "<other>")).contains("no token that ends a text"));
        assert!(refusal(&json.replacen("\"!\":0,", "", 1)).contains("1 of the 256 bytes"));
        assert!(refusal(&json[..100]).contains("no JSON"));
        assert!(refusal("{}").contains("no usable tokenizer"));
        assert!(Tokenizer::open(&dir.path().join("none.json")).unwrap_err().to_string().contains("none.json"));
    }

    #[test]
    fn an_id_beyond_any_vocabulary_is_refused_before_it_takes_memory() {
        let json = String::from_utf8(Tokenizer::train(&documents(), 300).unwrap().json().unwrap().to_vec()).unwrap();
        for id in [4_294_967_294, LARGEST_BPE] {
            let bad = json.replacen("\"!\":0,", &format!("\"!\":{id},"), 1);
            let error = Tokenizer::from_json(bad.into(), "tokenizer.json").unwrap_err();
            let Error::Input(message) = &error else { panic!("{error:?}") };
            assert!(message.contains("tokenizer.json") && message.contains(&format!("id {id}")), "{message}");
        }
    }

    #[test]
    fn word_tokenizers_keep_their_end_and_do_not_cut_texts() {
        let json = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
            "padding":null,"added_tokens":[{"id":3,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,
            "normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,
            "decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"[UNK]":2},"unk_token":"[UNK]"}}"#;
        let tokenizer = Tokenizer::from_json(json.into(), "x").unwrap();
        assert_eq!((tokenizer.vocabulary(), tokenizer.end_of_text()), (4, 3));
        assert_eq!(tokenizer.encode("a b c a"), [0, 1, 2, 0]);
        assert_eq!(plain_bytes("\u{2581}x"), b" x");
        assert_eq!(plain_bytes("<0x0A>"), b"\n");
    }
}
