//! Errors that point at a line of a configuration, in the form compilers use.

use std::ops::Range;

/// A stretch of a configuration text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// File name, or the `--set` option as given.
    pub origin: String,
    /// Line number from 1.
    pub line: usize,
    /// Column from 1, in characters.
    pub column: usize,
    /// The line's text.
    pub text: String,
    /// Characters to underline.
    pub width: usize,
}

impl Place {
    /// The place of a byte range of `text`; a range over several lines is cut at the first.
    pub fn new(origin: &str, text: &str, span: Range<usize>) -> Self {
        let start = floor_boundary(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
        let end = floor_boundary(text, span.end.clamp(start, line_end));
        Self {
            origin: origin.into(),
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            text: text[line_start..line_end].trim_end().into(),
            width: text[start..end].chars().count().max(1),
        }
    }
}

/// The last character boundary at or before `index`.
fn floor_boundary(text: &str, index: usize) -> usize {
    let mut index = index.min(text.len());
    while !text.is_char_boundary(index) {
        index -= 1;
    }
    index
}

/// An error text with the place it is about and what to do.
pub(super) fn render(message: &str, place: Option<&Place>, help: Option<&str>) -> String {
    let mut out = message.to_string();
    let mut indent = String::new();
    if let Some(place) = place {
        let number = place.line.to_string();
        indent = " ".repeat(number.len());
        let Place { origin, line, column, text, width } = place;
        out += &format!("\n{indent}--> {origin}:{line}:{column}\n{indent} |\n{number} | {text}\n{indent} | ");
        // Tabs keep their width in a terminal only if they are repeated as tabs.
        out.extend(text.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }));
        out += &"^".repeat(*width);
    }
    if let Some(help) = help {
        out += &format!("\n{indent} = help: {help}");
    }
    out
}

/// The name of `known` nearest to `word`, if one is near enough to be meant.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |s: &str| s.to_lowercase().replace('-', "_");
    let word = plain(word);
    known
        .into_iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(&word, &plain(name)), name))
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_counted_in_characters_and_underlined() {
        let text = "a = 1\n\té = [2,\n 3]\n";
        let place = Place::new("x.toml", text, text.find('é').unwrap()..text.len());
        assert_eq!((place.line, place.column, place.width), (2, 2, 7));
        let shown = render("wrong", Some(&place), Some("do this"));
        assert_eq!(shown, "wrong\n --> x.toml:2:2\n  |\n2 | \té = [2,\n  | \t^^^^^^^\n  = help: do this");
    }

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not_offered() {
        assert_eq!(nearest("lerning_rate", ["eps", "learning_rate"]), Some("learning_rate"));
        assert_eq!(nearest("Learning-Rate", ["eps", "learning_rate"]), Some("learning_rate"));
        assert_eq!(nearest("banana", ["eps", "learning_rate"]), None);
    }
}
