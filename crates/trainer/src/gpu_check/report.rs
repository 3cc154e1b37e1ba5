//! The report in Markdown, and the lines that say how far the check is.

use serde_json::Value;

use super::task::{Agreement, Answer, Device, Measure, Speed, Step};
use super::{Compared, Measured, attention, peak};
use crate::bench::peak::{Peak, Source};
use crate::config::Precision;

fn step(step: Step) -> &'static str {
    match step {
        Step::Train => "training",
        Step::Infer => "inference",
    }
}

/// What the device is.
pub fn head(device: &Device) -> String {
    let source = |peak: &Peak| match peak.source {
        Source::Published => "published",
        Source::Measured => "measured",
    };
    let told = |peak: &Peak| format!("{:.3} TFLOP/s ({}: {})", peak.flops_per_second / 1e12, source(peak), peak.what);
    let mut out = format!("# {}\n\n", device.name);
    out += &format!("- f32: products of matrices are computed in {}; peak {}\n", device.f32_products, told(&device.peak_f32));
    out += &match &device.peak_bf16 {
        Some(peak) => format!("- bf16: peak {}\n", told(peak)),
        None => "- bf16: the device does not compute in it\n".to_owned(),
    };
    out += match device.fused {
        true => "- operations: fused forms are there\n",
        false => "- operations: no fused forms; the backend joins what it can\n",
    };
    out
}

/// The table of comparisons.
pub fn agreement(compared: &[Compared]) -> String {
    let mut out = "## Agreement with the CPU\n\nRelative distances of logits, of the worst gradient of a parameter, and of the losses of 20 \
                   steps, each with what is allowed.\n\n| network | attention | precision | operations | logits | gradient | losses | |\n\
                   |---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for one in compared {
        let task = &one.task;
        let arithmetic = match task.precision {
            Precision::F32 => one.arithmetic.to_string(),
            Precision::Bf16 => task.precision.name().into(),
        };
        let ops = format!("{:?}", task.ops).to_lowercase();
        out += &format!("| {} | {} | {arithmetic} | {ops} | ", task.network, attention(task.attention));
        out += &match &one.found {
            Answer::Ok(Agreement { logits, gradient, parameter, loss }) => {
                let Agreement { logits: logits_limit, gradient: gradient_limit, loss: loss_limit, .. } = one.tolerance;
                format!(
                    "{} of {logits_limit:.0e} | {} of {gradient_limit:.0e} ({parameter}) | {} of {loss_limit:.0e} | ",
                    number(*logits),
                    number(*gradient),
                    number(*loss)
                )
            }
            Answer::Error(reason) => format!("{} | – | – | ", cell(reason)),
        };
        out += if one.passed { "agrees |\n" } else { "**does not agree** |\n" };
    }
    let failed = compared.iter().filter(|one| !one.passed).count();
    out += &match failed {
        0 => format!("\nAll {} comparisons agree.\n", compared.len()),
        _ => format!("\n**{failed} of {} comparisons do not agree.**\n", compared.len()),
    };
    out
}

fn number(value: f64) -> String {
    if value == f64::MAX { "not finite".into() } else { format!("{value:.1e}") }
}

