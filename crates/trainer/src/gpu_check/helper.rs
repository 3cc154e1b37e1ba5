//! A process that answers questions line by line, and may crash, hang or run out of memory without harm to whoever asks.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::task::Answer;

/// How to start a helper, and the one that runs. One that failed is replaced at the next question.
pub struct Helper {
    command: Vec<String>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
    errors: Arc<Mutex<VecDeque<String>>>,
}

impl Helper {
    /// A helper that `command`, program and arguments, will start.
    pub fn new(command: Vec<String>) -> Self {
        Self { command, running: None }
    }

    /// Asks and waits for at most `limit`. An answer that is an error ends the helper: its device may be in disorder, and its memory
    /// is given back.
    pub fn ask<Q: Serialize, A: DeserializeOwned>(&mut self, question: &Q, limit: Duration) -> Answer<A> {
        let answer = match self.running() {
            Ok(running) => running.ask(question, limit),
            Err(reason) => Answer::Error(reason),
        };
        if matches!(answer, Answer::Error(_)) {
            self.stop();
        }
        answer
    }

    /// Ends the process, where one runs.
    pub fn stop(&mut self) {
        self.running = None;
    }

    fn running(&mut self) -> Result<&mut Running, String> {
        match &mut self.running {
            Some(running) => Ok(running),
            none => Ok(none.insert(Running::start(&self.command)?)),
        }
    }
}

impl Running {
    fn start(command: &[String]) -> Result<Self, String> {
        let (program, arguments) = command.split_first().ok_or("no program is named")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start {program}: {e}"))?;
        let (Some(questions), Some(out), Some(err)) = (child.stdin.take(), child.stdout.take(), child.stderr.take()) else {
            return Err(format!("cannot talk to {program}"));
        };
        let (send, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&errors);
        thread::spawn(move || keep_last_lines(err, &kept));
        Ok(Self { child, questions, answers, errors })
    }

    fn ask<Q: Serialize, A: DeserializeOwned>(&mut self, question: &Q, limit: Duration) -> Answer<A> {
        let until = Instant::now() + limit;
        let asked = serde_json::to_string(question)
            .map_err(|e| e.to_string())
            .and_then(|line| writeln!(self.questions, "{line}").map_err(|_| self.last_words()));
        if let Err(reason) = asked {
            return Answer::Error(reason);
        }
        loop {
            match self.answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                // Libraries print on stdout too.
                Ok(line) if !line.starts_with('{') => {}
                Ok(line) => {
                    return serde_json::from_str(&line).unwrap_or_else(|e| Answer::Error(format!("it answered `{line}`: {e}")));
                }
                Err(RecvTimeoutError::Timeout) => return Answer::Error(format!("no answer within {:.0} s", limit.as_secs_f64())),
                Err(RecvTimeoutError::Disconnected) => return Answer::Error(self.last_words()),
            }
        }
    }

    /// How the process ended, and what it said last.
    fn last_words(&mut self) -> String {
        // A process that has closed its stdout has as good as ended, and the thread that reads its stderr may be a moment behind.
        let mut ended = None;
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(50));
            ended = self.child.try_wait().ok().flatten();
            if ended.is_some() {
                break;
            }
        }
        let ended = ended.map_or_else(|| "it closed its output".into(), |status| status.to_string());
        let lines = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let said: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!("the process ended ({ended}): {}", said.join(" | "))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn keep_last_lines(from: impl Read, kept: &Mutex<VecDeque<String>>) {
    const LINES: usize = 6;
    for line in BufReader::new(from).lines().map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == LINES {
            kept.pop_front();
        }
        kept.push_back(line.chars().take(300).collect());
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Helper {
        Helper::new(["sh", "-c", script].map(str::to_owned).into())
    }

    fn ask(helper: &mut Helper) -> Answer<u32> {
        helper.ask(&"question", Duration::from_secs(5))
    }

    #[test]
    fn one_process_answers_many_questions_and_noise_is_passed_over() {
        let mut helper = shell("n=0; while read -r line; do n=$((n+1)); echo noise; echo \"{\\\"ok\\\": $n}\"; done");
        for expected in 1..4 {
            assert!(matches!(ask(&mut helper), Answer::Ok(n) if n == expected));
        }
    }

    #[test]
    fn a_crash_a_hang_and_an_error_are_answers_and_the_next_question_meets_a_new_process() {
        let mut crash = shell("read -r line; echo first >&2; echo last words >&2; exit 7");
        for _ in 0..2 {
            let Answer::Error(reason) = ask(&mut crash) else { panic!("it crashed") };
            assert!(reason.contains('7') && reason.contains("first | last words"), "{reason}");
        }
        let mut hang = shell("read -r line; exec sleep 60");
        let answer: Answer<u32> = hang.ask(&1, Duration::from_millis(100));
        assert!(matches!(answer, Answer::Error(reason) if reason.contains("no answer within")));
        let mut refuse = shell("read -r line; echo '{\"error\": \"no\"}'; read -r line; echo '{\"ok\": 1}'");
        for _ in 0..2 {
            assert!(matches!(ask(&mut refuse), Answer::Error(reason) if reason == "no"));
        }
        let mut nobody = Helper::new(vec!["/nonexistent/program".into()]);
        assert!(matches!(ask(&mut nobody), Answer::Error(reason) if reason.contains("cannot start /nonexistent/program")));
    }
}
