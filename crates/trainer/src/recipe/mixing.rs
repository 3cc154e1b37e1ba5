//! The targets of a batch: label smoothing, mixup and CutMix.

use burn::tensor::Tensor;
use manyheads_data::mix::{Mix, MixDraw, MixKind, targets};
use manyheads_data::{Batch, Images};
use manyheads_model::profile::{self, Kind};

use crate::config::{Config, LossKind};

/// How the images of a batch were mixed.
#[derive(Debug, Clone, PartialEq)]
pub struct Blend {
    group: usize,
    draws: Vec<MixDraw>,
}

impl Blend {
    /// Of `images` images none was mixed.
    pub fn none(images: usize) -> Self {
        Self { group: images.max(1), draws: vec![MixDraw::NONE] }
    }

    /// Whether it leaves every image as it is.
    pub fn is_none(&self) -> bool {
        self.draws.iter().all(|draw| draw.kind == MixKind::None)
    }

    /// Rows of numbers, one for each image, mixed as the images were.
    pub fn rows(&self, rows: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        let mix = |(group, draw): (&[Vec<f32>], &MixDraw)| -> Vec<Vec<f32>> {
            let (own, other) = (draw.lambda as f32, (1.0 - draw.lambda) as f32);
            let pairs = group.iter().zip(group.iter().rev());
            pairs.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * own + b * other).collect()).collect()
        };
        rows.chunks(self.group).zip(&self.draws).flat_map(mix).collect()
    }

    /// Images on a device, `[B, C, H, W]`, normalised and not mixed yet, mixed as [`MixDraw::apply`] mixes them on the host.
    pub fn mix(&self, images: Tensor<4>) -> Tensor<4> {
        let [count, channels, ..] = images.dims();
        let group = |(number, draw): (usize, &MixDraw)| {
            let first = number * self.group;
            let group = images.clone().narrow(0, first, self.group.min(count - first));
            match draw.kind {
                MixKind::None => group,
                MixKind::Mixup => {
                    let (own, other) = (draw.lambda as f32, (1.0 - draw.lambda) as f32);
                    group.clone() * own + group.flip([0]) * other
                }
                MixKind::CutMix(rect) if rect.width == 0 || rect.height == 0 => group,
                MixKind::CutMix(rect) => {
                    let (rows, columns) = (rect.y..rect.y + rect.height, rect.x..rect.x + rect.width);
                    let region = [0..group.dims()[0], 0..channels, rows, columns];
                    let others = group.clone().slice(region.clone()).flip([0]);
                    group.slice_assign(region, others)
                }
            }
        };
        match self.draws.iter().all(|draw| draw.kind == MixKind::None) {
            true => images,
            false => Tensor::cat(self.draws.iter().enumerate().map(group).collect(), 0),
        }
    }
}

/// Mixes the images of a batch where the configuration says so and returns the targets, `[images, classes]` row by row, and how the
/// images were mixed. Bytes are left as they are: they are mixed once they are normalised, by [`Blend::mix`].
///
/// Images are mixed in groups of `mix.group`, counted from the batch's first. A group's draw is named by the place of its first image
/// in the epoch, so that batches of whole groups can be cut in any way. With the loss `bce` every class that has a share in an image
/// is a target of 1, as DeiT III's.
pub fn apply(batch: &mut Batch, classes: usize, config: &Config) -> (Vec<f32>, Blend) {
    profile::on_host(Kind::Data, || mixed(batch, classes, config))
}

