//! Ids to text while they come.

use crate::Tokenizer;

/// Ids that a decoder of whole texts is shown before the new ones, as what it makes of a token may depend on the last.
const CONTEXT: usize = 8;

/// The text of ids that come one at a time. An id may be part of a character: its bytes are held until they make one.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    state: State,
}

enum State {
    /// Ids are bytes: those that make no whole character yet.
    Bytes(Vec<u8>),
    /// Ids are known by what the tokenizer makes of several: those since the last text but one, of which `told` are told.
    Joined { ids: Vec<u32>, told: usize },
}

impl<'a> TextStream<'a> {
    /// The stream of what follows `before`, whose own text is not told again.
    pub fn after(tokenizer: &'a Tokenizer, before: &[u32]) -> Self {
        let state = match tokenizer.joins_bytes() {
            true => State::Bytes(Vec::new()),
            false => {
                let ids = before[before.len().saturating_sub(CONTEXT)..].to_vec();
                State::Joined { told: ids.len(), ids }
            }
        };
        Self { tokenizer, state }
    }

    /// The text that is certain now that `id` follows; bytes that cannot become a character are U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        match &mut self.state {
            State::Bytes(held) => {
                held.extend(self.tokenizer.token_bytes(id));
                let whole = whole_characters(held);
                let text = String::from_utf8_lossy(&held[..whole]).into_owned();
                held.drain(..whole);
                text
            }
            State::Joined { ids, told } => {
                ids.push(id);
                let new = beyond(self.tokenizer, ids, *told);
                if new.is_empty() || new.ends_with(char::REPLACEMENT_CHARACTER) {
                    return String::new();
                }
                ids.drain(..*told);
                *told = ids.len();
                new
            }
        }
    }

    /// What is left at the end: U+FFFD where a character was begun.
    pub fn finish(self) -> String {
        match self.state {
            State::Bytes(held) => String::from_utf8_lossy(&held).into_owned(),
            State::Joined { ids, told } => beyond(self.tokenizer, &ids, told),
        }
    }
}

/// The text that the ids from `told` on add to that of the earlier ones.
fn beyond(tokenizer: &Tokenizer, ids: &[u32], told: usize) -> String {
    let (before, all) = (tokenizer.decode(&ids[..told]), tokenizer.decode(ids));
    all.get(before.len()..).unwrap_or_default().to_owned()
}

/// Length of the start of `bytes` that later ones cannot change.
fn whole_characters(bytes: &[u8]) -> usize {
    let mut start = 0;
    while let Err(e) = std::str::from_utf8(&bytes[start..]) {
        start += e.valid_up_to();
        match e.error_len() {
            Some(wrong) => start += wrong,
            None => return start,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(tokenizer: &Tokenizer, before: &[u32], ids: &[u32]) -> (Vec<String>, String) {
        let mut stream = TextStream::after(tokenizer, before);
        let parts = ids.iter().map(|&id| stream.push(id)).collect();
        (parts, stream.finish())
    }

    #[test]
    fn bytes_wait_for_their_character() {
        let bytes = Tokenizer::bytes();
        let ids: Vec<u32> = "a한🎉".bytes().map(u32::from).collect();
        let (parts, rest) = streamed(&bytes, &[], &ids);
        assert_eq!(parts, ["a", "", "", "한", "", "", "", "🎉"]);
        assert_eq!(rest, "");
        // A character that is broken off, and one that never comes.
        let (parts, rest) = streamed(&bytes, &[], &[0xed, 0x95, u32::from(b'x'), 0xff, 0xf0, 0x9f]);
        assert_eq!((parts.concat().as_str(), rest.as_str()), ("\u{fffd}x\u{fffd}", "\u{fffd}"));
        // End-of-text and ids beyond the vocabulary have no bytes.
        assert_eq!(streamed(&bytes, &[], &[256, 9999]), (vec![String::new(), String::new()], String::new()));
    }

    #[test]
    fn any_ids_give_the_text_of_the_whole() {
        let tokenizer = Tokenizer::gpt2();
        let mut state = 1u64;
        for _ in 0..200 {
            let ids: Vec<u32> = (0..20)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // Half of them single bytes, which lie below 256.
                    let id = (state >> 33) as u32;
                    if id.is_multiple_of(2) { id % 256 } else { id % 50_257 }
                })
                .collect();
            let (parts, rest) = streamed(&tokenizer, &[], &ids);
            assert_eq!(parts.concat() + &rest, tokenizer.decode(&ids));
        }
    }

    #[test]
    fn tokens_that_join_words_are_told_with_their_blanks() {
        // A word-piece vocabulary: no bytes, and "##" joins to the word before.
        let json = r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[
            {"id":4,"content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
            "normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,
            "decoder":{"type":"WordPiece","prefix":"##","cleanup":false},
            "model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,
            "vocab":{"[UNK]":0,"walk":1,"##ing":2,"home":3}}}"###;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, json).unwrap();
        let tokenizer = Tokenizer::open(&path).unwrap();
        let before = tokenizer.encode("walk");
        assert_eq!(before, [1]);
        let (parts, rest) = streamed(&tokenizer, &before, &[2, 3, 1, 2]);
        assert_eq!((parts.concat() + &rest).as_str(), "ing home walking");
    }
}
