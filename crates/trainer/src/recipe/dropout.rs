//! Which values a sample drops, drawn on the host (law 1).
//!
//! A sample's draws depend on seed, epoch, its number in the dataset, the copy of it and the place in the network alone, so that splitting
//! a batch, threads and restarts change nothing. Masks are large (ViT-B at 224: 11 million values an image where projections
//! drop), so they are cut from 16 bits each: a rate is kept to 1 in 65,536. Patches are chosen without
//! replacement, and those that are left stay in their order, where timm's are shuffled: their positions are added, so only rounding
//! sees it.

use std::thread;

use burn::tensor::{Device, Tensor, TensorData};
use manyheads_data::random::{ChaCha8Rng, Purpose, below, fill_chance, stream};
use manyheads_model::profile::{self, Kind};
use manyheads_model::{Architecture, AttentionKind, BlockMasks, DropoutMasks, KeptPatches, Mask};

/// The samples of a batch, as their draws are named.
#[derive(Debug, Clone, Copy)]
pub struct Samples<'a> {
    /// The run's seed.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// Each sample's number in the dataset.
    pub items: &'a [usize],
    /// Which copy of it each is.
    pub copies: &'a [u32],
}

/// Where values are dropped. The numbers are part of every run's result and never change.
#[derive(Debug, Clone, Copy)]
enum Place {
    Head,
    HeadDist,
    Positions,
    Patches,
    Attention(usize),
    Projection(usize),
    Hidden(usize),
    Output(usize),
}

impl Place {
    fn number(self) -> u64 {
        let in_block = |block: usize, part: u64| 4 + 4 * block as u64 + part;
        match self {
            Self::Head => 0,
            Self::HeadDist => 1,
            Self::Positions => 2,
            Self::Patches => 3,
            Self::Attention(block) => in_block(block, 0),
            Self::Projection(block) => in_block(block, 1),
            Self::Hidden(block) => in_block(block, 2),
            Self::Output(block) => in_block(block, 3),
        }
    }
}

