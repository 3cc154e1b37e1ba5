//! Which tensors of a file become which of a model: decided from names and shapes before a value is read.

use super::hugging_face::HuggingFaceConfig;
use super::layout::{Layout, Meaning};
use super::positions::{PositionResize, resize_positions};
use super::report::{FitError, LoadError, LoadReport, Problem, Reshaped};
use super::source::{Source, TensorInfo};
use super::store::{DType, SourceError, finite};
use super::timm;
use crate::architecture::Architecture;
use crate::plan::AttentionKind;
use std::collections::{BTreeMap, HashMap};

/// How tensors of a file are matched with those of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// Whose names the file carries; recognised if none.
    pub layout: Option<Layout>,
    /// Names that may be missing, unused or of another shape, timm's or the file's; `*` stands for any text: `head.*`.
    pub expect: Vec<String>,
    /// How position embeddings are brought to another grid.
    pub positions: PositionResize,
    /// Rows and columns of patches of the file's position embedding, where it is not square.
    pub grid: Option<[usize; 2]>,
}

impl LoadOptions {
    fn expects(&self, name: &str) -> bool {
        self.expect.iter().any(|pattern| name_matches(pattern, name))
    }
}

/// Whether a tensor's name is `pattern`, in which `*` stands for any text, also none.
pub fn name_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    // Where the last star was, and how much of the name it covers so far.
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, n));
            p += 1;
        } else if p < pattern.len() && pattern[p] == name[n] {
            (p, n) = (p + 1, n + 1);
        } else if let Some((at, covered)) = star {
            star = Some((at, covered + 1));
            (p, n) = (at + 1, covered + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// How the values of a file become those of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// As they are; also a linear patch embedding, whose values lie as the convolution's.
    None,
    /// Another grid of positions.
    Positions { prefix: usize, from: [usize; 2], to: [usize; 2] },
    /// The sum over the channels of `[width, channels, patch, patch]` (timm's `adapt_input_conv`).
    SumChannels { channels: usize },
}

/// Where the values of one tensor of the model come from: one tensor of the file, or three.
#[derive(Debug, Clone)]
struct Origin {
    names: Vec<String>,
    shape: Vec<usize>,
    change: Change,
}

/// The origin of every tensor of a model that a file fills.
pub(crate) struct Plan {
    origins: HashMap<String, Origin>,
    positions: PositionResize,
    pub report: LoadReport,
}

/// The tensors of a source under timm's names.
pub(crate) struct Index<'a> {
    pub layout: Layout,
    /// Names of the source by timm's name, queries, keys and values in this order where they are apart.
    pub tensors: BTreeMap<String, Vec<(Option<usize>, &'a TensorInfo)>>,
    pub ignored: Vec<String>,
    pub unknown: Vec<&'a TensorInfo>,
}

impl<'a> Index<'a> {
    pub fn new(source: &'a Source, layout: Option<Layout>) -> Self {
        let layout = layout.unwrap_or_else(|| Layout::of(source.tensors().map(|info| info.name.as_str())));
        let distilled = source.tensors().any(|info| info.name.starts_with("distillation_classifier."));
        let mut index = Self { layout, tensors: BTreeMap::new(), ignored: Vec::new(), unknown: Vec::new() };
        for info in source.tensors() {
            let (name, third) = match layout.read(&info.name, distilled) {
                Meaning::Whole(name) => (name, None),
                Meaning::Third(name, third) => (name, Some(third)),
                Meaning::Ignored => {
                    index.ignored.push(info.name.clone());
                    continue;
                }
                Meaning::Unknown => {
                    index.unknown.push(info);
                    continue;
                }
            };
            let entry = index.tensors.entry(name).or_default();
            entry.push((third, info));
            entry.sort_by_key(|(third, _)| *third);
        }
        index
    }

    /// The shape of a tensor of a timm name, put together of its thirds.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let parts = self.tensors.get(name)?;
        let mut shape = parts.first()?.1.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = parts.iter().map(|(_, info)| info.shape.first().copied().unwrap_or(0)).sum();
        }
        Some(shape)
    }
}

