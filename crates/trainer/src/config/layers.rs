//! The texts a configuration is composed of: files that extend each other, then `--set` options; later ones win.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::report::Place;

/// One text of a configuration.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    /// File name, or the `--set` option as given: how errors call it.
    pub origin: String,
    /// The TOML text.
    pub text: String,
    /// Its keys and values.
    pub table: toml::Table,
}

/// A step of a key path such as `model.attention.overrides[1].count`.
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

fn steps(path: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (key, mut rest) = part.split_at(part.find('[').unwrap_or(part.len()));
        steps.push(Step::Key(key));
        while let Some((index, after)) = rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
            steps.extend(index.parse().ok().map(Step::Index));
            rest = after;
        }
    }
    steps
}

impl Layer {
    /// The place of a byte range of this text.
    pub fn place(&self, span: Range<usize>) -> Place {
        Place::new(&self.origin, &self.text, span)
    }

    /// The place of the key that `path` names, if this text sets it.
    pub fn locate(&self, path: &str) -> Option<Place> {
        let root = DeTable::parse(&self.text).ok()?;
        let mut table = Some(root.get_ref());
        let mut value: Option<&Spanned<DeValue<'_>>> = None;
        let mut span = None;
        for step in steps(path) {
            match step {
                Step::Key(key) => {
                    let (name, found) = table?.iter().find(|(name, _)| name.get_ref() == key)?;
                    span = Some(name.span());
                    value = Some(found);
                }
                Step::Index(index) => {
                    value = Some(value?.get_ref().as_array()?.get(index)?);
                    span = value.map(Spanned::span);
                }
            }
            table = value.and_then(|v| v.get_ref().as_table());
        }
        span.map(|span| self.place(span))
    }

    /// Names of the tables around the key at byte `start`, and the key: the path of an unknown key that an error points at.
    pub fn path_at(&self, start: usize) -> Vec<String> {
        fn search(table: &DeTable<'_>, start: usize, path: &mut Vec<String>) -> bool {
            for (name, value) in table.iter() {
                path.push(name.get_ref().to_string());
                if name.span().start == start || descend(value.get_ref(), start, path) {
                    return true;
                }
                path.pop();
            }
            false
        }
        fn descend(value: &DeValue<'_>, start: usize, path: &mut Vec<String>) -> bool {
            match value {
                DeValue::Table(table) => search(table, start, path),
                DeValue::Array(array) => array.iter().any(|item| descend(item.get_ref(), start, path)),
                _ => false,
            }
        }
        let mut path = Vec::new();
        if let Ok(root) = DeTable::parse(&self.text) {
            search(root.get_ref(), start, &mut path);
        }
        path
    }
}

/// Lays `over` on `base`: tables are merged key by key, everything else is replaced.
pub(super) fn merge(base: &mut toml::Table, over: &toml::Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => merge(below, above),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(text: &str) -> Layer {
        Layer { origin: "x.toml".into(), text: text.into(), table: text.parse().unwrap() }
    }

    #[test]
    fn keys_are_found_by_path_in_tables_arrays_and_dotted_keys() {
        let layer =
            layer("[model]\nheads = 7\n[[model.attention.overrides]]\ncount = 1\n[[model.attention.overrides]]\ncount = 9\n");
        assert_eq!(layer.locate("model.heads").unwrap().line, 2);
        assert_eq!(layer.locate("model.attention.overrides[1].count").unwrap().line, 6);
        assert_eq!(layer.locate("model.width"), None);
        assert_eq!(super::Layer::locate(&self::tests_dotted(), "train.epochs").unwrap().line, 1);
    }

    fn tests_dotted() -> Layer {
        layer("train.epochs = 3")
    }

    #[test]
    fn the_path_of_a_key_is_found_from_its_place() {
        let layer = layer("[train]\nepoch = 3\n");
        assert_eq!(layer.path_at(8), ["train", "epoch"]);
    }

    #[test]
    fn merging_keeps_what_the_upper_layer_does_not_name() {
        let mut base: toml::Table = "[a]\nx = 1\ny = [1, 2]\n".parse().unwrap();
        merge(&mut base, &"[a]\ny = [3]\n[b]\nz = 1\n".parse().unwrap());
        assert_eq!(base, "[a]\nx = 1\ny = [3]\n[b]\nz = 1\n".parse().unwrap());
    }
}
