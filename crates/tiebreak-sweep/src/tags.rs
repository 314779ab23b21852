//! The tags that runs write, which is what may be compared.

use tiebreak_data::did_you_mean;
use tiebreak_train::Error;

use crate::written::{LENS_TAGS, is_lens_tag};

/// Every tag that a run of this build can write, with `{a,b}` for one of several and `<0..9>` for a digit. `<layer>` counts blocks
/// from 1. A run lacks the ones that its mode, text or configuration gives no value: `grad/shared_` without a shared matrix,
/// groups without ids, `align/` without `probe.every`, `train/aux_loss` without a loss of `[aux]`.
pub const TAGS: [&str; 18] = [
    "train/{loss,lr,epoch,tokens_per_second,grad_norm,clip_factor,nonfinite}",
    "train/{table_lr,aux_loss}",
    "intervene/{input,output}_scale",
    "head/one_matrix",
    "grad/aux_{input,output}_norm",
    "eval/{loss,ppl,bits_per_byte}",
    "eval/loss_decile/<0..9>",
    "grad/{input_norm,output_norm,output_over_input,output_share,cosine}",
    "grad/{input,output}_signed_share",
    "grad/authors/{input_norm,output_norm,output_over_input}",
    "grad/shared_{input,output}_norm",
    "grad/decile/<0..9>/{input,output}_norm",
    "update/{input,output}_signed_share",
    "embedding/{input,output}_{cos_to_init,cos_to_prev}",
    "residual/<layer>/update_over_stream",
    "align/{input_to_output,input_to_input,output_to_output}/{identity,procrustes,linear,linear_heldout,cca,knn10}{,_null,_null_freq}",
    "align/{input,output}_to_tied/{identity,procrustes,linear,linear_heldout,cca,knn10}{,_null,_null_freq}",
    "align/tied_to_tied/{identity,procrustes,linear,linear_heldout,cca,knn10}{,_null,_null_freq}",
];

/// Whether a run of this build can write `tag`.
pub fn is_tag(tag: &str) -> bool {
    let tag = match tag.strip_prefix("residual/").and_then(|rest| rest.split_once('/')) {
        Some((layer, rest)) if layer.parse::<u32>().is_ok_and(|k| k > 0 && k.to_string() == layer) => {
            format!("residual/<layer>/{rest}")
        }
        _ => tag.to_owned(),
    };
    is_lens_tag(&tag) || TAGS.iter().any(|pattern| written_out(pattern).contains(&tag))
}

/// Refuses what is no tag, naming the nearest one.
pub(crate) fn check_metric(metric: &str) -> Result<(), Error> {
    if is_tag(metric) {
        return Ok(());
    }
    let near = if metric.contains('/') { metric.to_owned() } else { format!("eval/{metric}") };
    let all: Vec<String> = TAGS.iter().flat_map(|pattern| written_out(pattern)).collect();
    Err(Error::Input(format!(
        "sweep.metric = {metric:?}: no such tag{}; tags: {}, {LENS_TAGS}",
        did_you_mean(&near, all.iter().map(String::as_str)),
        TAGS.join(", ")
    )))
}

/// The tags of a pattern, `<layer>` left as it is.
fn written_out(pattern: &str) -> Vec<String> {
    let pattern = pattern.replace("<0..9>", "{0,1,2,3,4,5,6,7,8,9}");
    let mut tags = vec![String::new()];
    for part in pattern.split_inclusive(['{', '}']) {
        let choices: Vec<&str> = match part.strip_suffix('}') {
            Some(choices) => choices.split(',').collect(),
            None => vec![part.strip_suffix('{').unwrap_or(part)],
        };
        tags = tags.iter().flat_map(|tag| choices.iter().map(move |choice| format!("{tag}{choice}"))).collect();
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_written_out() {
        assert_eq!(written_out("a/b"), ["a/b"]);
        assert_eq!(written_out("a/{b,c}_{x,y}"), ["a/b_x", "a/b_y", "a/c_x", "a/c_y"]);
        assert_eq!(written_out("a{,_null}"), ["a", "a_null"]);
        assert_eq!(written_out("k/<0..9>").len(), 10);
        // Six pairs of tables, six metrics, two nulls each.
        let align = TAGS.iter().filter(|p| p.starts_with("align/")).flat_map(|p| written_out(p)).count();
        assert_eq!(align, 6 * 6 * 3);
    }

    #[test]
    fn only_tags_that_this_build_writes_are_metrics() {
        for metric in TAGS.iter().flat_map(|pattern| written_out(pattern)).filter(|tag| !tag.contains('<')) {
            check_metric(&metric).unwrap();
        }
        for metric in
            ["residual/1/update_over_stream", "residual/48/update_over_stream", "align/output_to_tied/cca_null"]
        {
            check_metric(metric).unwrap();
        }
        for (metric, near) in [
            ("eval/loss_decile/10", "eval/loss_decile/1"),
            ("evil/ppl", "eval/ppl"),
            ("grad/output_over_inptu", "grad/output_over_input"),
            ("grad/author/input_norm", "grad/authors/input_norm"),
            ("align/tied_to_input/linear", "align/input_to_input/linear"),
        ] {
            let message = check_metric(metric).unwrap_err().to_string();
            assert!(message.contains(&format!("did you mean {near:?}")), "{message}");
        }
        let no_layers = ["residual/0/update_over_stream", "residual/01/update_over_stream", "residual/<layer>/x"];
        for metric in ["align/a_to_b/cca", "lens/x", "update/input_norm", "eval/", "eval/loss_decile", ""]
            .iter()
            .chain(&no_layers)
        {
            assert!(check_metric(metric).is_err(), "{metric}");
        }
    }
}
