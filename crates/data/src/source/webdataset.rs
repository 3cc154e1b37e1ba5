//! WebDataset: shards that are tar archives, a sample being the members with one key.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::Value;

use super::Source;
use super::catalog::{Catalog, ClassFiles, Ignored, Kind, Table, file_name, kind};
use super::shards::{Handles, expand};
use super::tar::{Span, hidden, open};
use crate::error::{DataError, printable};
use crate::imagenet;

/// Highest number that is taken for a class: a damaged file must not ask for a table of billions.
const MAX_CLASS: u64 = 1_000_000;
/// Largest label or description of a sample, in bytes.
const MAX_SIDECAR: u64 = 1 << 20;

/// Shards of samples such as `n01440764_10026.jpg`, `n01440764_10026.cls`, `n01440764_10026.json`.
///
/// The key of a member is its path up to the first dot of its last component, the rest is its kind. The label is the number or
/// name in `.cls`, else `label` in `.json`. Each shard is indexed once; then an image is one positional read, from any number of
/// threads. Items are ordered by class and key, like the same images in class folders.
pub struct WebDataset {
    handles: Handles,
    catalog: Catalog,
    spans: Vec<(u32, Span)>,
}

/// A label as the shards give it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Given {
    Number(u64),
    Name(String),
}

struct Sample {
    /// Key and extension.
    file: Vec<u8>,
    shard: u32,
    span: Span,
    label: Given,
    /// Name of the class beside its number.
    class_name: Option<String>,
}

