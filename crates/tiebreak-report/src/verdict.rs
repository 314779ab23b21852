//! The verdict on a claim: the rules at the head of published.toml's claims, and nothing else.

use serde::Serialize;

/// What came of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Its task or data cannot be had.
    #[serde(rename = "not measurable here")]
    NotMeasurable,
    /// Runs are missing, or the interval decides nothing.
    #[serde(rename = "inconclusive")]
    Inconclusive,
    /// The interval is where the claim says.
    #[serde(rename = "reproduced")]
    Reproduced,
    /// The same, but the score is no higher than what frequency alone gives.
    #[serde(rename = "reproduced, at chance level")]
    ReproducedAtChance,
    /// The same, but the measure that corrects the claim's does not say it.
    #[serde(rename = "reproduced, not by the corrected measure")]
    ReproducedUncorrected,
    /// The interval is within the margin of nothing, or outside the claim's band.
    #[serde(rename = "not reproduced")]
    NotReproduced,
    /// The interval is on the other side.
    #[serde(rename = "opposite")]
    Opposite,
}

impl Verdict {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::NotMeasurable => "not measurable here",
            Self::Inconclusive => "inconclusive",
            Self::Reproduced => "reproduced",
            Self::ReproducedAtChance => "reproduced, at chance level",
            Self::ReproducedUncorrected => "reproduced, not by the corrected measure",
            Self::NotReproduced => "not reproduced",
            Self::Opposite => "opposite",
        }
    }
}

/// A 95 % interval over seeds; `None`: too few of them.
pub type Interval = Option<[f64; 2]>;

/// What a claim says of its primary measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Says {
    /// It is above 0 (or below).
    Side {
        /// Above.
        positive: bool,
        /// What is as good as 0.
        margin: f64,
    },
    /// It is in a band.
    Band {
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
}

/// What the verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Whether task and data could be had.
    pub measurable: bool,
    /// Whether a needed run is missing.
    pub missing: bool,
    /// What the claim says.
    pub says: Says,
    /// Of the primary measure.
    pub primary: Interval,
    /// Of the larger score less its own null within frequency groups; outer `None`: the claim is not about alignment.
    pub above_chance: Option<Interval>,
    /// Of the corrected measure; outer `None`: there is none.
    pub corrected: Option<Interval>,
    /// What has to hold, beside the rules, before anything is decided.
    pub condition: bool,
}