/// The table of measurements.
pub fn speed(device: &Device, speed: &[Measured], peer: Option<&Answer<Value>>) -> String {
    let mut out = "## Speed\n\n".to_owned();
    if let Some(first) = speed.first() {
        let peak = peak(device, first.task.precision);
        out += &format!(
            "Images a second with products in {}, from images in main memory to the step's end; MFU is the share of {:.3} TFLOP/s ({}), by \
             the multiply-accumulates of the network's definition, three forward passes to a training step. Memory is what the backend holds \
             of the device, otherwise the process's.\n\n",
            first.task.precision.name(),
            peak.flops_per_second / 1e12,
            peak.what
        );
    }
    let beside = matches!(peer, Some(Answer::Ok(_)));
    let fused = speed.iter().any(|one| one.plain.is_some());
    out += "| network | attention | | batch | images/s | MFU | memory |";
    out += if fused { " plain | memory | fused / plain |" } else { "" };
    out += if beside { " PyTorch | memory | compiled | memory | manyheads / PyTorch | / compiled |\n" } else { "\n" };
    out += "|---|---|---|---|---|---|---|";
    out += if fused { "---|---|---|" } else { "" };
    out += if beside { "---|---|---|---|---|---|\n" } else { "\n" };
    for one in speed {
        let Measured { task, manyheads, mfu, plain, eager, compiled, out_of_memory_at } = one;
        let ratio = |other: &Option<Answer<Speed>>| match (manyheads, other) {
            (Answer::Ok(ours), Some(Answer::Ok(theirs))) => {
                format!("**{:.2}**", ours.images_per_second / theirs.images_per_second)
            }
            _ => "–".into(),
        };
        let batch: Vec<String> = out_of_memory_at.iter().map(|batch| format!("~~{batch}~~ ")).collect();
        out += &format!(
            "| {} | {} | {} | {}{} | {} | {} | {} |",
            task.network,
            attention(task.attention),
            step(task.step),
            batch.concat(),
            task.batch,
            images(Some(manyheads)),
            mfu.map_or("–".into(), |mfu| format!("{:.1} %", 100.0 * mfu)),
            memory(Some(manyheads)),
        );
        if fused {
            out += &format!(" {} | {} | {} |", images(plain.as_ref()), memory(plain.as_ref()), ratio(plain));
        }
        if beside {
            let [theirs, fast] = [eager, compiled].map(Option::as_ref);
            let (eager_ratio, compiled_ratio) = (ratio(eager), ratio(compiled));
            out += &format!(
                " {} | {} | {} | {} | {eager_ratio} | {compiled_ratio} |",
                images(theirs),
                memory(theirs),
                images(fast),
                memory(fast)
            );
        }
        out += "\n";
    }
    match peer {
        Some(Answer::Ok(about)) => {
            let text = |key: &str| about[key].as_str().unwrap_or("unknown").to_owned();
            out += &format!(
                "\nBeside PyTorch {} with timm {} on {}: autocast in the same precision, SDPA, fused AdamW, as it is and with torch.compile.\n",
                text("torch"),
                text("timm"),
                text("device")
            );
        }
        Some(Answer::Error(reason)) => out += &format!("\nPyTorch was not measured: {}\n", cell(reason)),
        None => {}
    }
    out
}

fn images(answer: Option<&Answer<Speed>>) -> String {
    match answer {
        Some(Answer::Ok(speed)) => format!("{:.1}", speed.images_per_second),
        Some(Answer::Error(reason)) if super::worker::out_of_memory(reason) => "out of memory".into(),
        Some(Answer::Error(reason)) => cell(reason),
        None => "–".into(),
    }
}

fn memory(answer: Option<&Answer<Speed>>) -> String {
    let gigabytes = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
    match answer {
        Some(Answer::Ok(speed)) => match (speed.device_memory_bytes, speed.process_memory_bytes) {
            (Some(bytes), _) => gigabytes(bytes),
            (None, Some(bytes)) => format!("{} (process)", gigabytes(bytes)),
            (None, None) => "–".into(),
        },
        _ => "–".into(),
    }
}

/// A text that fits a table's cell.
fn cell(text: &str) -> String {
    const LONGEST: usize = 160;
    let text = text.replace('|', "/").split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text,
    }
}

/// A comparison in one line.
pub fn compared(one: &Compared) -> String {
    let task = &one.task;
    let what = format!(
        "{} | {} | {} | {}",
        task.network,
        attention(task.attention),
        task.precision.name(),
        format!("{:?}", task.ops).to_lowercase()
    );
    match &one.found {
        Answer::Ok(found) => format!(
            "agreement | {what} | logits {}, gradient {} ({}), losses {}: {}",
            number(found.logits),
            number(found.gradient),
            found.parameter,
            number(found.loss),
            if one.passed { "agrees" } else { "does NOT agree" }
        ),
        Answer::Error(reason) => format!("agreement | {what} | {reason}"),
    }
}

