//! The dashboard: drawn from the metrics of a real run, and driven in a real terminal.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use manyheads_trainer::log::dashboard::{Board, draw};
use manyheads_trainer::log::jsonl::Record;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use support::{PROGRAM, Place, metrics, steps};

const SHORT: &str =
    "[train]\nepochs = 4\nbatch_size = 8\naccumulate = 1\n[ema]\nenabled = true\ndecay = 0.9\n[log]\nevery_steps = 1\n";
/// It goes on until it is stopped.
const LONG: &str = "[train]\nepochs = 100000\nbatch_size = 8\naccumulate = 1\n[log]\nevery_steps = 5\n[checkpoint]\nevery_epochs = 0\nkeep_best = false\n[eval]\nevery_epochs = 100\n";

/// The screen of a board as text.
fn picture(board: &Board, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, board)).unwrap();
    let cells = terminal.backend().buffer().content();
    let rows = cells.chunks(usize::from(width)).map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    rows.collect::<Vec<_>>().join("\n")
}

fn braille(text: &str) -> usize {
    text.chars().filter(|character| ('\u{2801}'..='\u{28ff}').contains(character)).count()
}

#[track_caller]
fn assert_shows(screen: &str, words: &[&str]) {
    for word in words {
        assert!(screen.contains(word), "`{word}` is not on the screen:\n{screen}");
    }
}

#[test]
fn a_real_runs_metrics_fill_the_screen_at_both_sizes() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SHORT);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(0);
    let text = fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let mut board = Board::new("run on cpu (2 threads)");
    for line in text.lines() {
        board.record(&serde_json::from_str::<Record>(line).unwrap());
        board.memory(300 << 20);
    }
    board.line("epoch 4/4: it is done");
    let eval = metrics(&place.path("run")).into_iter().rfind(|line| line["kind"] == "eval").unwrap();
    let top1 = format!("top-1 {:.2} %", eval["top1"].as_f64().unwrap());
    let average = format!("average {:.2}", eval["ema_top1"].as_f64().unwrap());
    let held_out = format!("held-out {:.4}", eval["loss"].as_f64().unwrap());
    let words = [
        "manyheads",
        "run on cpu",
        &top1,
        &average,
        &held_out,
        "learning rate",
        "images/s",
        "waiting for data",
        "memory 300 MiB",
        "it is done",
    ];
    let small = picture(&board, 80, 24);
    let large = picture(&board, 200, 50);
    println!("{small}\n{large}");
    for (screen, [width, height], curve) in [(&small, [80, 24], 100), (&large, [200, 50], 400)] {
        assert_shows(screen, &words);
        assert_shows(screen, &["checkpoint now", "save and stop", "help"]);
        assert!(screen.lines().count() == height && screen.lines().all(|line| line.chars().count() == width), "{screen}");
        assert!(braille(screen) > curve, "{} cells of curves in\n{screen}", braille(screen));
    }
}

/// The program in a terminal of its own, which util-linux's `script` makes.
struct Pty {
    child: Child,
    keys: ChildStdin,
    output: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
    size: (u16, u16),
}

