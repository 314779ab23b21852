use burn::tensor::{Device, Int, Tensor};
use tiebreak_kernels::LogitHead;

/// A language model as probes see it: a residual stream read at L + 1 points, a final norm, a pair of tables.
///
/// Point 0 ("embed") is what enters the first block, point k what leaves block k; point L is the final state.
pub trait ProbedModel {
    /// L.
    fn layers(&self) -> usize;

    /// Most positions of a sequence.
    fn context(&self) -> usize;

    /// Where its tensors live.
    fn device(&self) -> Device;

    /// E, `[v, d]`.
    fn input_vd(&self) -> Tensor<2>;

    /// U, `[v, d]`.
    fn output_vd(&self) -> Tensor<2>;

    /// The residual stream of ids `[b, t]` at every point, L + 1 tensors `[b, t, d]`, before the final norm, off the
    /// tape.
    fn states(&self, ids_bt: Tensor<2, Int>) -> Vec<Tensor<3>>;

    /// The final norm of states `[n, d]`. Differentiable where the states are on the tape.
    fn final_norm(&self, state_nd: Tensor<2>) -> Tensor<2>;

    /// The final norm's parameters, each `[1, d]`; none for a norm without any.
    fn norm_parameters(&self) -> Vec<Tensor<2>>;

    /// What the head is computed from, in the order in which a lens's fingerprint takes it: U and a bias, or the parameters behind them,
    /// whose bits no device's products change.
    fn head_parameters(&self) -> Vec<Tensor<2>> {
        let head = self.head();
        std::iter::once(head.output_vd).chain(head.map.bias_1v).collect()
    }

    /// How logits follow from normed states: table, bias and logit map.
    fn head(&self) -> LogitHead;

    /// Logits `[n, v]` of normed states `[n, d]`, off the tape.
    fn logits(&self, normed_nd: Tensor<2>) -> Tensor<2> {
        self.head().logits(normed_nd)
    }
}