/// The first rule that applies decides.
pub fn verdict(evidence: &Evidence) -> Verdict {
    if !evidence.measurable {
        return Verdict::NotMeasurable;
    }
    // Below three seeds there is no interval.
    let Some([low, high]) = evidence.primary.filter(|ends| !evidence.missing && ends.iter().all(|x| x.is_finite()))
    else {
        return Verdict::Inconclusive;
    };
    if !evidence.condition {
        return Verdict::Inconclusive;
    }
    let (positive, margin) = match evidence.says {
        Says::Band { low: from, high: to } => {
            return if from <= low && high <= to {
                Verdict::Reproduced
            } else if high < from || to < low {
                Verdict::NotReproduced
            } else {
                Verdict::Inconclusive
            };
        }
        Says::Side { positive, margin } => (positive, margin),
    };
    let published_side = |ends: Interval| ends.is_some_and(|[low, high]| if positive { low > 0.0 } else { high < 0.0 });
    if -margin <= low && high <= margin {
        return Verdict::NotReproduced;
    }
    if if positive { high < 0.0 } else { low > 0.0 } {
        return Verdict::Opposite;
    }
    if !published_side(evidence.primary) {
        return Verdict::Inconclusive;
    }
    if evidence.above_chance.is_some_and(|ends| !ends.is_some_and(|[low, _]| low > 0.0)) {
        return Verdict::ReproducedAtChance;
    }
    match evidence.corrected {
        Some(ends) if !published_side(ends) => Verdict::ReproducedUncorrected,
        _ => Verdict::Reproduced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Evidence = Evidence {
        measurable: true,
        missing: false,
        says: Says::Side { positive: true, margin: 0.01 },
        primary: Some([0.02, 0.05]),
        above_chance: None,
        corrected: None,
        condition: true,
    };

    fn of(change: impl Fn(&mut Evidence)) -> Verdict {
        let mut evidence = PLAIN;
        change(&mut evidence);
        verdict(&evidence)
    }

    #[test]
    fn rules_one_and_two_come_before_everything() {
        assert_eq!(of(|e| (e.measurable, e.missing, e.primary) = (false, true, None)), Verdict::NotMeasurable);
        assert_eq!(of(|e| e.missing = true), Verdict::Inconclusive);
        assert_eq!(of(|e| e.primary = None), Verdict::Inconclusive);
        assert_eq!(of(|e| e.primary = Some([f64::NAN, 1.0])), Verdict::Inconclusive);
        let missing_band = |e: &mut Evidence| {
            (e.missing, e.says) = (true, Says::Band { low: 0.0, high: 1.0 });
        };
        assert_eq!(of(missing_band), Verdict::Inconclusive);
    }

    #[test]
    fn rule_three_bands() {
        let band = |ends: [f64; 2]| of(|e| (e.says, e.primary) = (Says::Band { low: -0.02, high: 0.02 }, Some(ends)));
        assert_eq!(band([-0.02, 0.02]), Verdict::Reproduced);
        assert_eq!(band([0.021, 0.03]), Verdict::NotReproduced);
        assert_eq!(band([-0.5, -0.021]), Verdict::NotReproduced);
        assert_eq!(band([0.02, 0.03]), Verdict::Inconclusive, "it touches the band");
        assert_eq!(band([-0.5, 0.5]), Verdict::Inconclusive);
        let unmet = |e: &mut Evidence| (e.says, e.condition) = (Says::Band { low: 0.0, high: 1.0 }, false);
        assert_eq!(of(unmet), Verdict::Inconclusive);
    }

    #[test]
    fn rules_four_and_five() {
        let side = |ends: [f64; 2]| of(|e| e.primary = Some(ends));
        assert_eq!(side([-0.01, 0.01]), Verdict::NotReproduced);
        assert_eq!(side([0.002, 0.009]), Verdict::NotReproduced, "above 0, but within the margin");
        assert_eq!(side([-0.009, -0.002]), Verdict::NotReproduced, "below 0, but within the margin");
        assert_eq!(side([-0.05, -0.001]), Verdict::Opposite);
        let other = of(|e| (e.says, e.primary) = (Says::Side { positive: false, margin: 0.01 }, Some([0.001, 0.05])));
        assert_eq!(other, Verdict::Opposite);
    }

    #[test]
    fn rule_six() {
        assert_eq!(of(|_| ()), Verdict::Reproduced);
        assert_eq!(of(|e| e.above_chance = Some(Some([0.001, 0.1]))), Verdict::Reproduced);
        assert_eq!(of(|e| e.above_chance = Some(Some([0.0, 0.1]))), Verdict::ReproducedAtChance);
        assert_eq!(of(|e| e.above_chance = Some(None)), Verdict::ReproducedAtChance);
        assert_eq!(of(|e| e.corrected = Some(Some([0.001, 0.1]))), Verdict::Reproduced);
        assert_eq!(of(|e| e.corrected = Some(Some([-0.001, 0.1]))), Verdict::ReproducedUncorrected);
        assert_eq!(of(|e| e.corrected = Some(None)), Verdict::ReproducedUncorrected);
        let both = |e: &mut Evidence| (e.above_chance, e.corrected) = (Some(Some([-1.0, 1.0])), Some(None));
        assert_eq!(of(both), Verdict::ReproducedAtChance, "a comes before b");
        let negative = |e: &mut Evidence| {
            e.says = Says::Side { positive: false, margin: 0.01 };
            (e.primary, e.corrected) = (Some([-0.05, -0.02]), Some(Some([-0.1, -0.001])));
        };
        assert_eq!(of(negative), Verdict::Reproduced);
    }

    #[test]
    fn rule_seven_the_rest() {
        assert_eq!(of(|e| e.primary = Some([-0.005, 0.05])), Verdict::Inconclusive);
        assert_eq!(of(|e| e.primary = Some([0.0, 0.05])), Verdict::Inconclusive, "0 is not on the published side");
        assert_eq!(of(|e| e.primary = Some([-0.05, 0.05])), Verdict::Inconclusive);
    }

    #[test]
    fn words_are_what_json_says() {
        for verdict in
            [Verdict::NotMeasurable, Verdict::ReproducedAtChance, Verdict::ReproducedUncorrected, Verdict::Opposite]
        {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.words());
        }
    }
}