impl Plan {
    /// Matches the tensors of a source with those of an architecture.
    pub fn new(source: &Source, architecture: &Architecture, options: &LoadOptions) -> Result<Self, LoadError> {
        let Index { layout, mut tensors, ignored, unknown } = Index::new(source, options.layout);
        // An activation that the network lacks is refused whether or not the file was recognised first.
        HuggingFaceConfig::new(source, layout)?;
        let expected = timm::expected(architecture);
        let mut plan = Self {
            origins: HashMap::new(),
            positions: options.positions,
            report: LoadReport { ignored, ..LoadReport::default() },
        };
        plan.report.notes.extend(surgery(architecture));

        let mut problems = Vec::new();
        let mut missing: Vec<(usize, &str, &[usize])> = Vec::new();
        for (name, shape) in &expected {
            let Some(parts) = tensors.remove(name) else {
                if options.expects(name) {
                    plan.report.missing.push(name.clone());
                } else {
                    missing.push((problems.len(), name, shape));
                    problems.push(Problem::Missing { name: name.clone(), shape: shape.clone(), nearest: Vec::new() });
                }
                continue;
            };
            match origin(name, shape, &parts, architecture, options, &mut plan.report) {
                Ok(origin) => {
                    plan.report.loaded.push(name.clone());
                    plan.origins.insert(name.clone(), origin);
                }
                Err(_) if options.expects(name) => plan.report.missing.push(name.clone()),
                Err(problem) => problems.push(problem),
            }
        }

        let mut unused: Vec<&TensorInfo> = tensors.into_values().flatten().map(|(_, info)| info).chain(unknown).collect();
        unused.sort_by(|a, b| a.name.cmp(&b.name));
        unused.retain(|info| {
            let expected = options.expects(&info.name);
            if expected {
                plan.report.unused.push(info.name.clone());
            }
            !expected
        });

        let names: Vec<&str> = source.tensors().map(|info| info.name.as_str()).collect();
        let ours: Vec<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
        for (place, name, shape) in missing {
            let others: Vec<&str> = unused.iter().map(|info| info.name.as_str()).collect();
            let twin = nearest(name, &others)
                .into_iter()
                .find_map(|found| unused.iter().position(|info| info.name == found && info.shape == shape));
            problems[place] = match twin {
                Some(twin) => {
                    let found = unused.remove(twin).name.clone();
                    Problem::Renamed { expected: name.to_owned(), found, shape: shape.to_vec() }
                }
                None => Problem::Missing { name: name.to_owned(), shape: shape.to_vec(), nearest: nearest(name, &names) },
            };
        }
        problems.extend(unused.into_iter().map(|info| Problem::Unused {
            name: info.name.clone(),
            shape: info.shape.clone(),
            nearest: nearest(&info.name, &ours),
        }));
        if problems.is_empty() { Ok(plan) } else { Err(FitError { problems }.into()) }
    }

    /// The values of a tensor of the model in timm's layout; none where it is missing as expected.
    pub fn read(&self, source: &Source, name: &str) -> Result<Option<Vec<f32>>, SourceError> {
        let Some(origin) = self.origins.get(name) else {
            return Ok(None);
        };
        let mut values = source.read(&origin.names[0])?;
        for name in &origin.names[1..] {
            values.append(&mut source.read(name)?);
        }
        let values = match origin.change {
            Change::None => return Ok(Some(values)),
            Change::Positions { prefix, from, to } => {
                let width = origin.shape.last().copied().unwrap_or(1);
                resize_positions(&values, width, prefix, from, to, self.positions)
            }
            Change::SumChannels { channels } => {
                let pixels = origin.shape[2] * origin.shape[3];
                values
                    .chunks_exact(channels * pixels)
                    .flat_map(|filter| (0..pixels).map(|pixel| filter.iter().skip(pixel).step_by(pixels).sum::<f32>()))
                    .collect()
            }
        };
        // Sums of large values may leave the range of f32.
        finite(source.path(), name, &values)?;
        Ok(Some(values))
    }
}

