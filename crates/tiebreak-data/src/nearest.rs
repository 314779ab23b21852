//! What a misspelt word may have meant.

/// The candidate nearest to `word`, if any is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A beginning is more likely meant than a word of like letters.
    let score = |c: &str| strsim::normalized_damerau_levenshtein(word, c) + f64::from(u8::from(begins(word, c)));
    let scored = candidates.map(|c| (score(c), c));
    scored.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(score, _)| *score > 0.4).map(|(_, c)| c)
}

fn begins(word: &str, candidate: &str) -> bool {
    word.chars().count() >= 3 && candidate.starts_with(word)
}

/// `; did you mean "x"?`, or nothing where no candidate is near: the end of an error message.
pub fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_suggested() {
        let known = ["tied", "untied"];
        assert_eq!(nearest("teid", known.into_iter()), Some("tied"));
        assert_eq!(nearest("zzz", known.into_iter()), None);
        assert_eq!(did_you_mean("utied", known.into_iter()), "; did you mean \"untied\"?");
        assert_eq!(did_you_mean("zzz", known.into_iter()), "");
        let experiments = ["5_gradient_flow", "6_gradient_scaling"];
        assert_eq!(nearest("6_gradient", experiments.into_iter()), Some("6_gradient_scaling"));
        assert_eq!(nearest("tied", std::iter::empty()), None);
    }
}
