//! A generated language, for when no real text is at hand: always the same text, on every platform.
//!
//! Only integers are drawn, so nothing depends on floating point. What there is to learn, from near to far: spelling; which
//! adjective goes with which noun and which object with which verb; determiners that agree with the class and number of a noun
//! still to come; verbs that agree with the number of a subject that stands several words back; names that return in a document;
//! a document's topic. Words of every kind are Zipfian.

use crate::Document;
use crate::rng::Stream;

const SEED: u64 = 1;
const BYTES: usize = 2_000_000;
const TOPICS: usize = 24;
const CLASSES: usize = 3;

/// The documents of the corpus `synthetic`: about 2 MB of text.
pub fn synthetic_documents() -> Vec<Document> {
    let language = Language::new();
    let mut documents = Vec::new();
    let mut bytes = 0;
    while bytes < BYTES {
        let text = Writer::new(&language, documents.len()).document();
        bytes += text.len();
        documents.push(Document { name: format!("synthetic#{}", documents.len() + 1), text });
    }
    documents
}

/// Draws ranks 0..n with weights 1 / (rank + 2).
struct Zipf {
    cumulative: Vec<u64>,
}

impl Zipf {
    fn new(n: usize) -> Self {
        let mut total = 0;
        let weight = |rank: usize| {
            total += (1u64 << 40) / (rank as u64 + 2);
            total
        };
        Self { cumulative: (0..n).map(weight).collect() }
    }

    fn draw(&self, stream: &mut Stream) -> usize {
        let point = stream.below(self.cumulative[self.cumulative.len() - 1]);
        self.cumulative.partition_point(|&c| c <= point)
    }
}

struct Noun {
    /// Singular and plural.
    forms: [String; 2],
    class: usize,
    adjectives: [usize; 3],
}

struct Verb {
    /// For a singular and for a plural subject.
    forms: [String; 2],
    objects: [usize; 5],
    adverb: usize,
    preposition: usize,
    transitive: bool,
}

struct Language {
    nouns: Vec<Noun>,
    verbs: Vec<Verb>,
    adjectives: Vec<String>,
    adverbs: Vec<String>,
    names: Vec<String>,
    prepositions: Vec<String>,
    conjunctions: Vec<String>,
    question: String,
    /// By definiteness, class and number.
    determiners: Vec<String>,
    /// Nouns and verbs of each topic.
    topics: Vec<(Vec<usize>, Vec<usize>)>,
    noun_ranks: Zipf,
    verb_ranks: Zipf,
    topic_noun_ranks: Zipf,
    topic_verb_ranks: Zipf,
    adjective_ranks: Zipf,
    small_ranks: Zipf,
    name_ranks: Zipf,
}

/// Makes words that differ from each other.
struct Coiner {
    stream: Stream,
    taken: std::collections::HashSet<String>,
}

impl Coiner {
    fn word(&mut self, syllables: u64) -> String {
        const ONSETS: [&str; 20] =
            ["b", "br", "d", "dr", "f", "g", "gl", "h", "k", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "tr", "v"];
        const VOWELS: [&str; 7] = ["a", "e", "i", "o", "u", "ai", "ou"];
        const CODAS: [&str; 8] = ["", "", "", "n", "r", "l", "s", "m"];
        loop {
            let mut word = String::new();
            for _ in 0..syllables {
                for parts in [&ONSETS[..], &VOWELS, &CODAS] {
                    word.push_str(parts[self.stream.below(parts.len() as u64) as usize]);
                }
            }
            if self.taken.insert(word.clone()) {
                return word;
            }
        }
    }

    fn words(&mut self, n: usize, shortest: u64, longest: u64) -> Vec<String> {
        // Frequent words, which come first, are short. (There are 840 words of one syllable: no kind may ask for many.)
        let syllables = |i: usize| match i {
            _ if i < n / 10 => shortest,
            _ if i < n / 2 => (shortest + 1).min(longest),
            _ => longest,
        };
        (0..n).map(|i| self.word(syllables(i))).collect()
    }
}

