//! published.toml: what has been published, and the claims that are judged.

use serde::Deserialize;
use tiebreak_train::Error;

use crate::verdict::Says;

/// One claim.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its name, by which its measures are found.
    pub id: String,
    /// authors or summary.
    pub source: String,
    /// The claim.
    pub text: String,
    /// `band`, or nothing: it is about a direction.
    #[serde(default)]
    pub kind: Option<String>,
    /// What decides.
    pub primary: Primary,
    /// What corrects it.
    #[serde(default)]
    pub corrected: Option<Corrected>,
    /// What is shown beside it.
    #[serde(default)]
    pub also: Vec<String>,
    /// What is as good as no difference.
    pub margin: f64,
    /// The published number.
    pub published: String,
}

/// The measure that decides.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Primary {
    /// In words.
    pub measure: String,
    /// Steps that it is taken over.
    pub window: String,
    /// `+` or `-`.
    #[serde(default)]
    pub direction: Option<String>,
    /// Lower end of a band.
    #[serde(default)]
    pub low: Option<f64>,
    /// Upper end of a band.
    #[serde(default)]
    pub high: Option<f64>,
}

/// The measure that corrects the primary one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corrected {
    /// In words.
    pub measure: String,
}

impl Claim {
    /// What it says of its primary measure.
    ///
    /// # Errors
    /// [`Error::Input`] for a kind or direction that is none.
    pub fn says(&self) -> Result<Says, Error> {
        let p = &self.primary;
        match (self.kind.as_deref(), p.direction.as_deref(), p.low, p.high) {
            (Some("band"), None, Some(low), Some(high)) if low <= high => Ok(Says::Band { low, high }),
            (None, Some(sign @ ("+" | "-")), None, None) => {
                Ok(Says::Side { positive: sign == "+", margin: self.margin })
            }
            _ => Err(Error::Input(format!(
                "published.toml: claim {:?}: expected a primary with direction = \"+\" or \"-\", or kind = \"band\" and a primary with low \
                 and high",
                self.id
            ))),
        }
    }
}

/// Reads the claims of published.toml's text.
///
/// # Errors
/// [`Error::Input`] naming the line or claim that is wrong.
pub fn claims(text: &str) -> Result<Vec<Claim>, Error> {
    #[derive(Deserialize)]
    struct Published {
        claims: Vec<Claim>,
    }
    let wrong = |e: toml::de::Error| Error::Input(format!("published.toml: {}", e.to_string().trim_end()));
    let Published { claims } = toml::from_str(text).map_err(wrong)?;
    claims.iter().try_for_each(|claim| claim.says().map(|_| ()))?;
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_projects_own_claims_are_read() {
        let claims = claims(include_str!("../../../experiments/published.toml")).unwrap();
        assert!(claims.len() >= 13);
        let of = |id: &str| claims.iter().find(|c| c.id == id).unwrap().says().unwrap();
        assert_eq!(of("closer-to-output"), Says::Side { positive: true, margin: 0.01 });
        assert_eq!(of("x3-restores-balance"), Says::Band { low: -0.02, high: 0.02 });
    }

    #[test]
    fn a_claim_that_says_nothing_is_refused() {
        let text = "[[claims]]\nid = \"a\"\nsource = \"b\"\ntext = \"c\"\nprimary = { measure = \"m\", window = \"w\" }\nmargin = 0.1\npublished = \"\"\n";
        let message = claims(text).unwrap_err().to_string();
        assert!(message.contains("claim \"a\"") && message.contains("direction"), "{message}");
        assert!(claims("claims = 3").unwrap_err().to_string().contains("published.toml"));
    }
}
