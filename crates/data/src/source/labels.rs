//! Labels of images that lie in one folder or archive without class folders.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::catalog::{Ignored, by_number, is_number};
use super::shards::read_regular;
use crate::error::DataError;
use crate::imagenet;

/// Names of columns that hold the file, and the class, in the first line of a csv file.
const FILE_COLUMNS: [&str; 8] = ["imageid", "image_id", "filename", "file_name", "file", "image", "path", "name"];
const CLASS_COLUMNS: [&str; 8] = ["label", "class", "wnid", "synset", "predictionstring", "target", "category", "class_name"];

/// A table from file names to classes.
///
/// Read from a file ([`Labels::read`]) or known for ILSVRC2012's validation images ([`Labels::ilsvrc2012_val`]).
#[derive(Clone, Debug)]
pub struct Labels {
    /// Class by the file's name, by its name without extension, or by its path's last component as the table gives it.
    class_of: HashMap<String, u32>,
    /// In the order of labels.
    classes: Vec<String>,
    notices: Vec<String>,
}

impl Labels {
    /// Reads a file of labels.
    ///
    /// A line names a file and its class, separated by a comma, a tab or spaces: `cat_01.jpg 3`, `cat_01.jpg,cat`. A first line
    /// such as `filename,label` names the columns; Kaggle's `LOC_val_solution.csv` is understood. Extensions may be left out.
    /// A file of 50,000 lines with one number or WordNet id each is taken as the labels of ILSVRC2012's validation images in
    /// order, as in `ILSVRC2012_validation_ground_truth.txt`.
    ///
    /// Classes are sorted as class folders are. Numbers given for ILSVRC2012's validation images become WordNet ids, be they
    /// labels or the ids of the development kit: whichever it is shows by comparing with the known labels.
    ///
    /// # Errors
    /// [`DataError::Io`], or [`DataError::BadLabels`] saying which line is wrong.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let bytes = read_regular(path).map_err(|e| DataError::io(path.display().to_string(), e))?;
        let bad = |reason: String| DataError::BadLabels { path: path.to_owned(), reason };
        let text = std::str::from_utf8(&bytes).map_err(|e| {
            bad(format!(
                "not a text file of labels: byte {} is not UTF-8. Give a file with a name and a label a line",
                e.valid_up_to()
            ))
        })?;
        parse(text).map_err(bad)
    }

    /// The labels of ILSVRC2012's 50,000 validation images, by their names.
    pub fn ilsvrc2012_val() -> Self {
        let pairs = (0..imagenet::VAL_IMAGES).map(|i| (val_name(i), imagenet::wnids()[imagenet::val_label(i)].to_owned()));
        let notice = "labels of ILSVRC2012's validation images, known by their file names".to_owned();
        Self::from_pairs(pairs.collect(), vec![notice]).expect("names of the images differ")
    }

    fn from_pairs(pairs: Vec<(String, String)>, notices: Vec<String>) -> Result<Self, String> {
        let mut classes: Vec<String> =
            pairs.iter().map(|(_, class)| class).collect::<HashSet<_>>().into_iter().cloned().collect();
        if classes.iter().all(|class| is_number(class)) {
            classes.sort_by(|a, b| by_number(a, b));
        } else {
            classes.sort_unstable();
        }
        let label: HashMap<&str, u32> = classes.iter().enumerate().map(|(i, class)| (class.as_str(), i as u32)).collect();
        let mut class_of = HashMap::with_capacity(pairs.len());
        for (file, class) in &pairs {
            let label = label[class.as_str()];
            if let Some(before) = class_of.insert(file.clone(), label)
                && before != label
            {
                return Err(format!("{file} is listed twice, as {} and as {class}", classes[before as usize]));
            }
        }
        Ok(Self { class_of, classes, notices })
    }

    /// Class names; a label is an index into them.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Number of files listed.
    pub fn len(&self) -> usize {
        self.class_of.len()
    }

    /// Whether no file is listed.
    pub fn is_empty(&self) -> bool {
        self.class_of.is_empty()
    }

    /// Label of a file by the last component of its path.
    pub fn label(&self, file_name: &str) -> Option<usize> {
        let stem = || file_name.rsplit_once('.').map(|(stem, _)| stem);
        let label = self.class_of.get(file_name).or_else(|| self.class_of.get(stem()?));
        label.map(|&label| label as usize)
    }

    pub(super) fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Sorts files into classes. Every file must have a label; labels without a file are told.
    pub(super) fn sort<T>(
        &self,
        path: &Path,
        files: Vec<(Vec<u8>, T)>,
        ignored: &mut Ignored,
    ) -> Result<Vec<super::catalog::ClassFiles<T>>, DataError> {
        let mut classes: Vec<_> = self.classes.iter().map(|class| super::catalog::ClassFiles::new(class.clone())).collect();
        let mut unlabelled: Vec<String> = Vec::new();
        let mut unlabelled_count = 0;
        let found = files.len();
        for (file, handle) in files {
            let name = String::from_utf8_lossy(super::catalog::file_name(&file));
            match self.label(&name) {
                Some(label) => classes[label].push(&file, handle),
                None => {
                    unlabelled_count += 1;
                    if unlabelled.len() < 3 {
                        unlabelled.push(name.into_owned());
                    }
                }
            }
        }
        if unlabelled_count > 0 {
            let dots = if unlabelled_count > unlabelled.len() { ", …" } else { "" };
            let reason = format!(
                "{unlabelled_count} of {found} images have no label in the file of labels ({}{dots}). Add them to it, or move the \
                 images away",
                unlabelled.join(", ")
            );
            return Err(DataError::BadLabels { path: path.to_owned(), reason });
        }
        if found < self.len() {
            ignored.note(format!("{} of {} labels have no image here", self.len() - found, self.len()));
        }
        Ok(classes)
    }
}

