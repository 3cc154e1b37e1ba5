//! What training does to the weights: loss, learning rate, optimizer, stochastic depth, dropout.

pub mod distillation;
pub mod dropout;
pub mod ema;
pub mod loss;
pub mod mixing;
pub mod optimizer;
pub mod schedule;
pub mod stochastic_depth;
