//! What goes into a checkpoint, held as it was while training goes on.

use std::io;

use burn::tensor::{Tensor, TensorData, Transaction};
use manyheads_model::weights::timm::{HeldTensor, Layout, NamedTensor};

use crate::engine::device::failed;
use crate::error::{Error, Result};

/// A tensor of a checkpoint.
#[derive(Debug)]
pub struct Part {
    name: String,
    shape: Vec<usize>,
    layout: Layout,
    values: Values,
}

/// Values in the order in which the device has them.
#[derive(Debug)]
enum Values {
    Held(Tensor<1>),
    Copied(TensorData),
}

impl Part {
    /// timm's name, or that of the optimizer's state.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its shape in the file.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its values in the file's order.
    ///
    /// # Errors
    /// Where the device fails, or a value is not finite.
    pub fn into_values(self) -> io::Result<Vec<f32>> {
        let Self { name, layout, values, .. } = self;
        let data = match values {
            Values::Held(tensor) => tensor.try_into_data().map_err(|e| io::Error::other(format!("{name}: {e}")))?,
            Values::Copied(data) => data,
        };
        let values: Vec<f32> = data.try_into_vec().map_err(|e| io::Error::other(format!("{name}: {e}")))?;
        if !values.iter().all(|value| value.is_finite()) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the tensor {name} is not finite")));
        }
        Ok(layout.to_timm(values))
    }
}

impl From<HeldTensor> for Part {
    fn from(HeldTensor { name, shape, values, layout }: HeldTensor) -> Self {
        Self { name, shape, layout, values: Values::Held(values) }
    }
}

impl From<NamedTensor> for Part {
    fn from(NamedTensor { name, shape, values }: NamedTensor) -> Self {
        let length = values.len();
        Self { name, shape, layout: Layout::Same, values: Values::Copied(TensorData::new(values, [length])) }
    }
}

/// What goes into a checkpoint beside the manifest.
#[derive(Debug)]
pub struct Parts {
    /// Weights under timm's names.
    pub model: Vec<Part>,
    /// The running average of the weights, where one is kept.
    pub ema: Option<Vec<Part>>,
    /// Moments of the optimizer.
    pub optimizer: Vec<Part>,
    /// The resolved configuration.
    pub config: String,
}

impl Parts {
    /// Holds the tensors as they are now.
    ///
    /// On the CPU (`eager`) that copies nothing: the next update leaves them where they are and puts its results elsewhere, so that the
    /// one copy is made on the way. From another device they are copied to the host at once, in one transfer: its memory is scarce, and
    /// reading it from another thread would wait for the steps queued there.
    ///
    /// # Errors
    /// Where the device fails to deliver the values.
    pub fn hold(
        model: Vec<HeldTensor>,
        ema: Option<Vec<HeldTensor>>,
        optimizer: Vec<HeldTensor>,
        config: String,
        eager: bool,
    ) -> Result<Self> {
        let parts = |held: Vec<HeldTensor>| held.into_iter().map(Part::from).collect::<Vec<Part>>();
        let mut parts = Self { model: parts(model), ema: ema.map(parts), optimizer: parts(optimizer), config };
        if !eager {
            parts.copy()?;
        }
        Ok(parts)
    }

    fn copy(&mut self) -> Result<()> {
        let Self { model, ema, optimizer, .. } = self;
        let mut all: Vec<&mut Part> = model.iter_mut().chain(ema.iter_mut().flatten()).chain(optimizer).collect();
        let register = |transaction: Transaction, part: &&mut Part| match &part.values {
            Values::Held(tensor) => transaction.register(tensor.clone()),
            Values::Copied(_) => transaction,
        };
        let read = all.iter().fold(Transaction::default(), register).try_execute();
        let read = read.map_err(|e| Error::Failed(failed("when its tensors were to be saved", &e.to_string())))?;
        for (part, data) in all.iter_mut().filter(|part| matches!(part.values, Values::Held(_))).zip(read) {
            part.values = Values::Copied(data);
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn held() -> HeldTensor {
        let values = Tensor::from_data([1.0, 2.0, 3.0, 4.0], &Device::flex());
        HeldTensor { name: "x".into(), shape: vec![2, 2], values, layout: Layout::Transposed([2, 2]) }
    }

    /// What is held stays as it was, whether it was copied or not, and whatever becomes of the tensor that it was held from.
    #[test]
    fn what_is_held_does_not_change_with_its_tensor() {
        for eager in [true, false] {
            let tensor = held();
            let parts = Parts::hold(vec![tensor.clone()], None, vec![tensor.clone()], String::new(), eager).unwrap();
            let changed = tensor.values * 2.0;
            let Parts { model, optimizer, .. } = parts;
            for part in model.into_iter().chain(optimizer) {
                assert_eq!((part.name(), part.shape()), ("x", &[2, 2][..]));
                assert_eq!(part.into_values().unwrap(), [1.0, 3.0, 2.0, 4.0]);
            }
            assert_eq!(changed.into_data().try_into_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0]);
        }
    }
}