fn val_name(index: usize) -> String {
    format!("ILSVRC2012_val_{:08}", index + 1)
}

/// The fields of a line: separated by commas if it has one, else by tabs, else at its last space.
fn fields(line: &str) -> Vec<&str> {
    let fields: Vec<&str> = match () {
        () if line.contains(',') => line.split(',').collect(),
        () if line.contains('\t') => line.split('\t').collect(),
        () => line.rsplit_once(char::is_whitespace).map_or_else(|| vec![line], |(name, class)| vec![name, class]),
    };
    fields.into_iter().map(|field| field.trim().trim_matches('"')).collect()
}

fn parse(text: &str) -> Result<Labels, String> {
    let mut lines =
        text.trim_start_matches('\u{feff}').lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
    let Some(&(_, first)) = lines.peek() else {
        return Err("an empty file. Give a file with a name and a label a line".to_owned());
    };
    let header: Vec<String> = fields(first).iter().map(|field| field.to_ascii_lowercase()).collect();
    let column = |known: &[&str]| header.iter().position(|field| known.contains(&field.as_str()));
    let (mut file_column, mut class_column) = (0, 1);
    let mut names_columns = None;
    if let (Some(file), Some(class)) = (column(&FILE_COLUMNS), column(&CLASS_COLUMNS)) {
        (file_column, class_column) = (file, class);
        names_columns = Some(first.trim());
        lines.next();
    }
    if header.len() == 1 {
        return list(&lines.map(|(_, line)| line.trim()).collect::<Vec<_>>());
    }
    let mut pairs = Vec::new();
    for (number, line) in lines {
        let fields = fields(line);
        let (Some(file), Some(class)) = (fields.get(file_column), fields.get(class_column)) else {
            return Err(format!("line {}: {line:?} is not a file name and a label", number + 1));
        };
        // Kaggle's column goes on with boxes.
        let class = match class.split_once(' ') {
            Some((wnid, _)) if imagenet::is_wnid(wnid) => wnid,
            _ => class,
        };
        let file = file.rsplit('/').next().unwrap_or(file);
        if file.is_empty() || class.is_empty() {
            return Err(format!("line {}: {line:?} is not a file name and a label", number + 1));
        }
        pairs.push((file.to_owned(), class.to_owned()));
    }
    if pairs.is_empty() {
        return Err("a first line and nothing below it. Give a name and a label a line".to_owned());
    }
    let mut labels = named(pairs)?;
    if let Some(line) = names_columns {
        labels.notices.push(format!("the first line of the file of labels, {line:?}, names its columns and is no image"));
    }
    Ok(labels)
}

/// Labels in the order of ILSVRC2012's validation images.
fn list(lines: &[&str]) -> Result<Labels, String> {
    if lines.len() != imagenet::VAL_IMAGES {
        return Err(format!(
            "a list of {} labels without file names, which is understood for ILSVRC2012's 50,000 validation images alone. Put the \
             file's name before each label",
            lines.len()
        ));
    }
    let pairs: Vec<(String, String)> = lines.iter().enumerate().map(|(i, class)| (val_name(i), (*class).to_owned())).collect();
    if pairs.iter().all(|(_, class)| imagenet::is_wnid(class)) || pairs.iter().all(|(_, class)| is_number(class)) {
        let labels = named(pairs)?;
        if labels.classes.iter().all(|class| imagenet::is_wnid(class)) {
            return Ok(labels);
        }
    }
    Err("50,000 lines that are not the labels of ILSVRC2012's validation images. Put the file's name before each label"
        .to_owned())
}