/// How a tensor of the file, or three, becomes the model's, with the change noted in the report.
fn origin(
    name: &str,
    expected: &[usize],
    parts: &[(Option<usize>, &TensorInfo)],
    architecture: &Architecture,
    options: &LoadOptions,
    report: &mut LoadReport,
) -> Result<Origin, Problem> {
    let whole = matches!(parts, [(None, _)]);
    if !whole && !matches!(parts, [(Some(0), _), (Some(1), _), (Some(2), _)]) {
        let found = parts.iter().map(|(_, info)| info.name.clone()).collect();
        return Err(Problem::Thirds { name: name.to_owned(), found });
    }
    if let Some((_, info)) = parts.iter().find(|(_, info)| info.dtype == DType::Other) {
        return Err(Problem::Type { name: info.name.clone() });
    }
    let refuse = |found: &[usize], help: &str| Problem::Shape {
        name: name.to_owned(),
        found: found.to_vec(),
        expected: expected.to_vec(),
        help: help.to_owned(),
    };
    let names: Vec<String> = parts.iter().map(|(_, info)| info.name.clone()).collect();
    let shape = parts[0].1.shape.clone();
    if !whole {
        let mut third = expected.to_vec();
        third[0] /= 3;
        if let Some((_, info)) = parts.iter().find(|(_, info)| info.shape != third) {
            return Err(Problem::Shape {
                name: info.name.clone(),
                found: info.shape.clone(),
                expected: third,
                help: "set by width".into(),
            });
        }
        return Ok(Origin { names, shape: expected.to_vec(), change: Change::None });
    }

    let same_grid = options.grid.is_none_or(|grid| grid == architecture.grid());
    if shape == expected && (name != "pos_embed" || same_grid) {
        if name == "pos_embed" && options.grid.is_none() {
            report.notes.extend(ambiguous_grid(architecture));
        }
        return Ok(Origin { names, shape, change: Change::None });
    }
    let (change, how) = match name {
        "pos_embed" => {
            let prefix = architecture.embedded_prefix_tokens();
            let from = file_grid(&shape, expected, prefix, options.grid).map_err(|help| refuse(&shape, &help))?;
            let to = architecture.grid();
            let kind = match options.positions {
                PositionResize::Antialiased => "bicubic, antialiased",
                PositionResize::Plain => "bicubic, without antialiasing",
            };
            let how = format!("{kind}, from a grid of {} x {} to {} x {}, {prefix} kept", from[0], from[1], to[0], to[1]);
            (Change::Positions { prefix, from, to }, how)
        }
        "patch_embed.proj.weight" => match (shape.as_slice(), expected) {
            (&[out, pixels], &[width, channels, rows, columns]) if out == width && pixels == channels * rows * columns => {
                (Change::None, "a linear layer over patches as a convolution".to_owned())
            }
            (&[out, channels, rows, columns], &[width, 1, r, c]) if out == width && channels > 1 && [rows, columns] == [r, c] => {
                (Change::SumChannels { channels }, format!("the sum over {channels} channels"))
            }
            (&[_, channels, rows, columns], &[_, wanted, r, c]) if [rows, columns] != [r, c] => {
                let help = format!(
                    "the file has patches of {rows} x {columns} pixels and {channels} channels, the model {r} x {c} and {wanted}; \
                     patches are not resampled: set patch_size = {rows}"
                );
                return Err(refuse(&shape, &help));
            }
            _ => return Err(refuse(&shape, "set by patch_size, channels and width")),
        },
        "head.weight" | "head.bias" | "head_dist.weight" | "head_dist.bias" => {
            let head = name.split('.').next().unwrap_or(name);
            let help = format!("set by classes and width; for another number of classes, expect `{head}.*`");
            return Err(refuse(&shape, &help));
        }
        "reg_token" => return Err(refuse(&shape, "set by registers and width")),
        _ if name.contains(".mlp.") => return Err(refuse(&shape, "set by width and mlp_ratio")),
        _ => return Err(refuse(&shape, "set by width")),
    };
    report.reshaped.push(Reshaped { name: name.to_owned(), from: shape.clone(), to: expected.to_vec(), how });
    let shape = if matches!(change, Change::SumChannels { .. }) { shape } else { expected.to_vec() };
    Ok(Origin { names, shape, change })
}

