//! The dashboard as a picture of characters, at any size.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, BorderType, Chart, Clear, Dataset, GraphType, LineGauge, Paragraph, Wrap};

use super::board::{Board, Prompt};
use super::series::{Series, bounds};

/// From this width on, the four small curves stand in one row.
const WIDE: u16 = 140;
/// Below this height of what is left for curves, the small ones are left out.
const SMALL_CURVES: u16 = 12;

const HELP: &str = "c   write a checkpoint after this step
q   finish this step, save and stop (asks first); `manyheads resume` goes on from there
h   this page

Ctrl-C stops as q does, without asking; a second one leaves at once.
SIGTERM and SIGUSR1 save and stop, too.

loss: training since the last line, and on the held-out images (dotted)
top-1: the weights, and their average where one is kept (dotted)
waiting for data: share of the time in which the loop waited for images;
  above a few per cent, more data.workers or `manyheads data pack` help
memory: resident memory of the process, without the device's own

What is said here is printed again when the dashboard ends.";

/// A curve to be drawn.
struct Curve<'a> {
    /// What matters most first; what does not fit is left out.
    title: Vec<String>,
    /// Drawn solid, and dotted.
    series: [Option<&'a Series>; 2],
    color: Color,
    /// How a value is written.
    text: fn(f64) -> String,
    /// Whether the curve starts at zero.
    from_zero: bool,
}

/// Draws the board.
pub fn draw(frame: &mut Frame<'_>, board: &Board) {
    let area = frame.area();
    let [title, gauge, body, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    draw_title(frame, board, title);
    draw_gauge(frame, board, gauge);
    draw_keys(frame, board, keys);

    let lines = (body.height / 4).max(6).min(body.height);
    let [curves, lines] = Layout::vertical([Constraint::Fill(1), Constraint::Length(lines)]).areas(body);
    draw_curves(frame, board, curves);
    draw_lines(frame, board, lines);
    if board.prompt == Prompt::Help {
        let shown = HELP.lines().count() as u16 + 2;
        let [page] = Layout::vertical([Constraint::Length(shown)]).areas(body);
        frame.render_widget(Clear, page);
        frame.render_widget(Paragraph::new(HELP).wrap(Wrap { trim: false }).block(pane(" help ".into())), page);
    }
}

fn draw_title(frame: &mut Frame<'_>, board: &Board, area: Rect) {
    let running = format!(" running {} ", clock(board.started.elapsed()));
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(running.len() as u16)]).areas(area);
    let name = Line::from(vec![" manyheads ".bold().reversed(), Span::from(format!(" {}", board.title))]);
    frame.render_widget(name, left);
    frame.render_widget(Line::from(running).alignment(Alignment::Right), right);
}

fn draw_gauge(frame: &mut Frame<'_>, board: &Board, area: Rect) {
    let Some(progress) = &board.progress else {
        frame.render_widget(Line::from(board.activity.clone().unwrap_or_else(|| " waiting for the first step".into())), area);
        return;
    };
    let (step, steps) = (board.step.max(progress.step), progress.steps.max(1));
    let ratio = (step as f64 / steps as f64).clamp(0.0, 1.0);
    let left = progress.left.map_or(String::new(), |left| format!(" │ {} left", duration(left)));
    let label =
        format!(" epoch {}/{} │ step {step}/{steps} │ {:.0} %{left} ", progress.epoch + 1, progress.epochs, ratio * 100.0);
    let label = match &board.activity {
        Some(activity) => format!(" epoch {}/{} │ {activity} ", progress.epoch + 1, progress.epochs),
        None => label,
    };
    let gauge = LineGauge::default().ratio(ratio).label(label).filled_symbol("━").unfilled_symbol("─");
    frame.render_widget(gauge.filled_style(Style::new().fg(Color::Cyan)), area);
}

fn draw_keys(frame: &mut Frame<'_>, board: &Board, area: Rect) {
    let line = match board.prompt {
        Prompt::Stop => {
            Line::from(" Stop? This step is finished and the state saved.  y yes   any other key no ".bold().reversed())
        }
        _ if board.stopping => Line::from(" stopping: finishing the step and saving; Ctrl-C again leaves at once ".bold()),
        Prompt::Keys => {
            [" c", " checkpoint now   ", "q", " save and stop   ", "h", " help"].into_iter().enumerate().map(key).collect()
        }
        Prompt::Help => Line::from(" h closes this page "),
    };
    frame.render_widget(line, area);
}

