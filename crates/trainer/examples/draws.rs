//! Prints what the program draws for the fifty steps that are compared with PyTorch and timm, for
//! `scripts/reference/recipe_fixtures.py`:
//!
//! ```text
//! cargo run --release -p manyheads-trainer --example draws > crates/trainer/tests/fixtures/draws.json
//! ```

#[cfg(feature = "flex")]
#[path = "../tests/fifty_steps/mod.rs"]
mod fifty_steps;

fn main() {
    #[cfg(feature = "flex")]
    println!("{}", fifty_steps::draws());
    #[cfg(not(feature = "flex"))]
    eprintln!("build it with the feature flex");
}
