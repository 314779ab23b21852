//! What each side gives to the table: the grad/ and update/ scalars.

use burn::tensor::Tensor;
use tiebreak_kernels::{Moved, Pending, PendingRows, Reads, RowProducts, same_buffer};
use tiebreak_model::interface::Sides;

use crate::intervene::Factors;
use crate::track::Tag;

/// What the sides reach together.
pub enum Shared<'a> {
    /// One table: its parts are G_in and G_out themselves.
    Table,
    /// The pulled-back sides of shared parameters; none: nothing is shared.
    Parts(&'a [Sides]),
}

/// Sums over the V x d gradients of one step, before scale and clip.
#[derive(Clone, Debug)]
pub struct Provenance {
    /// |G_in|^2, |G_out|^2 and <G_in, G_out>.
    input: f64,
    output: f64,
    dot: f64,
    /// Squared norms of the parts that reach shared parameters, if there are any.
    shared: Option<(f64, f64)>,
    /// Squared norms of dL/dx0 and G_out of the last micro-batch.
    authors: (f64, f64),
    factors: Factors,
    /// Rows of G_in and G_out, squared.
    rows: [Vec<f64>; 2],
    /// What the step's update of the tables (roles shared, input and output) came to; `None` before it, or without one.
    pub moved: Option<Moved>,
}

/// A [`Provenance`] that is still to be read.
pub struct Measured {
    rows: PendingRows,
    shared: SharedPlaces,
    last_input: Pending,
    /// None: the step's, for the only micro-batch's G_out is.
    last_output: Option<Pending>,
    factors: Factors,
}

enum SharedPlaces {
    Table,
    None,
    Parts([Vec<Pending>; 2]),
}

impl Measured {
    /// What was read.
    ///
    /// # Panics
    /// Before [`Reads::execute`].
    pub fn read(self, reads: &Reads) -> Provenance {
        let RowProducts { aa, bb, ab } = reads.rows(self.rows);
        let [input, output, dot] = [&aa, &bb, &ab].map(|rows| rows.iter().sum::<f64>());
        let total = |places: &[Pending]| places.iter().map(|place| reads.sum(*place)).sum::<f64>();
        let shared = match &self.shared {
            SharedPlaces::Table => Some((input, output)),
            SharedPlaces::None => None,
            SharedPlaces::Parts([inputs, outputs]) => Some((total(inputs), total(outputs))),
        };
        let authors = (reads.sum(self.last_input), self.last_output.map_or(output, |place| reads.sum(place)));
        Provenance { input, output, dot, shared, authors, factors: self.factors, rows: [aa, bb], moved: None }
    }
}

impl Provenance {
    /// Measures one step: G_in, G_out `[v, d]`; dL/dx0 `[n, d]` and G_out of the last micro-batch; the table's factors.
    pub fn measure(
        reads: &mut Reads,
        input_vd: &Tensor<2>,
        output_vd: &Tensor<2>,
        shared: Shared,
        last: &(Tensor<2>, Tensor<2>),
        factors: Factors,
    ) -> Measured {
        let rows = reads.row_products(input_vd, output_vd);
        let mut total = |parts: &[Sides], side: fn(&Sides) -> &Option<Tensor<2>>| {
            parts.iter().filter_map(|s| side(s).as_ref()).map(|t| reads.square(t)).collect()
        };
        let shared = match shared {
            Shared::Table => SharedPlaces::Table,
            Shared::Parts([]) => SharedPlaces::None,
            Shared::Parts(parts) => SharedPlaces::Parts([total(parts, |s| &s.input), total(parts, |s| &s.output)]),
        };
        let last_output = (!same_buffer(output_vd, &last.1)).then(|| reads.square(&last.1));
        Measured { rows, shared, last_input: reads.square(&last.0), last_output, factors }
    }

