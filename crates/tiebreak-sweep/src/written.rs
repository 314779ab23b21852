//! Whether the runs of a configuration write a tag at their last step.

use std::path::Path;

use tiebreak_model::interface::Role;
use tiebreak_train::Error;
use tiebreak_train::config::{RunConfig, load, mode_name};
use tiebreak_train::folder::RunFolder;

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

/// Refuses a tag as the metric of a configuration whose runs will not write it.
///
/// # Errors
/// [`Error::Input`] naming the key to change, or a run of `probe.reference` that cannot be read.
pub(crate) fn check_written(metric: &str, config: &RunConfig) -> Result<(), Error> {
    let missing = match metric.split_once('/') {
        Some(("lens", _)) => lens(metric, config),
        Some(("align", rest)) => alignment(rest, config)?,
        Some(("grad" | "update", rest)) => provenance(rest, config)?,
        Some(("residual", rest)) => residual(rest, config),
        Some(("train" | "intervene" | "head", _)) => changing(metric, config),
        _ => None,
    };
    missing.map_or(Ok(()), |why| Err(Error::Input(format!("sweep.metric = {metric:?}: {why}"))))
}

/// Why the tag is not written, as the functions below say.
fn lens(metric: &str, config: &RunConfig) -> Option<String> {
    let (kind, point) = parse(metric)?;
    let (lens, layers, tuned) = (&config.lens, config.model.n_layers, config.lens.recipe.tag());
    if !lens.after_training {
        Some("needs lens.after_training = true".into())
    } else if point > layers {
        Some(format!("model.n_layers = {layers}, so the last point is {layers}"))
    } else if kind != "logit" && kind != tuned {
        Some(format!("lens.recipe = \"{}\" gives lens/{tuned}", lens.recipe.name()))
    } else {
        None
    }
}

fn alignment(rest: &str, config: &RunConfig) -> Result<Option<String>, Error> {
    let Some((pair, value)) = rest.split_once('/') else { return Ok(None) };
    let (probe, mode) = (&config.probe, config.head.mode);
    if probe.every == 0 {
        return Ok(Some("needs probe.every > 0".into()));
    }
    if value.contains("_null") && probe.permutations == 0 {
        return Ok(Some("needs probe.permutations > 0".into()));
    }
    let one = |config: &RunConfig| -> Result<bool, Error> {
        Ok(config.head.one_matrix(config.data.vocabulary()?, config.model.d_model))
    };
    let this = one(config)?;
    let mut pairs = if this { Vec::new() } else { vec!["input_to_output"] };
    for folder in &probe.reference {
        let reference = load(&RunFolder(Path::new(folder).into()).config(), &[]);
        let reference = reference.map_err(|e| e.at(format_args!("probe.reference = {folder:?}")))?;
        pairs.extend(match (one(&reference.config)?, this) {
            (true, true) => &["tied_to_tied"][..],
            (false, false) => &["input_to_input", "output_to_output"],
            _ => &["input_to_tied", "output_to_tied"],
        });
    }
    pairs.sort_unstable();
    pairs.dedup();
    Ok((!pairs.contains(&pair)).then(|| {
        let given = if pairs.is_empty() { "none".into() } else { pairs.join(", ") };
        let (mode, runs) = (mode_name(mode), probe.reference.len());
        format!("head.mode = \"{mode}\" with {runs} runs as probe.reference aligns these pairs: {given}")
    }))
}

fn provenance(rest: &str, config: &RunConfig) -> Result<Option<String>, Error> {
    if config.log.provenance_every == 0 {
        return Ok(Some("needs log.provenance_every > 0".into()));
    }
    if rest.starts_with("aux_") && !aux(config) {
        return Ok(Some("needs a loss of [aux]".into()));
    }
    let parameters = config.head.parameters(config.data.vocabulary()?, config.model.d_model);
    if rest.starts_with("shared_") && !parameters.iter().any(|(role, _)| *role == Role::Shared) {
        let mode = mode_name(config.head.mode);
        return Ok(Some(format!("head.mode = \"{mode}\" shares no parameter at the last step")));
    }
    Ok(None)
}

/// Tags of what only some configurations can change.
fn changing(metric: &str, config: &RunConfig) -> Option<String> {
    let (needs, there) = match metric {
        "train/table_lr" => ("optim.table_warmup_steps > 0", config.optim.table_warmup_steps > 0),
        "train/aux_loss" => ("a loss of [aux]", aux(config)),
        "intervene/input_scale" | "intervene/output_scale" => {
            ("a scale or a rule of [intervene]", config.intervene.acts())
        }
        "head/one_matrix" => ("head.mode = \"tie_then_untie\"", config.head.changes()),
        _ => return None,
    };
    (!there).then(|| format!("needs {needs}"))
}

fn aux(config: &RunConfig) -> bool {
    config.aux.reconstruction > 0.0 || config.aux.symmetry > 0.0
}

