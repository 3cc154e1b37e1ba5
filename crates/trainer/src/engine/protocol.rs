//! What counts as right in an evaluation.
//!
//! The plain protocol compares a network's ranking of its classes with the label. ReaL (Beyer et al., 2020, "Are we done with
//! ImageNet?", arXiv 2006.07159) accepts any of several labels of an image and leaves out images that have none. ImageNet-A and -R
//! hold 200 of ImageNet's 1,000 classes and let only these compete.

use crate::error::{Error, Result};
use crate::recipe::loss::{rank, softmax_loss};

/// What counts as right.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Protocol {
    /// The network's class of each label of the dataset. `None`: they are the same.
    pub classes: Option<Vec<usize>>,
    /// Whether only the classes of the dataset compete.
    pub restricted: bool,
    /// For each image of the dataset the network's classes that are right for it; none for an image that does not count.
    pub real: Option<Vec<Vec<u32>>>,
}

/// What the network says of one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// −log softmax of the label's logit, among the classes that compete.
    pub loss: f64,
    /// Classes ranked before the best right one: 0 counts for top-1, up to 4 for top-5. `None`: the image does not count.
    pub rank: Option<usize>,
}

impl Protocol {
    /// Judges the logits of image `item`, whose label in the dataset is `label`.
    pub fn judge(&self, logits: &[f32], item: usize, label: usize) -> Judged {
        let class = |label: usize| self.classes.as_ref().map_or(label, |classes| classes[label]);
        if self.restricted
            && let Some(classes) = &self.classes
        {
            let competing: Vec<f32> = classes.iter().map(|class| logits[*class]).collect();
            let rank = match &self.real {
                None => Some(rank(&competing, label)),
                Some(real) => classes
                    .iter()
                    .enumerate()
                    .filter(|(_, class)| real[item].contains(&(**class as u32)))
                    .map(|(place, _)| self::rank(&competing, place))
                    .min(),
            };
            return Judged { loss: softmax_loss(&competing, label), rank };
        }
        let rank = match &self.real {
            None => Some(rank(logits, class(label))),
            Some(real) => real[item].iter().map(|class| self::rank(logits, *class as usize)).min(),
        };
        Judged { loss: softmax_loss(logits, class(label)), rank }
    }

    /// The `count` best classes of the network with their logits, best first; of equal ones the lower class first.
    pub fn best(&self, logits: &[f32], count: usize) -> Vec<(usize, f32)> {
        let mut order: Vec<usize> = match (&self.classes, self.restricted) {
            (Some(classes), true) => classes.clone(),
            _ => (0..logits.len()).collect(),
        };
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        order.truncate(count);
        order.into_iter().map(|class| (class, logits[class])).collect()
    }

    /// The probabilities of `chosen` classes (of [`Self::best`]) among the classes that compete.
    pub fn probabilities(&self, logits: &[f32], chosen: &[(usize, f32)]) -> Vec<f64> {
        let competing: Vec<f32> = match (&self.classes, self.restricted) {
            (Some(classes), true) => classes.iter().map(|class| logits[*class]).collect(),
            _ => logits.to_vec(),
        };
        let max = competing.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let sum: f64 = competing.iter().map(|logit| (*logit as f64 - max).exp()).sum();
        chosen.iter().map(|(_, logit)| (*logit as f64 - max).exp() / sum).collect()
    }

    /// Checks that labels and classes exist in a network of `classes` classes.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self, labels: usize, images: usize, classes: usize) -> Result<()> {
        if let Some(map) = &self.classes {
            if map.len() != labels {
                return Err(Error::Failed(format!("{} classes are listed for the {labels} classes of the images", map.len())));
            }
            if let Some(class) = map.iter().find(|class| **class >= classes) {
                return Err(Error::Failed(format!("class {class} is listed, but the model has {classes} classes")));
            }
        } else if labels != classes {
            return Err(Error::Failed(format!("the model has {classes} classes, the held-out images {labels}")));
        }
        if let Some(real) = &self.real {
            if real.len() != images {
                return Err(Error::Failed(format!("there are labels for {} images, but {images} images", real.len())));
            }
            if let Some(class) = real.iter().flatten().find(|class| **class as usize >= classes) {
                return Err(Error::Failed(format!("a ReaL label is {class}, but the model has {classes} classes")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 3.0, 2.0, 1.0, 4.0];

    #[test]
    fn the_plain_protocol_ranks_the_label_among_all_classes() {
        let plain = Protocol::default();
        assert_eq!(plain.judge(&LOGITS, 0, 4).rank, Some(0));
        assert_eq!(plain.judge(&LOGITS, 0, 0).rank, Some(4));
        assert_eq!(plain.best(&LOGITS, 2), [(4, 4.0), (1, 3.0)]);
        let probabilities = plain.probabilities(&LOGITS, &plain.best(&LOGITS, 5));
        assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!((probabilities[0] / probabilities[1] - 1f64.exp()).abs() < 1e-6);
        assert!(plain.check(5, 1, 5).is_ok());
        assert!(plain.check(4, 1, 5).unwrap_err().to_string().contains("5 classes"));
    }

    #[test]
    fn a_subset_competes_alone_or_among_all() {
        let mut subset = Protocol { classes: Some(vec![1, 3]), restricted: true, real: None };
        let judged = subset.judge(&LOGITS, 0, 0);
        assert_eq!(judged.rank, Some(0), "class 4 does not compete");
        assert!((judged.loss - (1.0 + (-2f64).exp()).ln()).abs() < 1e-9);
        assert_eq!(subset.judge(&LOGITS, 0, 1).rank, Some(1));
        assert_eq!(subset.best(&LOGITS, 5), [(1, 3.0), (3, 1.0)]);
        subset.restricted = false;
        assert_eq!(subset.judge(&LOGITS, 0, 0).rank, Some(1));
        assert!(subset.check(3, 1, 5).is_err());
        assert!(subset.check(2, 1, 3).unwrap_err().to_string().contains("class 3"));
    }

    #[test]
    fn real_labels_accept_any_of_several_and_leave_out_images_without() {
        let real = Protocol { real: Some(vec![vec![0, 1], vec![]]), ..Protocol::default() };
        assert_eq!(real.judge(&LOGITS, 0, 3).rank, Some(1), "class 1 is right and second");
        assert_eq!(real.judge(&LOGITS, 1, 4).rank, None);
        assert!(real.check(5, 3, 5).unwrap_err().to_string().contains("labels for 2 images"));
    }
}