fn mixed(batch: &mut Batch, classes: usize, config: &Config) -> (Vec<f32>, Blend) {
    let Config { mix, train, .. } = config;
    let [_, channels, height, width] = batch.shape;
    let Blend { group, draws } = match mix.on() {
        false => Blend::none(batch.labels.len()),
        true => {
            let laws = Mix {
                mixup_alpha: mix.mixup,
                cutmix_alpha: mix.cutmix,
                probability: mix.probability,
                switch_probability: mix.switch,
            };
            let first = (batch.batch * train.batch_size) as u64;
            let groups = batch.labels.len().div_ceil(mix.group) as u64;
            let draw = |number| laws.draw(config.run.seed, batch.epoch, first + number * mix.group as u64, [height, width]);
            Blend { group: mix.group, draws: (0..groups).map(draw).collect() }
        }
    };
    if let (true, Images::F32(values)) = (mix.on(), &mut batch.images) {
        for (values, draw) in values.chunks_mut(group * channels * height * width).zip(&draws) {
            draw.apply(values, [channels, height, width]);
        }
    }
    let mut targets = targets(&batch.labels, classes, train.label_smoothing, group, &draws);
    if train.loss == LossKind::Bce {
        targets.iter_mut().for_each(|target| *target = f32::from(*target > 0.0));
    }
    (targets, Blend { group, draws })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(labels: &[u32], number: usize) -> Batch {
        Batch {
            images: Images::F32((0..labels.len() * 4).map(|value| value as f32).collect()),
            shape: [labels.len(), 1, 2, 2],
            labels: labels.to_vec(),
            items: (0..labels.len()).collect(),
            copies: vec![0; labels.len()],
            counted: labels.len(),
            skipped: Vec::new(),
            epoch: 0,
            batch: number,
        }
    }

    fn config() -> Config {
        let mut config = Config::default();
        config.mix.mixup = 0.8;
        config.mix.group = 2;
        config.train.batch_size = 4;
        config
    }

    #[test]
    fn batches_of_whole_groups_can_be_cut_in_any_way() {
        let config = config();
        let mut whole = batch(&[0, 1, 2, 0], 3);
        let (targets, blend) = apply(&mut whole, 3, &config);
        let mut halves = config.clone();
        halves.train.batch_size = 2;
        let mut second = batch(&[2, 0], 7);
        second.images = Images::F32((8..16).map(|value| value as f32).collect());
        let (part, _) = apply(&mut second, 3, &halves);
        assert_eq!(part, targets[6..]);
        // Other rows are mixed as the targets are.
        let (on, off) = (0.9 + 0.1 / 3.0, 0.1 / 3.0);
        let row = |label: usize| (0..3).map(|class| if class == label { on } else { off }).collect::<Vec<f32>>();
        let rows = blend.rows([0, 1, 2, 0].map(row).to_vec()).concat();
        assert!(rows.iter().zip(&targets).all(|(a, b)| (a - b).abs() < 1e-6), "{rows:?} {targets:?}");
        assert_eq!(second.images.as_f32().unwrap(), &whole.images.as_f32().unwrap()[8..]);
    }

    #[test]
    fn any_size_is_mixed_and_targets_sum_to_one() {
        for size in [1, 3, 65] {
            let labels: Vec<u32> = (0..size).map(|label| label % 3).collect();
            let (targets, _) = apply(&mut batch(&labels, 0), 3, &config());
            assert_eq!(targets.len(), labels.len() * 3);
            assert!(targets.chunks(3).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-6));
        }
    }

    #[test]
    fn binary_targets_are_every_class_with_a_share() {
        let mut config = config();
        config.train.loss = LossKind::Bce;
        config.train.label_smoothing = 0.0;
        let (targets, _) = apply(&mut batch(&[0, 2], 0), 3, &config);
        assert_eq!(targets, [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
    }

    /// A GPU mixes what the host mixes for the CPU, the middle of an odd group and an empty rectangle included.
    #[test]
    #[cfg(feature = "flex")]
    fn images_are_mixed_on_a_device_as_on_the_host() {
        let (images, shape) = (7, [2, 5, 6]);
        let len: usize = shape.iter().product();
        let values: Vec<f32> = (0..images * len).map(|value| (value as f32 * 0.37).sin()).collect();
        let size = [shape[1], shape[2]];
        let cut = |lambda, middle| MixDraw::cutmix(lambda, middle, size);
        let mixup = MixDraw { kind: MixKind::Mixup, lambda: 0.3 };
        for draws in [[cut(0.4, [4, 0]), mixup, MixDraw::NONE], [mixup, cut(1.0, [2, 2]), cut(0.0, [2, 2])]] {
            let blend = Blend { group: 3, draws: draws.to_vec() };
            let mut expected = values.clone();
            for (values, draw) in expected.chunks_mut(3 * len).zip(&draws) {
                draw.apply(values, shape);
            }
            let device = burn::tensor::Device::flex();
            let data = burn::tensor::TensorData::new(values.clone(), [images, shape[0], shape[1], shape[2]]);
            let mixed: Vec<f32> = blend.mix(Tensor::from_data(data, &device)).into_data().try_into_vec().unwrap();
            assert!(mixed.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{draws:?}");
        }
    }
}
