//! What a run writes down: metrics for programs, progress for people.

pub mod jsonl;
pub mod progress;