/// Numbers for ILSVRC2012's validation images become WordNet ids.
fn named(mut pairs: Vec<(String, String)>) -> Result<Labels, String> {
    if !pairs.iter().all(|(_, class)| is_number(class)) {
        return Labels::from_pairs(pairs, Vec::new());
    }
    let places: Option<Vec<(usize, u64)>> =
        pairs.iter().map(|(file, class)| Some((imagenet::val_index(file)?, class.parse().ok()?))).collect();
    if let Some(places) = places {
        // A few images cannot tell one numbering from another, but tell each number's class all the same.
        if let Some(label_of) = imagenet::labels_of_ids(places.iter().copied()) {
            let as_labels = label_of.iter().all(|(&id, &label)| id == label as u64);
            let what = if as_labels { "labels of the sorted classes" } else { "ids in an order other than that of the labels" };
            for ((_, class), (_, id)) in pairs.iter_mut().zip(places) {
                *class = imagenet::wnids()[label_of[&id]].to_owned();
            }
            let notice = format!("the numbers in the file of labels are {what}; read as ImageNet's classes");
            return Labels::from_pairs(pairs, vec![notice]);
        }
        let notice =
            "the numbers in the file of labels are not those known for ILSVRC2012's validation images; taken as class numbers";
        return Labels::from_pairs(pairs, vec![notice.to_owned()]);
    }
    Labels::from_pairs(pairs, vec!["labels are numbers, taken as class numbers in numeric order".to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_may_be_separated_in_several_ways() {
        for text in [
            "a b.jpg 1\nc.png 0\n",
            "a b.jpg\t1\n\nc.png\t0",
            "\u{feff}a b.jpg,1\r\nc.png,0\r\n",
            "filename,label\n\"a b.jpg\",1\nval/c.png,0\n",
            "label,x,file\n1,,a b\n0,,c\n",
        ] {
            let labels = parse(text).unwrap();
            assert_eq!(labels.classes(), ["0", "1"], "{text}");
            assert_eq!(
                (labels.label("a b.jpg"), labels.label("c.png"), labels.label("d.png")),
                (Some(1), Some(0), None),
                "{text}"
            );
        }
        let kaggle = parse("ImageId,PredictionString\nILSVRC2012_val_00048981,n03995372 85 1 499 272\n").unwrap();
        assert_eq!((kaggle.classes(), kaggle.label("ILSVRC2012_val_00048981.JPEG")), (&["n03995372".to_owned()][..], Some(0)));
    }

    #[test]
    fn a_line_of_column_names_is_told() {
        let labels = parse("file,label\nx.jpg,cat\n").unwrap();
        assert!(labels.notices.iter().any(|notice| notice.contains(r#""file,label""#)), "{:?}", labels.notices);
        assert!(parse("x.jpg,cat\n").unwrap().notices.is_empty());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            ("", "an empty file"),
            ("filename,label\n", "nothing below it"),
            ("a.jpg 1\nb.jpg\n", r#"line 2: "b.jpg" is not a file name and a label"#),
            ("a.jpg,1\na.jpg,2\n", "a.jpg is listed twice, as 1 and as 2"),
            ("1\n2\n", "a list of 2 labels without file names"),
        ] {
            let reason = parse(text).unwrap_err();
            assert!(reason.contains(part), "{text:?}: {reason}");
        }
    }

    /// The ground truth of the development kit, here with ids in a made-up order, gives the right classes.
    #[test]
    fn the_ground_truth_file_is_understood() {
        let id = |i: usize| (imagenet::val_label(i) * 7 + 3) % 1000 + 1;
        let labels = parse(&(0..50_000).map(|i| format!("{}\n", id(i))).collect::<String>()).unwrap();
        assert_eq!(labels.classes(), imagenet::wnids());
        assert_eq!(labels.label("ILSVRC2012_val_00000001.JPEG"), Some(65));
        assert!(labels.notices[0].contains("ids in an order other"));
        let sorted = parse(&(0..50_000).map(|i| format!("{}\n", imagenet::val_label(i))).collect::<String>()).unwrap();
        assert!(sorted.notices[0].contains("labels of the sorted classes"));
        let wnids: String = (0..50_000).map(|i| format!("{}\n", imagenet::wnids()[imagenet::val_label(i)])).collect();
        assert_eq!(parse(&wnids).unwrap().label("ILSVRC2012_val_00000002.JPEG"), Some(970));
        let mut wrong: Vec<String> = (0..50_000).map(|i| id(i).to_string()).collect();
        wrong.swap(0, 1);
        assert!(parse(&wrong.join("\n")).unwrap_err().contains("not the labels of ILSVRC2012"));
    }

    #[test]
    fn the_known_validation_labels_have_all_classes() {
        let labels = Labels::ilsvrc2012_val();
        assert_eq!((labels.len(), labels.classes().len()), (50_000, 1000));
        assert_eq!(labels.label("ILSVRC2012_val_00000003.JPEG"), Some(230));
    }
}