impl Samples<'_> {
    /// The masks of a forward pass of a network of `architecture`; none where it drops nothing.
    pub fn masks(&self, architecture: &Architecture, device: &Device) -> Option<DropoutMasks> {
        let Architecture { width, heads, mlp_hidden, dropout, depth, .. } = *architecture;
        if !dropout.on() {
            return None;
        }
        let tokens = architecture.training_tokens();
        let block = |index: usize| {
            let map = if architecture.layers[index].kind == AttentionKind::Softmax { dropout.attention } else { 0.0 };
            BlockMasks {
                attention: self.mask(Place::Attention(index), [heads, tokens, tokens], map, device),
                projection: self.mask(Place::Projection(index), [tokens, width], dropout.projections, device),
                hidden: self.mask(Place::Hidden(index), [tokens, mlp_hidden], dropout.projections, device),
                output: self.mask(Place::Output(index), [tokens, width], dropout.projections, device),
            }
        };
        let head_dist = if architecture.distilled { dropout.head } else { 0.0 };
        Some(DropoutMasks {
            positions: self.mask(Place::Positions, [architecture.tokens(), width], dropout.positions, device),
            patches: (dropout.patches > 0.0).then(|| {
                let patches = architecture.tokens() - architecture.prefix_tokens();
                let count = KeptPatches::count(patches, dropout.patches);
                KeptPatches { rows: Tensor::from_data(self.kept(patches, count).as_slice(), device), count }
            }),
            blocks: (0..depth).map(block).collect(),
            head: self.mask(Place::Head, [width], dropout.head, device),
            head_dist: self.mask(Place::HeadDist, [width], head_dist, device),
        })
    }

    /// The draws of a sample at a place.
    fn stream(&self, sample: usize, place: Place) -> ChaCha8Rng {
        let mut rng = stream(self.seed, Purpose::Dropout, self.epoch, self.items[sample] as u64);
        rng.set_stream(place.number() << 32 | u64::from(self.copies[sample]));
        rng
    }

    /// A mask of `[batch, shape…]`; none where the rate is 0.
    fn mask<const S: usize, const D: usize>(
        &self,
        place: Place,
        shape: [usize; S],
        rate: f64,
        device: &Device,
    ) -> Option<Mask<D>> {
        if rate == 0.0 {
            return None;
        }
        let dropped = profile::on_host(Kind::Data, || self.dropped(place, shape.iter().product(), rate));
        let shape: Vec<usize> = std::iter::once(self.items.len()).chain(shape).collect();
        Some(Mask::new(Tensor::from_data(TensorData::new(dropped, shape), device), rate))
    }

    /// For each sample `values` booleans, true with probability `rate`.
    fn dropped(&self, place: Place, values: usize, rate: f64) -> Vec<bool> {
        let mut dropped = vec![false; self.items.len() * values];
        // Below this a thread costs more than it saves.
        let threads = match dropped.len() {
            0..=0xffff => 1,
            _ => thread::available_parallelism().map_or(1, usize::from).min(self.items.len()),
        };
        let share = self.items.len().div_ceil(threads);
        let fill = |first: usize, part: &mut [bool]| {
            for (dropped, sample) in part.chunks_mut(values).zip(first..) {
                fill_chance(&mut self.stream(sample, place), rate, dropped);
            }
        };
        if threads == 1 {
            fill(0, &mut dropped);
        } else {
            thread::scope(|scope| {
                for (number, part) in dropped.chunks_mut(share * values).enumerate() {
                    scope.spawn(move || fill(number * share, part));
                }
            });
        }
        dropped
    }

    /// The kept patches of every sample, as [`KeptPatches::rows`].
    fn kept(&self, patches: usize, count: usize) -> Vec<i32> {
        let of_sample = |sample: usize| {
            let mut rng = self.stream(sample, Place::Patches);
            let mut order: Vec<usize> = (0..patches).collect();
            for place in 0..count {
                let other = place + below(&mut rng, (patches - place) as u64) as usize;
                order.swap(place, other);
            }
            order.truncate(count);
            order.sort_unstable();
            order.into_iter().map(move |patch| (sample * patches + patch) as i32)
        };
        (0..self.items.len()).flat_map(of_sample).collect()
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use manyheads_model::ModelConfig;

    fn samples<'a>(items: &'a [usize], copies: &'a [u32]) -> Samples<'a> {
        Samples { seed: 7, epoch: 2, items, copies }
    }

    #[test]
    fn a_sample_drops_the_same_in_every_batch_and_on_any_number_of_threads() {
        // Long enough for threads in the whole batch, too short in the parts.
        let values = 30_001;
        let whole = samples(&[5, 9, 11, 4], &[0; 4]).dropped(Place::Hidden(3), values, 0.3);
        for (sample, item) in [5, 9, 11, 4].into_iter().enumerate() {
            let alone = samples(&[item], &[0]).dropped(Place::Hidden(3), values, 0.3);
            assert!(whole[sample * values..(sample + 1) * values] == alone, "{item}");
        }
        let of = |samples: Samples<'_>, place: Place| samples.dropped(place, 100, 0.3);
        let one = of(samples(&[5], &[0]), Place::Hidden(3));
        assert_ne!(one, of(samples(&[5], &[1]), Place::Hidden(3)), "copies of an item draw by themselves");
        assert_ne!(one, of(samples(&[5], &[0]), Place::Output(3)), "so do places");
        assert_ne!(one, of(samples(&[5], &[0]), Place::Hidden(2)), "so do blocks");
        assert_ne!(one, of(Samples { epoch: 3, ..samples(&[5], &[0]) }, Place::Hidden(3)), "so do epochs");
        assert_ne!(one, of(Samples { seed: 8, ..samples(&[5], &[0]) }, Place::Hidden(3)), "so do seeds");
    }

    #[test]
    fn values_are_dropped_at_their_rate() {
        let items: Vec<usize> = (0..100).collect();
        let copies = vec![0; 100];
        for rate in [0.1, 0.5, 0.9] {
            let dropped = samples(&items, &copies).dropped(Place::Positions, 2000, rate);
            let share = dropped.iter().filter(|dropped| **dropped).count() as f64 / 200_000.0;
            // Four standard deviations.
            assert!((share - rate).abs() < 4.0 * (rate * (1.0 - rate) / 200_000.0).sqrt(), "{rate}: {share}");
        }
    }

    #[test]
    fn every_patch_is_kept_as_often_as_every_other() {
        let items: Vec<usize> = (0..20_000).collect();
        let copies = vec![0; items.len()];
        let kept = samples(&items, &copies).kept(10, 3);
        let mut counts = [0u32; 10];
        for (sample, rows) in kept.chunks(3).enumerate() {
            assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "each once, in order: {rows:?}");
            for row in rows {
                assert!((*row as usize) / 10 == sample);
                counts[*row as usize % 10] += 1;
            }
        }
        for count in counts {
            assert!((f64::from(count) - 6000.0).abs() < 4.0 * (20_000.0f64 * 0.3 * 0.7).sqrt(), "{counts:?}");
        }
    }

    #[test]
    fn what_is_off_draws_nothing_and_what_is_on_has_the_networks_shapes() {
        let device = Device::flex();
        let mut config = ModelConfig {
            image_size: Some(manyheads_model::ImageSize::Square(16)),
            patch_size: Some(4),
            width: Some(8),
            depth: Some(2),
            heads: Some(2),
            distilled: Some(true),
            ..ModelConfig::default()
        };
        let samples = samples(&[3, 1], &[0, 1]);
        assert!(samples.masks(&config.resolve().unwrap(), &device).is_none());
        config.dropout.patches = 0.5;
        let masks = samples.masks(&config.resolve().unwrap(), &device).unwrap();
        let patches = masks.patches.unwrap();
        assert_eq!((patches.count, patches.rows.dims()), (8, [16]));
        assert!(masks.head.is_none() && masks.positions.is_none() && masks.blocks[1].hidden.is_none());
        config.dropout.head = 0.1;
        config.dropout.attention = 0.1;
        config.dropout.projections = 0.1;
        let masks = samples.masks(&config.resolve().unwrap(), &device).unwrap();
        assert!(masks.head.is_some() && masks.head_dist.is_some() && masks.positions.is_none());
        assert!(
            masks.blocks.iter().all(|block| block.attention.is_some() && block.projection.is_some() && block.hidden.is_some())
        );
    }
}