fn residual(rest: &str, config: &RunConfig) -> Option<String> {
    let (layer, layers) = (rest.split('/').next()?.parse::<usize>().ok()?, config.model.n_layers);
    (layer > layers).then(|| format!("model.n_layers = {layers}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_model::interface::ModeKind;
    use tiebreak_train::config::LensConfig;

    fn refused(config: &RunConfig, tag: &str) -> String {
        check_written(tag, config).expect_err(tag).to_string()
    }

    #[test]
    fn tags_of_lenses() {
        for tag in ["lens/logit/embed/kl_bits", "lens/tuned/4/kl_fraction", "lens/tuned_paper/12/p_input"] {
            assert!(is_lens_tag(tag), "{tag}");
        }
        for tag in ["lens/x", "lens/tuned/0/kl_bits", "lens/tuned/01/kl_bits", "lens/tuned/1/kl", "lens/tuned/1"] {
            assert!(!is_lens_tag(tag), "{tag}");
        }
        let mut config = RunConfig::default();
        assert!(refused(&config, "lens/tuned/1/kl_bits").contains("lens.after_training"));
        config.lens = LensConfig { after_training: true, ..LensConfig::default() };
        for tag in ["lens/tuned/4/kl_bits", "lens/logit/embed/accuracy", "eval/ppl"] {
            check_written(tag, &config).unwrap();
        }
        assert!(refused(&config, "lens/tuned/5/kl_bits").contains("model.n_layers = 4"));
        assert!(refused(&config, "lens/tuned_paper/1/kl_bits").contains("lens/tuned"));
    }

    #[test]
    fn tags_of_alignments() {
        let dir = tempfile::tempdir().unwrap();
        let run = |mode: &str| {
            let folder = dir.path().join(mode);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("config.toml"), format!("[head]\nmode = \"{mode}\"\n")).unwrap();
            folder.to_str().unwrap().to_owned()
        };
        let (tied, untied) = (run("tied"), run("untied"));
        let pairs = ["input_to_output", "input_to_input", "output_to_output", "input_to_tied", "tied_to_tied"];
        let mut config = RunConfig::default();
        for pair in pairs {
            assert!(refused(&config, &format!("align/{pair}/cca")).contains("probe.every"));
        }
        config.probe.every = 10;
        for (mode, references, written) in [
            (ModeKind::Tied, vec![], &[][..]),
            (ModeKind::Tied, vec![&untied], &["input_to_tied"]),
            (ModeKind::Tied, vec![&untied, &tied], &["input_to_tied", "tied_to_tied"]),
            (ModeKind::Untied, vec![], &["input_to_output"]),
            (ModeKind::Untied, vec![&tied], &["input_to_output", "input_to_tied"]),
            (ModeKind::Untied, vec![&untied], &["input_to_output", "input_to_input", "output_to_output"]),
        ] {
            config.head.mode = mode;
            config.probe.reference = references.into_iter().cloned().collect();
            for pair in pairs {
                let tag = format!("align/{pair}/cca_null");
                match written.contains(&pair) {
                    true => check_written(&tag, &config).unwrap(),
                    false => assert!(refused(&config, &tag).contains("probe.reference"), "{mode:?} {tag}"),
                }
            }
        }
        config.probe.permutations = 0;
        check_written("align/input_to_output/cca", &config).unwrap();
        assert!(refused(&config, "align/input_to_output/cca_null_freq").contains("probe.permutations"));
        config.probe.reference = vec![dir.path().join("none").to_str().unwrap().to_owned()];
        assert!(refused(&config, "align/input_to_input/cca").contains("none"));
    }

    #[test]
    fn tags_of_gradients_and_blocks() {
        let mut config = RunConfig::default();
        for tag in ["grad/shared_input_norm", "update/input_signed_share", "residual/4/update_over_stream"] {
            check_written(tag, &config).unwrap();
        }
        assert!(refused(&config, "residual/5/update_over_stream").contains("model.n_layers = 4"));
        config.head.mode = ModeKind::Untied;
        assert!(refused(&config, "grad/shared_output_norm").contains("head.mode = \"untied\""));
        check_written("grad/output_norm", &config).unwrap();
        let changing =
            ["train/table_lr", "train/aux_loss", "intervene/output_scale", "head/one_matrix", "grad/aux_input_norm"];
        for (tag, key) in
            changing.into_iter().zip(["table_warmup_steps", "[aux]", "[intervene]", "tie_then_untie", "[aux]"])
        {
            assert!(refused(&config, tag).contains(key), "{tag}");
        }
        config.optim.table_warmup_steps = 10;
        (config.aux.symmetry, config.intervene.input_scale) = (0.1, 2.0.into());
        config.head.mode = ModeKind::TieThenUntie;
        for tag in changing.into_iter().chain(["train/loss"]) {
            check_written(tag, &config).unwrap();
        }
        config.log.provenance_every = 0;
        for tag in ["grad/output_norm", "update/output_signed_share"] {
            assert!(refused(&config, tag).contains("log.provenance_every"));
        }
    }
}