/// Every other part is a key.
fn key((number, part): (usize, &'static str)) -> Span<'static> {
    if number % 2 == 0 { part.bold() } else { part.dim() }
}

fn draw_curves(frame: &mut Frame<'_>, board: &Board, area: Rect) {
    if area.height < 3 {
        return;
    }
    let with_small = area.height >= SMALL_CURVES;
    let wide = area.width >= WIDE;
    let (rows, share) = match (with_small, wide) {
        (false, _) => (0, 1),
        (true, true) => (1, 2),
        (true, false) => (2, 1),
    };
    let mut parts = vec![Constraint::Fill(3 * share)];
    parts.extend(vec![Constraint::Fill(if wide { 3 } else { 2 }); rows]);
    let bands = Layout::vertical(parts).split(area);
    // All curves over the same steps, so that what happened at once stands at one place.
    let (large, small) = ([loss(board), top1(board)], small(board));
    let shown = large.iter().chain(&small).flat_map(|curve| curve.series).flatten();
    let [first, last] = bounds(shown).map_or([0.0, 1.0], |[steps, _]| steps);
    let steps = [first, last.max(first + 1.0)];
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(bands[0]);
    draw_curve(frame, &large[0], steps, left);
    draw_curve(frame, &large[1], steps, right);
    let cells: Vec<Rect> = bands[1..]
        .iter()
        .flat_map(|band| Layout::horizontal(vec![Constraint::Fill(1); 4 / rows.max(1)]).split(*band).to_vec())
        .collect();
    for (curve, cell) in small.iter().zip(cells) {
        draw_curve(frame, curve, steps, cell);
    }
}

fn loss(board: &Board) -> Curve<'_> {
    let now = board.progress.map(|progress| progress.loss).filter(|loss| loss.is_finite()).or(board.loss.last());
    let mut title = vec![format!("loss {}", now.map_or("–".into(), decimals))];
    title.extend(board.eval_loss.last().map(|loss| format!("held-out {}", decimals(loss))));
    Curve { title, series: [Some(&board.loss), Some(&board.eval_loss)], color: Color::Yellow, text: decimals, from_zero: false }
}

fn top1(board: &Board) -> Curve<'_> {
    let percent = |value: f64| format!("{value:.2}");
    let mut title = vec![format!("top-1 {}", board.top1.last().map_or("–".into(), |top1| format!("{top1:.2} %")))];
    title.extend(board.ema_top1.last().map(|top1| format!("average {top1:.2}")));
    title.extend(board.best.map(|(step, best)| format!("best {best:.2} at {step}")));
    Curve { title, series: [Some(&board.top1), Some(&board.ema_top1)], color: Color::Green, text: percent, from_zero: false }
}

fn small(board: &Board) -> [Curve<'_>; 4] {
    let rate = board.progress.map(|progress| progress.learning_rate).or(board.learning_rate.last());
    let speed = board.progress.map(|progress| progress.images_per_second).or(board.images_per_second.last());
    let wait = board.progress.map(|progress| progress.data_wait * 100.0).or(board.data_wait.last());
    let curve = |name: &str, now: Option<f64>, series, color, text: fn(f64) -> String, unit: &str| Curve {
        title: vec![format!("{name} {}", now.map_or("–".into(), |value| text(value) + unit))],
        series: [Some(series), None],
        color,
        text,
        from_zero: true,
    };
    [
        curve("learning rate", rate, &board.learning_rate, Color::Magenta, scientific, ""),
        curve("images/s", speed, &board.images_per_second, Color::Cyan, three_digits, ""),
        curve("waiting for data", wait, &board.data_wait, Color::Red, whole, " %"),
        curve("memory", board.memory.last(), &board.memory, Color::Blue, bytes, ""),
    ]
}

fn pane(title: String) -> Block<'static> {
    Block::bordered().border_type(BorderType::Rounded).border_style(Style::new().dim()).title(title.bold())
}

fn draw_curve(frame: &mut Frame<'_>, curve: &Curve<'_>, steps: [f64; 2], area: Rect) {
    // Two corners and two spaces.
    let room = usize::from(area.width).saturating_sub(4);
    let fitting = (1..=curve.title.len()).map(|parts| curve.title[..parts].join(" │ "));
    let title = fitting.take_while(|title| title.chars().count() <= room).last();
    let block = pane(format!(" {} ", title.unwrap_or_else(|| curve.title[0].clone())));
    let Some([_, [low, high]]) = bounds(curve.series.into_iter().flatten()) else {
        frame.render_widget(block, area);
        return;
    };
    let low = if curve.from_zero { low.min(0.0) } else { low };
    // A flat curve lies in the middle.
    let margin = if high > low { 0.0 } else { high.abs().max(1e-9) * 0.5 };
    let (bottom, top) = (low - margin, high + margin);
    let inner = block.inner(area);
    let labels = |fits: bool, texts: Vec<String>| if fits { texts } else { Vec::new() };
    let middle = (bottom + top) / 2.0;
    let heights = if inner.height >= 5 { vec![bottom, middle, top] } else { vec![bottom, top] };
    let y_labels = labels(inner.height >= 2 && inner.width >= 24, heights.into_iter().map(curve.text).collect());
    let x_labels = labels(inner.height >= 8 && inner.width >= 24, steps.map(whole).to_vec());
    let datasets = curve.series.into_iter().zip([Marker::Braille, Marker::Dot]).filter_map(|(series, marker)| {
        let points = series?.points();
        // A single point makes no line.
        let graph = if marker == Marker::Dot || points.len() < 2 { GraphType::Scatter } else { GraphType::Line };
        Some(Dataset::default().marker(marker).graph_type(graph).style(Style::new().fg(curve.color)).data(points))
    });
    let quiet = Style::new().add_modifier(Modifier::DIM);
    let chart = Chart::new(datasets.collect())
        .block(block)
        .legend_position(None)
        .x_axis(Axis::default().bounds(steps).labels(x_labels).style(quiet))
        .y_axis(Axis::default().bounds([bottom, top]).labels(y_labels).style(quiet));
    frame.render_widget(chart, area);
}