impl WebDataset {
    /// Indexes shards: a file, a folder of `.tar` files, or a pattern such as `train-{000..146}.tar`.
    ///
    /// `classes` names the classes where labels are numbers. Without it the names come from `class_name` in `.json`, or from
    /// WordNet ids at the beginning of the keys, if these fit the numbers; else a class is called by its number. `split` keeps
    /// the shards with that word in their names.
    ///
    /// # Errors
    /// - As [`super::tar::Tar::open`] for a shard that is cut, compressed or no tar.
    /// - [`DataError::BadContainer`] naming the shard and sample without a label, or with a label that is none.
    /// - [`DataError::UnknownForm`] if a shard is missing; [`DataError::NoImages`].
    pub fn open(path: impl AsRef<Path>, classes: Option<Vec<String>>, split: Option<&str>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let shards = expand(path, "tar", split)?;
        let indexed: Vec<(Vec<Sample>, Ignored)> =
            shards.par_iter().enumerate().map(|(i, shard)| index(shard, i as u32)).collect::<Result<_, _>>()?;
        let mut ignored = Ignored::default();
        let mut samples = Vec::new();
        for (found, left_out) in indexed {
            samples.extend(found);
            ignored.merge(left_out);
        }
        if samples.is_empty() {
            return Err(DataError::NoImages { path: path.to_owned(), detail: format!(" in {} shards", shards.len()) });
        }
        let names = table(path, &samples, classes, &mut ignored)?;
        let label_of: HashMap<&str, usize> = names.iter().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
        let mut found: Vec<ClassFiles<(u32, Span)>> = names.iter().map(|name| ClassFiles::new(name.clone())).collect();
        for sample in &samples {
            let label = match &sample.label {
                Given::Number(number) => usize::try_from(*number).ok().filter(|&n| n < names.len()),
                Given::Name(name) => label_of.get(name.as_str()).copied(),
            };
            let label = label.ok_or_else(|| {
                let reason = format!("the label of {} is not among the {} classes given", shown(&sample.file), names.len());
                DataError::BadContainer { path: shards[sample.shard as usize].clone(), reason }
            })?;
            let class = [names[label].as_bytes(), b"/"].concat();
            found[label].push(sample.file.strip_prefix(class.as_slice()).unwrap_or(&sample.file), (sample.shard, sample.span));
        }
        drop(samples);
        let (catalog, spans) = Catalog::new(path, found, Table::Given, ignored)?;
        Ok(Self { handles: Handles::new(shards), catalog, spans })
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Key and kind of a member.
fn key(path: &[u8]) -> (&[u8], &[u8]) {
    let start = path.len() - file_name(path).len();
    match path[start..].iter().position(|&b| b == b'.') {
        Some(dot) => (&path[..start + dot], &path[start + dot + 1..]),
        None => (path, b""),
    }
}

/// Whether an archive's members are samples of a WebDataset: an image and a label with one key.
pub(super) fn looks_like(members: &super::tar::Members) -> bool {
    let is_label = |path: &[u8]| matches!(key(path).1, b"cls" | b"json");
    let labelled: BTreeSet<&[u8]> = members.files.iter().filter(|m| is_label(&m.path)).map(|m| key(&m.path).0).collect();
    members.files.iter().any(|m| kind(file_name(&m.path)) == Kind::Image && labelled.contains(key(&m.path).0))
}

#[derive(Default)]
struct Parts {
    image: Option<(Vec<u8>, Span)>,
    cls: Option<Span>,
    json: Option<Span>,
}

fn index(path: &Path, shard: u32) -> Result<(Vec<Sample>, Ignored), DataError> {
    let (path, file, members) = open(path)?;
    let bad = |reason: String| DataError::BadContainer { path: path.clone(), reason };
    let mut ignored = Ignored::default();
    let mut keys: BTreeMap<Vec<u8>, Parts> = BTreeMap::new();
    for member in members.into_latest(&mut ignored) {
        let (name, extension) = key(&member.path);
        if hidden(&member.path) {
            ignored.add_kind(Kind::Hidden, &member.path);
            continue;
        }
        let is_image = kind(&[b"x.", extension].concat()) == Kind::Image && !extension.contains(&b'.');
        match extension {
            b"cls" => keys.entry(name.to_vec()).or_default().cls = Some(member.span),
            b"json" => keys.entry(name.to_vec()).or_default().json = Some(member.span),
            _ if is_image => {
                let parts = keys.entry(name.to_vec()).or_default();
                if parts.image.is_some() {
                    return Err(bad(format!("the sample {} has several images", shown(name))));
                }
                parts.image = Some((member.path, member.span));
            }
            _ => ignored.add("neither image nor label of a sample", &member.path),
        }
    }
    let mut samples = Vec::with_capacity(keys.len());
    let mut buffer = Vec::new();
    for (name, parts) in keys {
        let Some((image, span)) = parts.image else {
            ignored.add("labels without an image", &name);
            continue;
        };
        let mut read = |span: Span, what: &str| -> Result<Vec<u8>, DataError> {
            if span.len > MAX_SIDECAR {
                return Err(bad(format!("{}.{what} has {} bytes, which is no label", shown(&name), span.len)));
            }
            span.read(&file, &mut buffer).map_err(|e| DataError::io(format!("{}:{}.{what}", path.display(), shown(&name)), e))?;
            Ok(buffer.clone())
        };
        let (mut label, mut class_name) = (None, None);
        if let Some(span) = parts.json {
            let text = read(span, "json")?;
            // Where `.cls` has the label, the description may be anything.
            match serde_json::from_slice::<Value>(&text) {
                Ok(value) => {
                    label = ["label", "cls", "class_id"].iter().find_map(|key| given(value.get(key)?));
                    let name = ["class_name", "wnid", "synset"].iter().find_map(|key| value.get(key)?.as_str());
                    class_name = name.map(str::to_owned);
                }
                Err(e) if parts.cls.is_none() => return Err(bad(format!("{}.json is not JSON: {e}", shown(&name)))),
                Err(_) => {}
            }
        }
        if let Some(span) = parts.cls {
            let text = read(span, "cls")?;
            let text = std::str::from_utf8(&text).map_err(|_| bad(format!("{}.cls is not text", shown(&name))))?.trim();
            label = match text.parse() {
                Ok(number) => Some(Given::Number(number)),
                Err(_) if text.is_empty() => return Err(bad(format!("{}.cls is empty", shown(&name)))),
                Err(_) => Some(Given::Name(text.to_owned())),
            };
        }
        let label = label
            .or_else(|| class_name.clone().map(Given::Name))
            .ok_or_else(|| bad(format!("the sample {} has no label: neither {0}.cls nor \"label\" in {0}.json", shown(&name))))?;
        if let Given::Number(number) = label
            && number >= MAX_CLASS
        {
            return Err(bad(format!("the label of {} is {number}, which is no class", shown(&name))));
        }
        samples.push(Sample { file: image, shard, span, label, class_name });
    }
    Ok((samples, ignored))
}

fn given(value: &Value) -> Option<Given> {
    match value {
        Value::Number(number) => number.as_u64().map(Given::Number),
        Value::String(name) => Some(name.trim().parse().map_or_else(|_| Given::Name(name.trim().to_owned()), Given::Number)),
        _ => None,
    }
}

/// The class table.
fn table(path: &Path, samples: &[Sample], given: Option<Vec<String>>, ignored: &mut Ignored) -> Result<Vec<String>, DataError> {
    if let Some(classes) = given {
        return Ok(classes);
    }
    let numbers = samples.iter().filter(|s| matches!(s.label, Given::Number(_))).count();
    if numbers == 0 {
        let names: BTreeSet<&str> =
            samples.iter().filter_map(|s| if let Given::Name(n) = &s.label { Some(n.as_str()) } else { None }).collect();
        return Ok(names.into_iter().map(str::to_owned).collect());
    }
    if numbers < samples.len() {
        let reason =
            format!("{numbers} labels are numbers and {} are names. Give a file of class names", samples.len() - numbers);
        return Err(DataError::BadContainer { path: path.to_owned(), reason });
    }
    let number = |s: &Sample| if let Given::Number(n) = s.label { n as usize } else { 0 };
    let count = samples.iter().map(number).max().map_or(0, |max| max + 1);
    let by_number = || (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
    type Namer<'a> = (&'a str, &'a dyn Fn(&Sample) -> Option<String>);
    let from_key = |s: &Sample| {
        let name = file_name(&s.file);
        let wnid = std::str::from_utf8(name.get(..9)?).ok()?;
        imagenet::is_wnid(wnid).then(|| wnid.to_owned())
    };
    let namers: [Namer<'_>; 2] =
        [("class_name in the .json files", &|s| s.class_name.clone()), ("the keys of the samples", &from_key)];
    for (origin, namer) in namers {
        let mut names: Vec<Option<String>> = vec![None; count];
        let fits = samples.iter().all(|sample| {
            let slot = &mut names[number(sample)];
            match (namer(sample), &*slot) {
                (Some(name), None) => {
                    *slot = Some(name);
                    true
                }
                (Some(name), Some(known)) => name == *known,
                (None, _) => false,
            }
        });
        let distinct: BTreeSet<&String> = names.iter().flatten().collect();
        if fits && distinct.len() == names.iter().flatten().count() {
            ignored.note(format!("names of the classes taken from {origin}"));
            return Ok(names.into_iter().enumerate().map(|(i, name)| name.unwrap_or_else(|| i.to_string())).collect());
        }
    }
    ignored.note("labels are numbers, and classes are called by them; a file of class names gives them names".to_owned());
    Ok(by_number())
}

impl Source for WebDataset {
    fn len(&self) -> usize {
        self.catalog.len()
    }

    fn classes(&self) -> &[String] {
        self.catalog.classes()
    }

    fn label(&self, index: usize) -> usize {
        self.catalog.label(index)
    }

    fn name(&self, index: usize) -> String {
        let shard = self.handles.path(self.spans[index].0 as usize);
        printable(&format!("{}:{}", shard.display(), shown(self.catalog.path_in_class(index)))).into_owned()
    }

    fn relative_path(&self, index: usize) -> Vec<u8> {
        self.catalog.relative_path(index)
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let mut bytes = Vec::new();
        self.read_into(index, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    fn read_into<'a>(&'a self, index: usize, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], DataError> {
        let (shard, span) = self.spans[index];
        let file = self.handles.get(shard as usize).map_err(|e| DataError::io(self.name(index), e))?;
        span.read(&file, buffer).map_err(|e| DataError::io(self.name(index), e))?;
        Ok(buffer)
    }

    fn size(&self, index: usize) -> Option<u64> {
        Some(self.spans[index].1.len)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.handles.paths().to_vec()
    }

    fn notices(&self) -> &[String] {
        self.catalog.notices()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_at_the_first_dot_of_the_name() {
        assert_eq!(key(b"a.b/c.d.jpg"), (&b"a.b/c"[..], &b"d.jpg"[..]));
        assert_eq!(key(b"x"), (&b"x"[..], &b""[..]));
    }
}
