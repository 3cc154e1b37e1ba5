//! What training does to the weights: loss, learning rate, optimizer, stochastic depth.

pub mod loss;
pub mod optimizer;
pub mod schedule;
pub mod stochastic_depth;