/// The grid of the file's position embedding, as timm finds it: what is left after the model's own prefix is a square, or what the
/// options say. The error is the help of the problem.
fn file_grid(shape: &[usize], expected: &[usize], prefix: usize, grid: Option<[usize; 2]>) -> Result<[usize; 2], String> {
    let &[1, places, width] = shape else {
        return Err("a position embedding is [1, places, width]".into());
    };
    if width != expected[2] {
        return Err("set by image_size, patch_size and width".into());
    }
    let patches = places.checked_sub(prefix).filter(|patches| *patches > 0);
    let fits = |[rows, columns]: [usize; 2]| patches == Some(rows * columns);
    if let Some(grid) = grid {
        return match fits(grid) {
            true => Ok(grid),
            false => Err(format!("{places} places are not {prefix} before a grid of {} x {}", grid[0], grid[1])),
        };
    }
    let side = patches.map_or(0, usize::isqrt);
    if fits([side, side]) {
        return Ok([side, side]);
    }
    let other = (0..=8).find(|other| *other < places && is_square(places - other));
    Err(match other {
        Some(other) => format!(
            "{places} places are {other} before a square grid, and the model has {prefix}: compare class_token, distilled, \
             registers and no_embed_class"
        ),
        None => format!("{places} places less {prefix} before the patches are no square grid: say the file's grid"),
    })
}

fn is_square(count: usize) -> bool {
    count > 0 && count.isqrt().pow(2) == count
}

/// A note, where a model's grid is no square and has as many places as one.
fn ambiguous_grid(architecture: &Architecture) -> Option<String> {
    let [rows, columns] = architecture.grid();
    (rows != columns && is_square(rows * columns)).then(|| {
        let side = (rows * columns).isqrt();
        format!("pos_embed is taken to be for the model's grid of {rows} x {columns}, not for {side} x {side}")
    })
}

/// A note on layers that attend otherwise than the weights were trained for.
fn surgery(architecture: &Architecture) -> Option<String> {
    let others: Vec<String> = architecture
        .layers
        .iter()
        .enumerate()
        .filter(|(_, layer)| layer.kind != AttentionKind::Softmax)
        .map(|(index, layer)| format!("{index} ({layer})"))
        .collect();
    (!others.is_empty()).then(|| format!("layers without softmax attention take the same qkv and proj: {}", others.join(", ")))
}

/// The candidates most like `name`, best first, where any is like it at all.
pub(crate) fn nearest(name: &str, candidates: &[&str]) -> Vec<String> {
    const LIKE: f64 = 0.8;
    const MOST: usize = 2;
    let mut like: Vec<(f64, &str)> = candidates
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .filter(|(similarity, _)| *similarity > LIKE)
        .collect();
    like.sort_by(|(a, left), (b, right)| b.total_cmp(a).then(left.cmp(right)));
    like.into_iter().take(MOST).map(|(_, candidate)| candidate.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, name, fits) in [
            ("head.*", "head.weight", true),
            ("head.*", "head_dist.weight", false),
            ("*.bias", "blocks.0.attn.proj.bias", true),
            ("blocks.*.attn.*.bias", "blocks.11.attn.qkv.bias", true),
            ("blocks.*.attn.*.bias", "blocks.11.attn.qkv.weight", false),
            ("norm", "norm.weight", false),
            ("*", "", true),
            ("", "a", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(name_matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn grids_are_square_or_said() {
        let grid = |places, prefix, said| file_grid(&[1, places, 8], &[1, 5, 8], prefix, said);
        assert_eq!(grid(197, 1, None), Ok([14, 14]));
        assert_eq!(grid(198, 2, None), Ok([14, 14]));
        assert_eq!(grid(217, 1, Some([12, 18])), Ok([12, 18]));
        assert!(grid(217, 1, None).expect_err("no square").contains("say the file's grid"));
        assert!(grid(197, 0, None).expect_err("a class token").contains("no_embed_class"));
        assert!(grid(197, 1, Some([12, 18])).is_err());
        assert!(grid(1, 1, None).is_err());
    }
}
