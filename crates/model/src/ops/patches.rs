//! The pixels of an image, patch by patch: what the embedding multiplies with its weights.

use super::first_order;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// The pixels of each patch in a row, patches row by row.
///
/// Shapes: `images` `[batch, channels, height, width]` in f32 with sides that are multiples of `patch`, result
/// `[batch, height / patch * width / patch, channels * patch * patch]`.
pub fn patches(images: Tensor<4>, patch: usize) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as PatchOps>::patches(images.into_dispatch(), patch))
}

/// [`patches`] composed of Burn's operations.
pub fn patches_plain(images: Tensor<4>, patch: usize) -> Tensor<3> {
    let [batch, channels, height, width] = images.dims();
    let (rows, columns) = (height / patch, width / patch);
    images.reshape([batch, channels, rows, patch, columns, patch]).permute([0, 2, 4, 1, 3, 5]).reshape([
        batch,
        rows * columns,
        channels * patch * patch,
    ])
}

/// A backend that moves pixels in one pass.
#[backend_extension(Flex: cfg(feature = "flex"), Autodiff)]
pub trait PatchOps: Backend {
    /// See [`patches`].
    fn patches(images: FloatTensor<Self>, patch: usize) -> FloatTensor<Self>;

    /// The gradient of `images`, of shape `shape`, from that of the result.
    fn patches_backward(gradient: FloatTensor<Self>, shape: [usize; 4], patch: usize) -> FloatTensor<Self>;
}

impl<B: PatchOps, C: CheckpointStrategy> PatchOps for Autodiff<B, C> {
    fn patches(images: FloatTensor<Self>, patch: usize) -> FloatTensor<Self> {
        let prepared = PatchesBackward.prepare::<C>([images.node()]).compute_bound().stateful();
        let images = images.into_primitive();
        let shape = burn::backend::TensorMetadata::shape(&images).dims();
        let y = B::patches(images, patch);
        match prepared {
            OpsKind::Tracked(prepared) => prepared.finish((shape, patch), y),
            OpsKind::UnTracked(prepared) => prepared.finish(y),
        }
    }

    fn patches_backward(_: FloatTensor<Self>, _: [usize; 4], _: usize) -> FloatTensor<Self> {
        first_order("cutting patches")
    }
}

#[derive(Debug)]
struct PatchesBackward;

impl<B: PatchOps> Backward<B, 1> for PatchesBackward {
    type State = ([usize; 4], usize);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let (shape, patch) = ops.state;
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::patches_backward(gradient, shape, patch));
        }
    }
}
