//! Training and validation documents: by content, never by seed or order.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;

use crate::blocks::CutAt;
use crate::documents::blocks;
use crate::hash::sha256;
use crate::{Document, Error};

/// A corpus of fewer documents is split by blocks.
const FEWEST_DOCUMENTS: usize = 20;
const BLOCK_BYTES: usize = 8192;

/// Documents of each side in their order, and what was found on the way.
#[derive(Debug)]
pub(crate) struct Split {
    pub train: Vec<Document>,
    pub validation: Vec<Document>,
    pub exact_duplicates: usize,
    pub near_duplicates_across: usize,
    pub warnings: Vec<String>,
}

/// A document goes to validation if its content hash, read as a number in [0, 1), is below `fraction`.
pub(crate) fn split(mut documents: Vec<Document>, fraction: f64) -> Result<Split, Error> {
    let mut warnings = Vec::new();
    if documents.len() < FEWEST_DOCUMENTS {
        let whole = documents.len();
        let cut = |d: &Document| blocks(&d.name, &d.text, BLOCK_BYTES, CutAt::Whitespace);
        documents = documents.iter().flat_map(cut).filter(|d| !d.text.trim().is_empty()).collect();
        warnings.push(format!(
            "only {whole} documents: split into {} blocks of about 8 KiB, so that held-out text comes from documents that are \
             trained on",
            documents.len()
        ));
    }
    let hashes: Vec<[u8; 32]> = documents.par_iter().map(|d| sha256(d.text.as_bytes())).collect();
    let distinct: HashSet<_> = hashes.iter().collect();
    let exact_duplicates = documents.len() - distinct.len();
    let held_out: Vec<bool> = hashes.iter().map(|hash| position(hash) < fraction).collect();

    let normalised: Vec<[u8; 32]> = documents.par_iter().map(|d| sha256(normalise(&d.text).as_bytes())).collect();
    let mut sides: HashMap<_, [bool; 2]> = HashMap::new();
    for (hash, &side) in normalised.iter().zip(&held_out) {
        sides.entry(hash).or_default()[usize::from(side)] = true;
    }
    let across = |(hash, side): &(&[u8; 32], &bool)| **side && sides[*hash][0];
    let near_duplicates_across = normalised.iter().zip(&held_out).filter(across).count();
    if exact_duplicates > 0 {
        warnings.push(format!("{exact_duplicates} documents repeat another one; copies lie on one side of the split"));
    }
    if near_duplicates_across > 0 {
        warnings.push(format!(
            "{near_duplicates_across} validation documents differ from a training document only in case or white space"
        ));
    }

    let (mut train, mut validation) = (Vec::new(), Vec::new());
    for (document, held_out) in documents.into_iter().zip(held_out) {
        if held_out { validation.push(document) } else { train.push(document) }
    }
    for (side, name, other) in [(&train, "training", "lower"), (&validation, "validation", "raise")] {
        if side.is_empty() {
            return Err(Error::Input(format!(
                "the {name} split is empty: data.validation_fraction = {fraction} of {} documents; {other} \
                 data.validation_fraction or use a corpus of more text",
                train.len() + validation.len()
            )));
        }
    }
    let bytes = |side: &[Document]| side.iter().map(|d| d.text.len()).sum::<usize>() as f64;
    let share = bytes(&validation) / (bytes(&train) + bytes(&validation));
    if !(fraction / 2.0..=fraction * 2.0).contains(&share) {
        warnings.push(format!(
            "validation holds {:.1} % of the bytes where {:.1} % were asked for: few or very unequal documents",
            100.0 * share,
            100.0 * fraction
        ));
    }
    Ok(Split { train, validation, exact_duplicates, near_duplicates_across, warnings })
}

/// The hash as a number in [0, 1), from its first 53 bits.
fn position(hash: &[u8; 32]) -> f64 {
    let head = hash[..8].iter().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
    (head >> 11) as f64 / (1u64 << 53) as f64
}

/// Lower case, white space as single blanks.
fn normalise(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(n: usize) -> Vec<Document> {
        (0..n).map(|i| Document { name: format!("{i}"), text: format!("Document {i}.") }).collect()
    }

    #[test]
    fn order_does_not_matter() {
        let forward = split(documents(400), 0.1).unwrap();
        let mut backward = documents(400);
        backward.reverse();
        let mut validation = split(backward, 0.1).unwrap().validation;
        validation.reverse();
        assert_eq!(validation, forward.validation);
        // Binomial(400, 0.1): standard deviation 6.
        assert!(forward.validation.len().abs_diff(40) < 30, "{}", forward.validation.len());
        // More held out never moves a document back.
        let more = split(documents(400), 0.2).unwrap().validation;
        assert!(forward.validation.iter().all(|d| more.contains(d)));
    }

    #[test]
    fn duplicates_are_counted_and_exact_ones_stay_together() {
        let mut all = documents(400);
        all.extend(documents(400));
        let once = split(documents(400), 0.1).unwrap();
        let twice = split(all, 0.1).unwrap();
        assert_eq!(once.exact_duplicates, 0);
        assert_eq!(twice.exact_duplicates, 400);
        assert_eq!(twice.validation.len(), 2 * once.validation.len());
        assert_eq!(twice.near_duplicates_across, 0);
        let mut near = documents(400);
        near.extend(
            documents(400).into_iter().map(|d| Document { text: d.text.replace(' ', "\n ").to_uppercase(), ..d }),
        );
        let near = split(near, 0.1).unwrap();
        assert_eq!(near.exact_duplicates, 0);
        assert!(near.near_duplicates_across > 20, "{}", near.near_duplicates_across);
        assert!(near.warnings.iter().any(|w| w.contains("white space")));
    }

    #[test]
    fn few_documents_become_blocks_that_are_the_text() {
        let text = (0..100_000).map(|i| format!("word{i} ")).collect::<String>();
        let one = vec![Document { name: "a".into(), text: text.clone() }];
        let split = split(one, 0.2).unwrap();
        assert!(split.warnings[0].contains("only 1 documents"));
        let mut all = [split.train, split.validation].concat();
        all.sort_by_key(|d| d.name.split('#').nth(1).map(|n| n.parse::<usize>().unwrap()));
        assert_eq!(all.iter().map(|d| d.text.as_str()).collect::<String>(), text);
    }

    #[test]
    fn an_empty_side_is_refused() {
        let error = split(documents(1), 0.5).unwrap_err().to_string();
        assert!(error.contains("split is empty") && error.contains("validation_fraction"), "{error}");
    }
}