    /// The tags of the step; `groups` are [`tiebreak_data::seen_deciles`]. Ratios whose denominator is 0 and groups
    /// without an id are left out.
    ///
    /// An update's share after AdamW is <u_side, u> / |u|^2 over all tables, weight decay left out: the update of a shared table
    /// splits as its first moment does, that of a table of one side is all that side's; auxiliary losses count with the sides
    /// through which they reach it. The two shares sum to 1.
    pub fn scalars(&self, groups: &[Option<u8>]) -> Vec<(Tag, f64)> {
        let (a, b, c) = (self.input, self.output, self.dot);
        let (input, output) = (a.sqrt(), b.sqrt());
        let (si, so) = (self.factors.input, self.factors.output);
        let whole = si * si * a + 2.0 * si * so * c + so * so * b;
        let (authors_input, authors_output) = (self.authors.0.sqrt(), self.authors.1.sqrt());
        let mut tags: Vec<(Tag, f64)> = vec![
            ("grad/input_norm".into(), input),
            ("grad/output_norm".into(), output),
            ("grad/output_over_input".into(), output / input),
            ("grad/output_share".into(), output / (input + output)),
            ("grad/cosine".into(), c / (input * output)),
            ("grad/input_signed_share".into(), (si * si * a + si * so * c) / whole),
            ("grad/output_signed_share".into(), (so * so * b + si * so * c) / whole),
            ("grad/authors/input_norm".into(), authors_input),
            ("grad/authors/output_norm".into(), authors_output),
            ("grad/authors/output_over_input".into(), authors_output / authors_input),
        ];
        if let Some((input, output)) = self.shared {
            tags.push(("grad/shared_input_norm".into(), input.sqrt()));
            tags.push(("grad/shared_output_norm".into(), output.sqrt()));
        }
        if let Some(moved) = self.moved {
            let input = moved.input / moved.whole;
            tags.extend([
                ("update/input_signed_share".into(), input),
                ("update/output_signed_share".into(), 1.0 - input),
            ]);
        }
        for (side, rows) in ["input", "output"].into_iter().zip(&self.rows) {
            let mut sums = [None; 10];
            for (row, group) in rows.iter().zip(groups) {
                if let Some(group) = group {
                    *sums[*group as usize].get_or_insert(0.0) += row;
                }
            }
            let sums = sums.into_iter().enumerate();
            tags.extend(sums.filter_map(|(k, sum)| Some((format!("grad/decile/{k}/{side}_norm").into(), sum?.sqrt()))));
        }
        tags.retain(|(_, value): &(Tag, f64)| value.is_finite());
        tags
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;
    use std::collections::BTreeMap;

    fn measure(
        input_vd: &Tensor<2>,
        output_vd: &Tensor<2>,
        shared: Shared,
        last: (Tensor<2>, Tensor<2>),
        factors: Factors,
    ) -> Provenance {
        let mut reads = Reads::default();
        let measured = Provenance::measure(&mut reads, input_vd, output_vd, shared, &last, factors);
        reads.execute();
        measured.read(&reads)
    }

    fn matrix<const R: usize>(rows: [[f64; 2]; R]) -> Tensor<2> {
        Tensor::from_data(rows, (&Device::flex(), burn::tensor::DType::F64))
    }

    #[test]
    fn tags_by_hand() {
        // One token five times with the same gradient (3, 4): dL/dx0 has norm 5 sqrt 5, the scattered G_in norm 25.
        let x0 = matrix([[3.0, 4.0]; 5]);
        let input = matrix([[15.0, 20.0], [0.0, 0.0]]);
        let output = matrix([[0.0, 0.0], [30.0, 40.0]]);
        let sides = Sides { input: Some(input.clone()), output: Some(output.clone()) };
        let factors = Factors { input: 2.0, output: 1.0 };
        let mut found = measure(&input, &output, Shared::Parts(&[sides]), (x0, output.clone()), factors);
        found.moved = Some(Moved { input: 0.5, whole: 2.0 });
        // The first row is in group 0, the second never occurs.
        let tags: BTreeMap<Tag, f64> = found.scalars(&[Some(0), None]).into_iter().collect();
        let expected = [
            ("grad/input_norm", 25.0),
            ("grad/output_norm", 50.0),
            ("grad/output_over_input", 2.0),
            ("grad/output_share", 2.0 / 3.0),
            ("grad/cosine", 0.0),
            // Scaled by 2, the input side is as long as the output side and orthogonal to it.
            ("grad/input_signed_share", 0.5),
            ("grad/output_signed_share", 0.5),
            ("grad/authors/input_norm", 5.0 * 5f64.sqrt()),
            ("grad/authors/output_norm", 50.0),
            ("grad/authors/output_over_input", 50.0 / (5.0 * 5f64.sqrt())),
            ("grad/shared_input_norm", 25.0),
            ("grad/shared_output_norm", 50.0),
            ("grad/decile/0/input_norm", 25.0),
            ("grad/decile/0/output_norm", 0.0),
            ("update/input_signed_share", 0.25),
            ("update/output_signed_share", 0.75),
        ];
        assert_eq!(tags.len(), expected.len());
        for (tag, value) in expected {
            assert!((tags[tag] - value).abs() < 1e-12, "{tag}: {} instead of {value}", tags[tag]);
        }
    }

    #[test]
    fn signed_shares_of_opposed_sides_sum_to_one() {
        let (input, output) = (matrix([[1.0, 0.0]]), matrix([[-3.0, 1.0]]));
        let found = measure(&input, &output, Shared::Parts(&[]), (input.clone(), output.clone()), Factors::NONE);
        let tags: BTreeMap<Tag, f64> = found.scalars(&[]).into_iter().collect();
        // G = (-2, 1): <G_in, G> = -2, <G_out, G> = 7, |G|^2 = 5.
        assert!((tags["grad/input_signed_share"] + 0.4).abs() < 1e-12);
        assert!((tags["grad/output_signed_share"] - 1.4).abs() < 1e-12);
        assert!(!tags.contains_key("grad/shared_input_norm"), "nothing is shared");
    }

    #[test]
    fn groups_sum_the_squares_of_their_rows() {
        let input = matrix([[3.0, 4.0], [1.0, 0.0], [0.0, 12.0], [9.0, 9.0]]);
        let output = matrix([[0.0, 2.0], [5.0, 0.0], [0.0, 0.0], [8.0, 1.0]]);
        let last = (input.clone(), output.clone());
        let found = measure(&input, &output, Shared::Parts(&[]), last, Factors::NONE);
        let tags: BTreeMap<Tag, f64> = found.scalars(&[Some(9), Some(2), Some(9), None]).into_iter().collect();
        assert_eq!(tags["grad/decile/9/input_norm"], 13.0);
        assert_eq!(tags["grad/decile/9/output_norm"], 2.0);
        assert_eq!(tags["grad/decile/2/input_norm"], 1.0);
        assert_eq!(tags["grad/decile/2/output_norm"], 5.0);
        assert_eq!(tags.keys().filter(|tag| tag.starts_with("grad/decile/")).count(), 4, "empty groups have no tag");
        assert!(!tags.keys().any(|tag| tag.starts_with("update/")), "nothing was moved");
    }

    #[test]
    fn a_side_without_gradient_has_no_ratio() {
        let (input, output) = (matrix([[0.0, 0.0]]), matrix([[3.0, 4.0]]));
        let found = measure(&input, &output, Shared::Parts(&[]), (input.clone(), output.clone()), Factors::NONE);
        let tags: BTreeMap<Tag, f64> = found.scalars(&[]).into_iter().collect();
        assert_eq!(tags["grad/output_share"], 1.0);
        assert!(!tags.contains_key("grad/output_over_input") && !tags.contains_key("grad/cosine"));
    }
}
