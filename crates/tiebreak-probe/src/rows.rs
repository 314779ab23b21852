//! Which tokens a probe looks at.

use tiebreak_data::Error;

/// Ids of a vocabulary, ascending, and how often the training split holds each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    ids: Vec<u32>,
    counts: Vec<u64>,
    vocabulary: usize,
}

impl Rows {
    /// The ids that occur; `counts` has an entry per id of the vocabulary.
    ///
    /// # Errors
    /// [`Error::Input`] if none occurs.
    pub fn seen(counts: &[u64]) -> Result<Self, Error> {
        Self::keep(counts, |count| count > 0)
    }

    /// Every id, also those that no text of the training split holds.
    ///
    /// # Errors
    /// [`Error::Input`] if there is none.
    pub fn all(counts: &[u64]) -> Result<Self, Error> {
        Self::keep(counts, |_| true)
    }

    fn keep(counts: &[u64], keep: impl Fn(u64) -> bool) -> Result<Self, Error> {
        let kept = || counts.iter().enumerate().filter(|(_, count)| keep(**count));
        let rows = Self {
            ids: kept().map(|(id, _)| id as u32).collect(),
            counts: kept().map(|(_, count)| *count).collect(),
            vocabulary: counts.len(),
        };
        if rows.ids.is_empty() {
            return Err(Error::Input(format!(
                "none of the {} ids occurs in the training split, so there is no row to compare",
                counts.len()
            )));
        }
        Ok(rows)
    }

    /// Those of these ids that `keep` says yes to.
    ///
    /// # Errors
    /// [`Error::Input`] if it never does.
    pub fn filter(&self, keep: impl Fn(u32) -> bool) -> Result<Self, Error> {
        let (ids, counts): (Vec<u32>, Vec<u64>) =
            self.ids.iter().zip(&self.counts).filter(|(id, _)| keep(**id)).map(|(id, count)| (*id, *count)).unzip();
        if ids.is_empty() {
            return Err(Error::Input(format!("none of the {} rows is left", self.len())));
        }
        Ok(Self { ids, counts, vocabulary: self.vocabulary })
    }

    /// Number of ids.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Occurrences of each id of [`Rows::ids`] in the training split.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// How many ids there are to choose from.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_by_hand() {
        let rows = Rows::seen(&[3, 0, 9, 1]).unwrap();
        assert_eq!((rows.ids(), rows.counts(), rows.vocabulary()), (&[0, 2, 3][..], &[3, 9, 1][..], 4));
        assert_eq!(Rows::all(&[3, 0]).unwrap().ids(), [0, 1]);
        assert!(Rows::seen(&[0, 0]).unwrap_err().to_string().contains("none of the 2 ids"));
        assert!(Rows::all(&[]).is_err());
        let two = rows.filter(|id| id > 0).unwrap();
        assert_eq!((two.ids(), two.counts(), two.vocabulary()), (&[2, 3][..], &[9, 1][..], 4));
        assert!(rows.filter(|_| false).is_err());
    }
}