/// The newest lines that fit, wrapped, the newest at the bottom.
fn draw_lines(frame: &mut Frame<'_>, board: &Board, area: Rect) {
    let block = pane(" what happened ".into());
    let inner = block.inner(area);
    let mut shown: Vec<Line<'_>> = Vec::new();
    for (since, text) in board.lines.iter().rev() {
        if shown.len() >= usize::from(inner.height) {
            break;
        }
        let time = format!("{} ", clock(*since));
        let room = usize::from(inner.width).saturating_sub(time.len()).max(1);
        let characters: Vec<char> = text.chars().collect();
        let rows = characters.chunks(room).enumerate().map(|(row, part)| {
            let margin = if row == 0 { time.clone() } else { " ".repeat(time.len()) };
            Line::from(vec![margin.dim(), Span::from(part.iter().collect::<String>())])
        });
        let rows: Vec<Line<'_>> = rows.collect();
        shown.extend(rows.into_iter().rev());
    }
    shown.truncate(usize::from(inner.height));
    shown.reverse();
    frame.render_widget(Paragraph::new(shown).block(block), area);
}

fn decimals(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 { scientific(value) } else { format!("{value:.4}") }
}

fn scientific(value: f64) -> String {
    if value == 0.0 { "0".into() } else { format!("{value:.2e}") }
}

fn three_digits(value: f64) -> String {
    if value > 0.0 && value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn bytes(value: f64) -> String {
    let gib = value / f64::from(1 << 30);
    if gib >= 1.0 { format!("{gib:.2} GiB") } else { format!("{:.0} MiB", gib * 1024.0) }
}

/// h:mm:ss.
fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The two units that matter.
fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::log::jsonl::Record;
    use crate::log::progress::Progress;

    fn screen(board: &Board, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, board)).unwrap();
        let cells = terminal.backend().buffer().content();
        let line = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned();
        cells.chunks(usize::from(width).max(1)).map(line).collect::<Vec<_>>().join("\n")
    }

    fn board() -> Board {
        let mut board = Board::new("runs/x on cpu (2 threads)");
        for step in 1..=100 {
            board.record(&Record::Train {
                step,
                epoch: step / 50,
                loss: 2.0 / step as f64 + 0.3,
                learning_rate: 1e-3,
                gradient_norm: 1.0,
                images: 32,
                time_seconds: 0.0,
                time_unix: 0.0,
                rate_images_per_second: 800.0 + step as f64,
                rate_data_wait: 0.02,
                rate_memory_bytes: None,
                rate_device_memory_bytes: None,
            });
            board.memory(1 << 30);
        }
        board.progress(Progress {
            step: 100,
            steps: 400,
            epoch: 1,
            epochs: 8,
            loss: 0.32,
            learning_rate: 1e-3,
            images_per_second: 900.0,
            data_wait: 0.02,
            left: Some(Duration::from_secs(3 * 86_400 + 7200)),
        });
        board.line("epoch 1/8: top-1 50.00 %");
        board
    }

    #[test]
    fn every_size_is_drawn_without_a_panic() {
        let empty = Board::new("");
        let mut full = board();
        full.line("a long line ".repeat(50));
        full.line("第一 🙂 é".repeat(20));
        for (width, height) in
            (0..40).flat_map(|width| (0..20).map(move |height| (width, height))).chain([(79, 23), (140, 12), (500, 200)])
        {
            for prompt in [Prompt::Keys, Prompt::Stop, Prompt::Help] {
                full.prompt = prompt;
                screen(&full, width, height);
            }
            screen(&empty, width, height);
        }
    }

    #[test]
    fn the_keys_and_the_question_are_on_the_last_line() {
        let mut board = board();
        let last = |board: &Board| screen(board, 80, 24).lines().last().unwrap().trim().to_owned();
        assert!(last(&board).contains("checkpoint now") && last(&board).contains("save and stop"));
        board.prompt = Prompt::Stop;
        assert!(last(&board).starts_with("Stop?"));
        board.prompt = Prompt::Keys;
        board.stopping = true;
        assert!(last(&board).starts_with("stopping"));
    }

    #[test]
    fn times_have_the_units_that_matter() {
        let text = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!([text(5), text(65), text(3725), text(270_000)], ["5 s", "1 min 05 s", "1 h 02 min", "3 d 03 h"]);
        assert_eq!(clock(Duration::from_secs(3725)), "1:02:05");
    }
}
