//! Which lens/ tags the runs of a configuration write.

use tiebreak_train::Error;
use tiebreak_train::config::RunConfig;

/// How lens/ tags are written in messages.
pub(crate) const LENS_TAGS: &str =
    "lens/{logit,tuned,tuned_paper}/{embed,1..L}/{kl_bits,kl_fraction,top1_agreement,accuracy,ce_nats,p_input}";

const KINDS: [&str; 3] = ["logit", "tuned", "tuned_paper"];
const VALUES: [&str; 6] = ["kl_bits", "kl_fraction", "top1_agreement", "accuracy", "ce_nats", "p_input"];

/// Kind and point (0: embed) of a lens/ tag.
fn parse(tag: &str) -> Option<(&str, usize)> {
    let parts: Vec<&str> = tag.split('/').collect();
    let ["lens", kind, point, value] = parts[..] else { return None };
    let layer = || point.parse::<usize>().ok().filter(|layer| *layer > 0 && layer.to_string() == point);
    let point = if point == "embed" { 0 } else { layer()? };
    (KINDS.contains(&kind) && VALUES.contains(&value)).then_some((kind, point))
}

/// Whether a run with a lens can write `tag`.
pub(crate) fn is_lens_tag(tag: &str) -> bool {
    parse(tag).is_some()
}

/// Refuses a lens/ tag as the metric of a configuration whose runs will not write it.
///
/// # Errors
/// [`Error::Input`] naming the key to change.
pub(crate) fn check_lens_metric(metric: &str, config: &RunConfig) -> Result<(), Error> {
    let Some((kind, point)) = parse(metric) else { return Ok(()) };
    let (lens, layers) = (&config.lens, config.model.n_layers);
    let missing = |why: String| Err(Error::Input(format!("sweep.metric = {metric:?}: {why}")));
    if !lens.after_training {
        return missing("needs lens.after_training = true".into());
    }
    if point > layers {
        return missing(format!("model.n_layers = {layers}, so the last point is {layers}"));
    }
    let tuned = lens.recipe.tag();
    if kind != "logit" && kind != tuned {
        return missing(format!("lens.recipe = \"{}\" gives lens/{tuned}", lens.recipe.name()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_train::config::LensConfig;

    #[test]
    fn tags_are_those_that_the_configuration_writes() {
        for tag in ["lens/logit/embed/kl_bits", "lens/tuned/4/kl_fraction", "lens/tuned_paper/12/p_input"] {
            assert!(is_lens_tag(tag), "{tag}");
        }
        for tag in ["lens/x", "lens/tuned/0/kl_bits", "lens/tuned/01/kl_bits", "lens/tuned/1/kl", "lens/tuned/1"] {
            assert!(!is_lens_tag(tag), "{tag}");
        }
        let mut config = RunConfig::default();
        let refused = |config: &RunConfig, tag: &str| check_lens_metric(tag, config).unwrap_err().to_string();
        assert!(refused(&config, "lens/tuned/1/kl_bits").contains("lens.after_training"));
        config.lens = LensConfig { after_training: true, ..LensConfig::default() };
        for tag in ["lens/tuned/4/kl_bits", "lens/logit/embed/accuracy", "eval/ppl"] {
            check_lens_metric(tag, &config).unwrap();
        }
        assert!(refused(&config, "lens/tuned/5/kl_bits").contains("model.n_layers = 4"));
        assert!(refused(&config, "lens/tuned_paper/1/kl_bits").contains("lens/tuned"));
    }
}
