use burn::tensor::{DType, Device, Tensor, TensorData};

/// One trained matrix, by its path.
///
/// Every parameter is a plain rank-2 tensor outside autodiff (gains and biases are `[1, d]`): the step makes tracked
/// copies, and the optimiser, checkpoints and export see one type.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Dotted path, as in checkpoints: `blocks.0.mlp.up.weight`.
    pub path: String,
    /// The values.
    pub value: Tensor<2>,
    /// Whether weight decay applies: matrices do, gains and biases do not.
    pub decays: bool,
}

impl Parameter {
    /// A `rows` x `columns` parameter from row-major host values.
    pub fn new(path: String, values: Vec<f64>, shape: [usize; 2], decays: bool, at: &Placement) -> Self {
        let value = Tensor::from_data(TensorData::new(values, shape), at.options());
        Self { path, value, decays }
    }
}

/// Where tensors are made, and in which float type.
#[derive(Clone, Debug)]
pub struct Placement {
    /// A device without autodiff.
    pub device: Device,
    /// `F32` for training; `F64` where tests compare with a reference.
    pub dtype: DType,
}

impl Placement {
    /// Single precision on `device`.
    pub fn f32(device: &Device) -> Self {
        Self { device: device.clone(), dtype: DType::F32 }
    }

    pub(crate) fn options(&self) -> (&Device, DType) {
        (&self.device, self.dtype)
    }
}