fn pick<const N: usize>(stream: &mut Stream, n: usize) -> [usize; N] {
    std::array::from_fn(|_| stream.below(n as u64) as usize)
}

impl Language {
    fn new() -> Self {
        let mut coin = Coiner { stream: Stream::new(SEED, "synthetic/words"), taken: Default::default() };
        let determiners = coin.words(4 * CLASSES, 1, 1);
        let conjunctions = coin.words(4, 1, 1);
        let prepositions = coin.words(10, 1, 1);
        let question = coin.word(1);
        let stems = coin.words(2000, 1, 3);
        let adjectives = coin.words(700, 2, 3);
        let adverbs = coin.words(200, 2, 3);
        let verb_stems = coin.words(800, 1, 3);
        let names = coin.words(300, 2, 3);

        let mut stream = Stream::new(SEED, "synthetic/grammar");
        let nouns: Vec<Noun> = stems
            .into_iter()
            .map(|stem| {
                let class = stream.below(CLASSES as u64) as usize;
                let plural = format!("{stem}{}", ["ek", "im", "o"][class]);
                Noun { forms: [stem, plural], class, adjectives: pick(&mut stream, adjectives.len()) }
            })
            .collect();
        let verbs: Vec<Verb> = verb_stems
            .into_iter()
            .map(|stem| Verb {
                forms: [format!("{stem}ta"), format!("{stem}nu")],
                objects: pick(&mut stream, nouns.len()),
                adverb: stream.below(adverbs.len() as u64) as usize,
                preposition: stream.below(prepositions.len() as u64) as usize,
                transitive: stream.below(3) > 0,
            })
            .collect();
        let topics = (0..TOPICS)
            .map(|_| {
                let mut some =
                    |n: usize, of: usize| (0..n).map(|_| stream.below(of as u64) as usize).collect::<Vec<_>>();
                (some(150, nouns.len()), some(60, verbs.len()))
            })
            .collect();
        Self {
            noun_ranks: Zipf::new(nouns.len()),
            verb_ranks: Zipf::new(verbs.len()),
            topic_noun_ranks: Zipf::new(150),
            topic_verb_ranks: Zipf::new(60),
            adjective_ranks: Zipf::new(adjectives.len()),
            small_ranks: Zipf::new(conjunctions.len()),
            name_ranks: Zipf::new(names.len()),
            nouns,
            verbs,
            adjectives,
            adverbs,
            names: names.iter().map(|name| capital(name)).collect(),
            prepositions,
            conjunctions,
            question,
            determiners,
            topics,
        }
    }
}

/// `word` with its first letter, which is ASCII, in upper case.
fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + chars.as_str())
}

struct Writer<'a> {
    language: &'a Language,
    stream: Stream,
    topic: usize,
    cast: [usize; 3],
}

impl<'a> Writer<'a> {
    fn new(language: &'a Language, number: usize) -> Self {
        let mut stream = Stream::new(SEED, &format!("synthetic/document/{number}"));
        let topic = stream.below(TOPICS as u64) as usize;
        let cast = std::array::from_fn(|_| language.name_ranks.draw(&mut stream));
        Self { language, stream, topic, cast }
    }

    /// True `percent` times in a hundred.
    fn chance(&mut self, percent: u64) -> bool {
        self.stream.below(100) < percent
    }

    fn document(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..4 + self.stream.below(14) {
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            for sentence in 0..2 + self.stream.below(6) {
                if sentence > 0 {
                    text.push(' ');
                }
                text.push_str(&self.sentence());
            }
        }
        text.push('\n');
        text
    }

    fn sentence(&mut self) -> String {
        let mut words = Vec::new();
        let question = self.chance(10);
        if question {
            words.push(self.language.question.clone());
        }
        self.clause(&mut words);
        if self.chance(30) {
            if let Some(last) = words.last_mut() {
                last.push(',');
            }
            words.push(self.language.conjunctions[self.language.small_ranks.draw(&mut self.stream)].clone());
            self.clause(&mut words);
        }
        let end = if question { "?" } else { "." };
        capital(&words.join(" ")) + end
    }

