//! Between tensors and slices: which path an operation takes, and one generic tape step.

use std::fmt::Debug;
use std::mem::MaybeUninit;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::{Bytes, DType, Int, Shape, Tensor};

use crate::simd::{Level, level};

type Tape = Autodiff<Flex>;

/// An operand that the native path takes.
pub(crate) enum Operand {
    Plain(FlexTensor),
    Taped(FloatTensor<Tape>),
}

/// The operand behind a tensor: contiguous f32 on flex, on the tape or not. `None`: compose.
pub(crate) fn operand<const D: usize>(tensor: &Tensor<D>) -> Option<Operand> {
    if level() == Level::Off || tensor.dtype() != DType::F32 {
        return None;
    }
    let operand = match tensor.is_autodiff() {
        true => Operand::Taped(tensor.clone().try_into_primitive::<Tape>().ok()?),
        false => Operand::Plain(tensor.clone().try_into_primitive::<Flex>().ok()?),
    };
    let contiguous = match &operand {
        Operand::Plain(t) => t.is_contiguous(),
        Operand::Taped(t) => t.primitive().is_contiguous(),
    };
    contiguous.then_some(operand)
}

/// The same for a tensor outside the tape.
pub(crate) fn plain<const D: usize>(tensor: &Tensor<D>) -> Option<FlexTensor> {
    match operand(tensor)? {
        Operand::Plain(t) => Some(t),
        Operand::Taped(_) => None,
    }
}

/// Ids on flex as indices below `bound`. `None`: compose.
///
/// # Panics
/// If an id is out of range, as an indexing operation does.
pub(crate) fn indices(ids: &Tensor<1, Int>, bound: usize) -> Option<Vec<usize>> {
    let ids = ids.clone().try_into_primitive::<Flex>().ok()?;
    let check = |id: i64| match usize::try_from(id) {
        Ok(id) if id < bound => id,
        _ => panic!("id {id} is outside a table of {bound} rows"),
    };
    match ids.dtype() {
        DType::I32 => Some(ids.as_slice::<i32>()?.iter().map(|id| check(*id as i64)).collect()),
        DType::I64 => Some(ids.as_slice::<i64>()?.iter().map(|id| check(*id)).collect()),
        _ => None,
    }
}

/// The values of a tensor that `operand` has let through or `contiguous` has made.
pub(crate) fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice::<f32>().expect("contiguous f32, checked on entry")
}

pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// The values to be overwritten, if nobody else sees the buffer and it holds nothing else.
pub(crate) fn values_mut(tensor: &mut FlexTensor) -> Option<&mut [f32]> {
    let n = tensor.layout().num_elements();
    let whole = tensor.is_contiguous() && tensor.layout().start_offset() == 0 && tensor.bytes().len() == 4 * n;
    if whole { tensor.try_storage_mut::<f32>() } else { None }
}

pub(crate) fn shape(tensor: &FlexTensor) -> Vec<usize> {
    tensor.layout().shape().to_vec()
}

pub(crate) fn from_values(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape.into()), DType::F32)
}

pub(crate) fn tensor<const D: usize>(primitive: FlexTensor) -> Tensor<D> {
    Tensor::from_primitive::<Flex>(primitive)
}

/// A buffer that is filled before it is read.
pub(crate) struct Unfilled(Vec<MaybeUninit<f32>>);

impl Unfilled {
    pub(crate) fn new(len: usize) -> Self {
        let mut values = Vec::with_capacity(len);
        // SAFETY: uninitialised memory is a valid `MaybeUninit`, and the capacity is `len`.
        unsafe { values.set_len(len) };
        Self(values)
    }

    pub(crate) fn slots(&mut self) -> &mut [MaybeUninit<f32>] {
        &mut self.0
    }

    /// # Safety
    /// Every slot has been written.
    pub(crate) unsafe fn filled(self) -> Vec<f32> {
        let mut values = std::mem::ManuallyDrop::new(self.0);
        // SAFETY: same allocation and layout; the caller has written every element.
        unsafe { Vec::from_raw_parts(values.as_mut_ptr().cast(), values.len(), values.capacity()) }
    }
}

/// A pointer that tasks share to write to parts that do not overlap.
#[derive(Clone, Copy)]
pub(crate) struct Shared(*mut f32);

// SAFETY: only a pointer; whoever dereferences it argues that no two tasks write to the same element.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(slots: &mut [MaybeUninit<f32>]) -> Self {
        Self(slots.as_mut_ptr().cast())
    }

    pub(crate) fn get(self) -> *mut f32 {
        self.0
    }
}

/// A differentiable operation on N operands with the native path's two passes.
pub(crate) trait Fused<const N: usize>: Clone + Debug + Send + 'static {
    /// What the backward pass needs.
    type Saved: Clone + Debug + Send + 'static;

    fn forward(&self, inputs: [FlexTensor; N]) -> (FlexTensor, Self::Saved);

    /// Gradients of the operands from that of the result; `wanted` says which ones are used.
    fn backward(self, saved: Self::Saved, dy: FlexTensor, wanted: [bool; N]) -> [Option<FlexTensor>; N];
}

/// Runs an operation on operands that are all on the tape, or all off it. `None`: compose.
pub(crate) fn apply<O: Fused<N>, const N: usize, const D: usize>(op: O, inputs: [Operand; N]) -> Option<Tensor<D>> {
    if inputs.iter().all(|i| matches!(i, Operand::Plain(_))) {
        let inputs = inputs.map(|i| match i {
            Operand::Plain(t) => t,
            Operand::Taped(_) => unreachable!("just checked"),
        });
        return Some(tensor(op.forward(inputs).0));
    }
    if !inputs.iter().all(|i| matches!(i, Operand::Taped(_))) {
        return None;
    }
    let mut guards = Vec::with_capacity(N);
    let inputs = inputs.map(|i| match i {
        Operand::Taped(t) => {
            let (primitive, guard) = t.into_parts();
            guards.push(guard);
            primitive
        }
        Operand::Plain(_) => unreachable!("just checked"),
    });
    let Ok(guards) = guards.try_into() else { unreachable!("one guard per operand") };
    let (y, saved) = op.forward(inputs);
    let y = match Step(op).prepare::<NoCheckpointing>(guards).compute_bound().stateful() {
        OpsKind::Tracked(step) => step.finish(saved, y),
        OpsKind::UnTracked(step) => step.finish(y),
    };
    Some(Tensor::from_primitive::<Tape>(y))
}

#[derive(Debug)]
struct Step<O>(O);

impl<O: Fused<N>, const N: usize> Backward<Flex, N> for Step<O> {
    type State = O::Saved;

    fn backward(self, ops: Ops<O::Saved, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = contiguous(grads.consume::<Flex>(&ops.node));
        let wanted = std::array::from_fn(|i| ops.parents[i].is_some());
        let gradients = self.0.backward(ops.state, dy, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<Flex>(parent.id, gradient);
            }
        }
    }
}