/// A measurement in one line.
pub fn measured(who: &str, task: &Measure, answer: &Answer<Speed>) -> String {
    let (network, attention, step) = (&task.network, attention(task.attention), step(task.step));
    let what = match answer {
        Answer::Ok(speed) => format!("{:.1} images/s", speed.images_per_second),
        Answer::Error(reason) => reason.clone(),
    };
    format!("{who} | {network} | {attention} | {step} | {} images | {what}", task.batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::peak::Arithmetic;
    use crate::gpu_check::sizes::{comparisons, measurements};
    use manyheads_model::Ops;
    use serde_json::json;

    fn device() -> Device {
        let peak = |tera: f64| Peak { flops_per_second: tera * 1e12, source: Source::Published, what: "A100, dense".into() };
        Device {
            name: "cuda:0 (NVIDIA A100)".into(),
            f32_products: Arithmetic::Tf32,
            bf16: true,
            fused: false,
            peak_f32: peak(156.0),
            peak_bf16: Some(peak(312.0)),
        }
    }

    fn fast(images_per_second: f64) -> Answer<Speed> {
        Answer::Ok(Speed {
            images_per_second,
            flops_per_second: None,
            flops_per_image: None,
            device_memory_bytes: Some(2_500_000_000),
            process_memory_bytes: None,
        })
    }

    #[test]
    fn a_full_memory_and_a_crash_are_cells_of_the_table() {
        let out_of_memory = Answer::Error("Out of memory: cannot reserve 3 bytes | at x.rs:3".into());
        let mut rows: Vec<Measured> = measurements(true, Precision::Bf16)
            .into_iter()
            .map(|task| Measured {
                task,
                out_of_memory_at: vec![],
                manyheads: fast(30.0),
                mfu: Some(0.25),
                plain: None,
                eager: Some(fast(20.0)),
                compiled: None,
            })
            .collect();
        rows[1].manyheads = out_of_memory.clone();
        rows[1].out_of_memory_at = vec![8];
        rows[2].eager = Some(out_of_memory);
        rows[3].manyheads = Answer::Error("the process ended (signal: 6): a | b".into());
        let peer = Answer::Ok(json!({"torch": "2.9", "timm": "1.0", "device": "NVIDIA A100"}));
        let text = speed(&device(), &rows, Some(&peer));
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            lines[2],
            "| odd, tiny | softmax | training | 4 | 30.0 | 25.0 % | 2.50 GB | 20.0 | 2.50 GB | – | – | **1.50** | – |"
        );
        assert!(lines[3].contains("| ~~8~~ 4 | out of memory |"), "{}", lines[3]);
        assert!(lines[4].contains("| out of memory | – | – | – | – | – |"), "{}", lines[4]);
        assert!(lines[5].contains("the process ended (signal: 6): a / b"), "{}", lines[5]);
        // Every row has as many cells as the head.
        let cells = |line: &&str| line.matches('|').count();
        assert!(lines.iter().all(|line| cells(line) == cells(&lines[0])), "{text}");
        assert!(text.contains("PyTorch 2.9 with timm 1.0 on NVIDIA A100"));

        rows[0].plain = Some(fast(15.0));
        let both = speed(&device(), &rows, Some(&peer));
        let lines: Vec<&str> = both.lines().filter(|line| line.starts_with('|')).collect();
        assert!(lines[2].contains("| 25.0 % | 2.50 GB | 15.0 | 2.50 GB | **2.00** | 20.0 |"), "{}", lines[2]);
        assert!(lines.iter().all(|line| cells(line) == cells(&lines[0])), "{both}");

        let alone = speed(&device(), &rows, Some(&Answer::Error("no module named torch".into())));
        assert!(alone.contains("PyTorch was not measured: no module named torch") && !alone.contains("compiled"), "{alone}");
    }

    #[test]
    fn the_table_of_comparisons_says_what_does_not_agree() {
        let found = |gradient| {
            Answer::Ok(Agreement { logits: 1e-6, gradient, parameter: "blocks.0.attn.qkv.weight".into(), loss: f64::MAX })
        };
        let one = |found: Answer<Agreement>, passed| Compared {
            task: comparisons(true, &[Precision::F32], &[Ops::Plain]).remove(0),
            arithmetic: Arithmetic::Tf32,
            tolerance: crate::gpu_check::agreement::tolerance(Arithmetic::Tf32),
            found,
            passed,
        };
        let text = agreement(&[one(found(0.5), false), one(Answer::Error("it ended | badly".into()), false)]);
        assert!(text.contains("| odd, tiny | softmax | TF32 | plain | 1.0e-6 of 5e-3 | 5.0e-1 of 2e-2 (blocks.0.attn.qkv.weight) | not finite of 1e-2 | **does not agree** |"), "{text}");
        assert!(text.contains("it ended / badly | – | – | **does not agree** |"), "{text}");
        assert!(text.contains("2 of 2 comparisons do not agree"), "{text}");
        assert!(agreement(&[one(found(0.0), true)]).contains("All 1 comparisons agree."));
    }
}
