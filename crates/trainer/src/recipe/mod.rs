//! What training does to the weights: loss, learning rate, optimizer, stochastic depth.

pub mod distillation;
pub mod ema;
pub mod loss;
pub mod mixing;
pub mod optimizer;
pub mod schedule;
pub mod stochastic_depth;