    fn clause(&mut self, words: &mut Vec<String>) {
        let language = self.language;
        let number = if self.chance(20) {
            words.push(language.names[self.cast[self.stream.below(3) as usize]].clone());
            0
        } else {
            let noun = self.noun();
            let number = usize::from(self.chance(40));
            self.noun_phrase(noun, number, words);
            // Its noun stands between the subject and the verb that agrees with the subject.
            if self.chance(30) {
                let preposition = self.stream.below(language.prepositions.len() as u64) as usize;
                self.prepositional(preposition, words);
            }
            number
        };
        let verb = if self.chance(70) {
            language.topics[self.topic].1[language.topic_verb_ranks.draw(&mut self.stream)]
        } else {
            language.verb_ranks.draw(&mut self.stream)
        };
        let verb = &language.verbs[verb];
        words.push(verb.forms[number].clone());
        if self.chance(15) {
            let adverb =
                if self.chance(60) { verb.adverb } else { self.stream.below(language.adverbs.len() as u64) as usize };
            words.push(language.adverbs[adverb].clone());
        }
        if verb.transitive {
            let object = if self.chance(50) { verb.objects[self.stream.below(5) as usize] } else { self.noun() };
            let number = usize::from(self.chance(40));
            self.noun_phrase(object, number, words);
        } else if self.chance(60) {
            self.prepositional(verb.preposition, words);
        }
    }

    fn noun(&mut self) -> usize {
        if self.chance(70) {
            self.language.topics[self.topic].0[self.language.topic_noun_ranks.draw(&mut self.stream)]
        } else {
            self.language.noun_ranks.draw(&mut self.stream)
        }
    }

    fn noun_phrase(&mut self, noun: usize, number: usize, words: &mut Vec<String>) {
        let language = self.language;
        let noun = &language.nouns[noun];
        let definite = usize::from(self.chance(60));
        words.push(language.determiners[(definite * CLASSES + noun.class) * 2 + number].clone());
        if self.chance(35) {
            let adjective = if self.chance(70) {
                noun.adjectives[self.stream.below(3) as usize]
            } else {
                language.adjective_ranks.draw(&mut self.stream)
            };
            words.push(language.adjectives[adjective].clone());
        }
        words.push(noun.forms[number].clone());
    }

    fn prepositional(&mut self, preposition: usize, words: &mut Vec<String>) {
        words.push(self.language.prepositions[preposition].clone());
        let noun = self.noun();
        let number = usize::from(self.chance(40));
        self.noun_phrase(noun, number, words);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::hash::sha256_hex;

    #[test]
    fn the_text_is_pinned_and_looks_like_language() {
        let documents = synthetic_documents();
        let texts: Vec<&str> = documents.iter().map(|d| d.text.as_str()).collect();
        let text = texts.concat();
        assert_eq!(sha256_hex(text.as_bytes()), "6f04b65243e20fdf02650287fc5c63909340f7c666ea20727c2eeecc30a122c0");
        assert!((2_000_000..2_020_000).contains(&text.len()));
        assert!(documents.len() >= 200, "{}", documents.len());

        let mut counts: HashMap<&str, usize> = HashMap::new();
        let mut words = 0;
        for word in text.split(|c: char| !c.is_ascii_alphabetic()).filter(|w| !w.is_empty()) {
            *counts.entry(word).or_default() += 1;
            words += 1;
        }
        let mut sorted: Vec<usize> = counts.into_values().collect();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        assert!(sorted.len() > 5000, "{} different words", sorted.len());
        // Zipf: the 10 most frequent words are a sixth to a half of the text, and an eighth of the words are rare.
        let head: usize = sorted[..10].iter().sum();
        assert!((0.16..0.5).contains(&(head as f64 / words as f64)), "{head} of {words}");
        let rare = sorted.iter().filter(|&&n| n <= 5).count();
        assert!(rare > sorted.len() / 8, "{rare} of {} are rare", sorted.len());
    }
}
