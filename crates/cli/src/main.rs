//! `manyheads`: train Vision Transformers, resume them, evaluate them.

mod allocator;
mod bench;
mod bench_attention;
mod bench_gpu;
mod bench_model;
mod data;
mod eval;
mod info;
mod leave;
mod predict;
mod resume;
mod train;
mod weights;
mod weights_options;

use clap::{Parser, Subcommand};
use leave::{Code, FAILURE, INTERRUPTED, SUCCESS, leave};
use manyheads_trainer::{DeviceName, Error, Outcome, Result, View};

/// Train Vision Transformers with softmax, linear and Hydra attention: one binary, no Python.
#[derive(Parser)]
#[command(version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(train::Args),
    Resume(resume::Args),
    Eval(eval::Args),
    Predict(predict::Args),
    Info(info::Args),
    Data(data::Args),
    Weights(weights::Args),
    Bench(bench::Args),
}

fn main() {
    allocator::keep_memory();
    // clap itself leaves with code 2 where the command line is wrong.
    let command = Cli::parse().command;
    // Backends panic where a device fails, as when its memory is full; the hook has said where by then.
    let result = std::panic::catch_unwind(|| match command {
        Command::Train(args) => train::run(args),
        Command::Resume(args) => resume::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Info(args) => info::run(args),
        Command::Data(args) => data::run(args),
        Command::Weights(args) => weights::run(args),
        Command::Bench(args) => bench::run(args),
    });
    leave(match result {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            say(&format!("error: {error}"));
            error.exit_code() as Code
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let advice = manyheads_trainer::engine::device::advice(text.unwrap_or_default());
            say(&format!(
                "error: the program or its backend failed in the way told above{advice}. A run can be continued with `manyheads resume`"
            ));
            FAILURE
        }
    })
}

/// Writes to stderr, whether or not anybody reads it.
fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// For clap: a device's name.
fn device(name: &str) -> std::result::Result<DeviceName, String> {
    DeviceName::parse(name)
}

/// What people see of a run.
fn view(dashboard: bool) -> View {
    if dashboard { View::Dashboard } else { View::Lines }
}

/// Writes to stdout. A reader that has left is not our failure.
fn print(text: impl std::fmt::Display) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::Failed(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Tells how a run ended.
fn tell(outcome: &Outcome, json: bool) -> Result<Code> {
    match outcome {
        Outcome::Finished(summary) => {
            let (last, best) = (&summary.last, &summary.best);
            let run = summary.run.display();
            if json {
                print(serde_json::json!({
                    "run": summary.run.to_string_lossy(), "step": summary.step, "finished": true,
                    "top1": last.top1, "top5": last.top5, "loss": last.loss, "n": last.n,
                    "best": {"step": best.step, "top1": best.top1}, "skipped": summary.skipped,
                }))?;
            } else {
                if summary.skipped > 0 {
                    print(format!(
                        "{} times an image was left out because it could not be read; see {run}/metrics.jsonl",
                        summary.skipped
                    ))?;
                }
                print(format!(
                    "top-1 {:.2} % | top-5 {:.2} % | loss {:.4} | n {} (best top-1 {:.2} % at step {})\nevaluate again with: manyheads eval {run}",
                    last.top1, last.top5, last.loss, last.n, best.top1, best.step
                ))?;
            }
            Ok(SUCCESS)
        }
        Outcome::Interrupted { run, step } => {
            if json {
                print(serde_json::json!({"run": run.to_string_lossy(), "step": step, "finished": false}))?;
            } else {
                say(&format!("stopped after step {step}; the state is saved. Continue with: manyheads resume {}", run.display()));
            }
            Ok(INTERRUPTED)
        }
    }
}
