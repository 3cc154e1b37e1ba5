//! Which of the network's classes the classes of a dataset are.

use manyheads_data::{Source, imagenet};

use crate::error::{Error, Result};

/// How a dataset with some of ImageNet's classes is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subset {
    /// Only these classes compete, as for ImageNet-A and -R.
    Restrict,
    /// All of the network's classes compete.
    All,
}

/// The network's class of each label of `source`; `None` where they are the same.
///
/// `names` are the network's class names, where they are known.
///
/// # Errors
/// Where a class of the images is none of the network's, or the images have other classes and no `subset` was asked for.
pub(super) fn classes(
    source: &dyn Source,
    names: &[String],
    classes: usize,
    subset: Option<Subset>,
) -> Result<Option<Vec<usize>>> {
    let own = source.classes();
    let same = own == names || (names.is_empty() && own.len() == classes);
    if same {
        return match subset {
            None => Ok(None),
            Some(_) => Err(Error::Usage("--subset is of no use here: the images have all of the model's classes".into())),
        };
    }
    let known = |class: &String| match names.is_empty() {
        false => names.iter().position(|name| name == class),
        true if classes == imagenet::wnids().len() && imagenet::is_wnid(class) => imagenet::index(class),
        // The classes have no names but their numbers.
        true => class.parse().ok().filter(|number| *number < classes),
    };
    let places: Vec<Option<usize>> = own.iter().map(known).collect();
    if let Some(unknown) = places.iter().position(Option::is_none) {
        return Err(Error::Failed(format!(
            "the model has {classes} classes, the images {}, and their class {:?} is none of the model's{}",
            own.len(),
            own[unknown],
            if classes == imagenet::wnids().len() {
                ": for a model of ImageNet's 1,000 classes folders are called as n01440764"
            } else {
                ""
            }
        )));
    }
    if subset.is_none() && own.len() < classes {
        return Err(Error::Usage(format!(
            "the images have {} of the model's {classes} classes. Say with --subset restrict that only these compete, as for ImageNet-A and -R, or with --subset all that all {classes} do",
            own.len()
        )));
    }
    Ok(Some(places.into_iter().flatten().collect()))
}
