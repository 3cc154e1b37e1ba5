//! A page of training samples: the run's first batch as the network sees it, mixed and all.

use manyheads_data::{Images, Loader};
use manyheads_model::Architecture;

use crate::config::Config;
use crate::engine::upload::normalised_on_the_host;
use crate::recipe::mixing;
use crate::sheet::Sheet;

/// A picture.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Page {
    /// In pixels.
    pub width: usize,
    /// In pixels.
    pub height: usize,
    /// The PNG file.
    pub png: Vec<u8>,
}

/// Small images are shown this large at least, in pixels.
const SIDE: usize = 96;

/// The first `log.samples` images of the first batch, row by row. `None` where there is none: a batch that cannot be read is reported
/// by the step that needs it.
pub(super) fn page(config: &Config, architecture: &Architecture, loader: &Loader) -> Option<Page> {
    let mut batch = loader.epoch(0, 0).next()?.ok()?;
    if batch.items.is_empty() || config.log.samples == 0 {
        return None;
    }
    let pixels = std::mem::replace(&mut batch.images, Images::F32(Vec::new()));
    batch.images = Images::F32(normalised_on_the_host(pixels, batch.shape, [config.data.mean(), config.data.std()]));
    mixing::apply(&mut batch, architecture.classes, config);
    let [images, channels, height, width] = batch.shape;
    let Images::F32(values) = &batch.images else { return None };
    let count = images.min(config.log.samples);
    let columns = (1..).find(|columns| columns * columns >= count).unwrap_or(1);
    let mut sheet = Sheet::new([count.div_ceil(columns), columns], [height, width], SIDE.div_ceil(height.min(width)));
    for (number, sample) in values.chunks_exact(channels * height * width).take(count).enumerate() {
        sheet.put([number / columns, number % columns], sample, config.data.mean(), config.data.std());
    }
    let [height, width] = sheet.size();
    let png = manyheads_data::encode_png(sheet.pixels(), width, height).ok()?;
    Some(Page { width, height, png })
}