impl Pty {
    fn start(place: &Place, (rows, columns): (u16, u16), before: &str, args: &str) -> Self {
        let line = format!("stty rows {rows} cols {columns}; {before} exec {PROGRAM} {args}");
        let mut command = Command::new("script");
        command
            .args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"])
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh");
        command.current_dir(place.path("")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("script (bsdutils) runs");
        let output = Arc::new(Mutex::new(Vec::new()));
        let (mut stdout, sink) = (child.stdout.take().unwrap(), Arc::clone(&output));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                sink.lock().unwrap().extend(&bytes[..count]);
            }
        });
        Self { keys: child.stdin.take().unwrap(), child, output, reader, size: (rows, columns) }
    }

    /// The terminal as it looks now.
    fn terminal(&self) -> vt100::Parser {
        let mut parser = blank(self.size);
        parser.process(&self.output.lock().unwrap());
        parser
    }

    /// Waits until the screen shows `word`, and returns it.
    #[track_caller]
    fn until(&self, word: &str) -> String {
        let start = Instant::now();
        loop {
            let screen = self.terminal().screen().contents();
            if screen.contains(word) {
                return screen;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "`{word}` does not come:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits for the end; the terminal is then as it was before.
    #[track_caller]
    fn end(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        let Self { reader, output, size, .. } = self;
        reader.join().unwrap();
        let output = output.lock().unwrap();
        let mut parser = blank((500, size.1));
        parser.process(&output);
        let screen = parser.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor(), "the terminal is given back");
        (status, screen.contents())
    }
}

/// A terminal of so many rows and columns that shows nothing yet.
fn blank((rows, columns): (u16, u16)) -> vt100::Parser {
    vt100::Parser::new(rows.try_into().unwrap(), columns.try_into().unwrap(), 0)
}

#[test]
fn keys_save_and_stop_and_the_terminal_is_given_back() {
    let place = Place::new();
    place.images(13, 4);
    place.config(LONG);
    let mut pty = Pty::start(&place, (24, 80), "", "train tiny.toml --device cpu --out run --dashboard");
    let screen = pty.until("held-out");
    assert_shows(&screen, &["run on cpu", "epoch ", "loss ", "images/s", "memory ", " MiB", "checkpoint now"]);
    assert!(pty.terminal().screen().alternate_screen() && pty.terminal().screen().hide_cursor());
    println!("{screen}");
    pty.press("h");
    assert_shows(&pty.until("this page"), &["Ctrl-C"]);
    pty.press("h");
    pty.press("c");
    pty.until("is saved");
    let saved = steps(&place.path("run"));
    assert_eq!(saved.len(), 1);
    pty.press("q");
    pty.until("Stop?");
    pty.press("n");
    pty.until("save and stop");
    pty.press("qy");
    let (status, text) = pty.end();
    assert_eq!(status.code(), Some(130), "{text}");
    // What was said while the screen was full is in the terminal's history, as plain lines have it.
    assert_shows(&text, &["epoch 100/100000: top-1", &format!("checkpoint {} is saved", saved[0]), "manyheads resume run"]);
    assert!(steps(&place.path("run")).len() == 2);
    // A wish leaves no trace in the metrics: two equal runs stay equal.
    assert!(metrics(&place.path("run")).iter().all(|line| line["kind"] != "checkpoint"));

    // A resumed run shows what was before, at another size. Ctrl-C stops, too.
    let mut pty = Pty::start(&place, (50, 200), "", "resume run --device cpu --dashboard");
    let screen = pty.until("held-out");
    println!("{screen}");
    assert!(braille(&screen) > 300, "{screen}");
    pty.press("\x03");
    let (status, text) = pty.end();
    assert_eq!(status.code(), Some(130), "{text}");
    assert_shows(&text, &["continuing from", "manyheads resume run"]);
}

#[test]
fn an_error_and_a_second_sigint_leave_the_terminal_in_order() {
    let place = Place::new();
    place.images(13, 4);
    place.config(LONG);
    // An image that is not one, met during training.
    fs::write(place.path("train/class4/0003.png"), "not an image").unwrap();
    let pty = Pty::start(&place, (24, 80), "", "train tiny.toml --device cpu --out bad --dashboard");
    let (status, text) = pty.end();
    assert_eq!(status.code(), Some(1), "{text}");
    assert_shows(&text.replace('\n', ""), &["error: ", "class4/0003.png", "manyheads resume bad"]);

    place.images(13, 4);
    // One step lasts for minutes, so that only the second signal can end it.
    let config = "train tiny.toml --device cpu --out run --dashboard --set train.batch_size=1 --set train.accumulate=130 --set model.width=512 --set model.depth=3 --set log.tensorboard=false";
    let pty = Pty::start(&place, (24, 80), "echo $$ > pid;", config);
    pty.until("waiting for the first step");
    let pid = fs::read_to_string(place.path("pid")).unwrap();
    for _ in 0..2 {
        assert!(Command::new("kill").args(["-INT", pid.trim()]).status().unwrap().success());
        std::thread::sleep(Duration::from_millis(200));
    }
    let (status, text) = pty.end();
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(!text.contains("the state is saved"), "{text}");
}

#[test]
fn without_a_terminal_plain_lines_follow() {
    let place = Place::new();
    place.images(13, 4);
    place.config(SHORT);
    let done = place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run", "--dashboard", "--json"]).expect(0);
    assert_eq!(done.json()["finished"], true);
    let done = done.says(&["no dashboard, since stderr is no terminal", "step 64/64", "epoch 4/4: top-1"]);
    assert!(!done.stderr.contains('\x1b'), "{}", done.stderr);

    let pty = Pty::start(&place, (24, 80), "TERM=dumb", "resume run --device cpu --dashboard");
    let (status, text) = pty.end();
    assert_eq!(status.code(), Some(0), "{text}");
    assert_shows(&text, &["TERM is dumb", "top-1"]);
}
