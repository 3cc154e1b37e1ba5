//! Linear layers on the CPU.

use super::pieces::{pieces, rows_of_part, rows_of_piece, sum_parts};
use super::product::{Matrix, product};
use super::tensor::{in_order, rows, tensor, values};
use super::vector::add;
use crate::ops::LinearOps;
use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;

impl LinearOps for Flex {
    fn product(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        let x = in_order(x);
        let [_, out] = sides(&weight);
        tensor(product(matrix(&x), weights(&weight)), with_last(x.shape(), out))
    }

    fn affine(x: FlexTensor, weight: FlexTensor, bias: FlexTensor) -> FlexTensor {
        let (x, bias) = (in_order(x), in_order(bias));
        let [_, width] = sides(&weight);
        let bias = &values(&bias)[..width];
        let mut y = product(matrix(&x), weights(&weight));
        pieces(
            &mut y,
            rows_of_piece(width) * width,
            #[inline(always)]
            |_, y| {
                for y in y.chunks_exact_mut(width) {
                    add(y, bias);
                }
            },
        );
        tensor(y, with_last(x.shape(), width))
    }

    fn product_backward_x(gradient: FlexTensor, weight: FlexTensor) -> FlexTensor {
        let gradient = in_order(gradient);
        let [into, _] = sides(&weight);
        tensor(product(matrix(&gradient), weights(&weight).transposed()), with_last(gradient.shape(), into))
    }

    fn product_backward_weight(x: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let (x, gradient) = (in_order(x), in_order(gradient));
        let ((_, into), (_, out)) = (rows(&x.shape()), rows(&gradient.shape()));
        tensor(product(matrix(&x).transposed(), matrix(&gradient)), Shape::new([into, out]))
    }

    fn affine_backward_bias(gradient: FlexTensor) -> FlexTensor {
        column_sums(gradient)
    }
}

/// The sum over all axes but the last.
pub fn column_sums(gradient: FlexTensor) -> FlexTensor {
    let gradient = in_order(gradient);
    let (count, width) = rows(&gradient.shape());
    let part = rows_of_part(count, width);
    let mut parts = vec![0.0; count.div_ceil(part) * width];
    let input = values(&gradient);
    pieces(
        &mut parts,
        width,
        #[inline(always)]
        |number, sum| {
            let from = number * part * width;
            let to = (from + part * width).min(input.len());
            for row in input[from..to].chunks_exact(width) {
                add(sum, row);
            }
        },
    );
    tensor(sum_parts(&parts, width), Shape::new([width]))
}

/// A tensor as a matrix with its last axis across.
fn matrix(tensor: &FlexTensor) -> Matrix<'_> {
    let (count, width) = rows(&tensor.shape());
    Matrix::new(values(tensor), count, width)
}

/// The weights of a layer, which may be the transposed view of others.
fn weights(tensor: &FlexTensor) -> Matrix<'_> {
    let layout = tensor.layout();
    let strides = [0, 1].map(|axis| usize::try_from(layout.strides()[axis]).expect("weights are not flipped"));
    Matrix::strided(&tensor.storage::<f32>()[layout.start_offset()..], sides(tensor), strides)
}

fn sides(weight: &FlexTensor) -> [usize; 2] {
    weight.shape().dims()
}

/// A shape with another last axis.
fn with_last(mut shape: Shape, last: usize) -> Shape {
    let axis = shape.num_dims() - 1;
    shape[axis] = last;
    shape
}
