//! The loader's promises: the same bytes for any number of threads, errors that arrive, and no hanging.

mod common;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::CONFIG;
use manyheads_data::augment::{Fill, RandomErasing};
use manyheads_data::source::embedded::FashionMnist;
use manyheads_data::{
    Batch, DataError, EvalTransform, Images, Interpolation, Loader, LoaderConfig, OnError, PixelFormat, RandomResizedCrop,
    Source, TrainTransform, Transform,
};

fn train() -> Transform {
    Transform::Train(TrainTransform { size: [20, 24], channels: 3, ..TrainTransform::default() })
}

fn eval() -> Transform {
    Transform::Eval(EvalTransform {
        size: [28, 28],
        channels: 1,
        crop_pct: 1.0,
        interpolation: Interpolation::Bilinear,
        mean: vec![0.0],
        std: vec![1.0],
        ..EvalTransform::default()
    })
}

/// The first images of the embedded set with some made bad.
struct Spoiled {
    inner: FashionMnist,
    len: usize,
    empty: Vec<usize>,
    missing: Vec<usize>,
    panics: Vec<usize>,
    slow: Option<Duration>,
    reads: AtomicUsize,
}

impl Spoiled {
    fn new(len: usize) -> Self {
        Self {
            inner: FashionMnist::val().unwrap(),
            len,
            empty: vec![],
            missing: vec![],
            panics: vec![],
            slow: None,
            reads: AtomicUsize::new(0),
        }
    }
}

impl Source for Spoiled {
    fn len(&self) -> usize {
        self.len
    }
    fn classes(&self) -> &[String] {
        self.inner.classes()
    }
    fn label(&self, index: usize) -> usize {
        self.inner.label(index)
    }
    fn name(&self, index: usize) -> String {
        format!("spoiled/{index}.png")
    }
    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(time) = self.slow {
            std::thread::sleep(time);
        }
        if self.panics.contains(&index) {
            panic!("the source broke at {index}");
        }
        if self.missing.contains(&index) {
            let source = std::io::Error::other("disk gone");
            return Err(DataError::Io { name: self.name(index), source });
        }
        if self.empty.contains(&index) {
            return Ok(Cow::Borrowed(b""));
        }
        self.inner.read(index)
    }
    fn notices(&self) -> &[String] {
        &[]
    }
}

fn loader(source: Spoiled, transform: Transform, config: LoaderConfig) -> Loader {
    Loader::new(Arc::new(source), transform, config).unwrap()
}

fn floats(batch: &Batch) -> &[f32] {
    batch.images.as_f32().unwrap()
}

fn batches(loader: &Loader, epoch: u64, first: usize) -> Vec<Batch> {
    loader.epoch(epoch, first).collect::<Result<_, _>>().unwrap()
}

#[test]
fn pytorch_138989_any_number_of_threads_gives_the_same_bytes() {
    let reference = batches(&loader(Spoiled::new(150), train(), CONFIG), 1, 0);
    assert_eq!(reference.len(), 10);
    assert_eq!(reference[9].shape, [6, 3, 20, 24]);
    for workers in [1, 2, 3, 8] {
        for prefetch in [1, 2, 5, 100] {
            let config = LoaderConfig { workers, prefetch, ..CONFIG };
            let found = batches(&loader(Spoiled::new(150), train(), config), 1, 0);
            assert!(found == reference, "{workers} workers, {prefetch} batches ahead");
        }
    }
}

#[test]
fn starting_inside_an_epoch_equals_skipping() {
    let loader = loader(Spoiled::new(100), train(), LoaderConfig { workers: 2, ..CONFIG });
    let whole = batches(&loader, 3, 0);
    for first in 0..=8 {
        assert!(batches(&loader, 3, first) == whole[first.min(7)..], "from batch {first}");
    }
}

#[test]
fn accelerate_4071_positions_and_items_are_pure() {
    let loader = loader(Spoiled::new(100), train(), CONFIG);
    for epoch in [0, 5] {
        let mut all = HashSet::new();
        for (i, batch) in batches(&loader, epoch, 0).iter().enumerate() {
            assert_eq!((batch.epoch, batch.batch), (epoch, i));
            assert_eq!(batch.items, loader.items(epoch, i));
            assert_eq!(batch.items.len(), loader.batch_len(i));
            all.extend(batch.items.clone());
        }
        assert_eq!(all.len(), 100);
    }
    assert_eq!((loader.batch_len(7), loader.items(0, 7)), (0, vec![]));
}

/// Order and augmentation change from epoch to epoch, and with the seed.
#[test]
fn pytorch_31771_epochs_differ() {
    let first = |seed, epoch| {
        let loader = loader(Spoiled::new(200), train(), LoaderConfig { seed, ..CONFIG });
        batches(&loader, epoch, 0).swap_remove(0)
    };
    assert_ne!(first(7, 0).items, first(7, 1).items);
    assert_ne!(first(7, 0).items, first(8, 0).items);
    let unshuffled = |epoch| {
        let loader = loader(Spoiled::new(16), train(), LoaderConfig { shuffle: false, ..CONFIG });
        batches(&loader, epoch, 0).swap_remove(0)
    };
    let (a, b) = (unshuffled(0), unshuffled(1));
    assert_eq!(a.items, (0..16).collect::<Vec<_>>());
    assert_eq!(a.items, b.items);
    assert_ne!(a.images, b.images);
}

/// A sample's augmentation depends on seed, epoch and item, not on its place in a batch.
#[test]
fn augmentation_belongs_to_the_item() {
    let small = batches(&loader(Spoiled::new(40), train(), LoaderConfig { batch_size: 7, ..CONFIG }), 2, 0);
    let plain = batches(&loader(Spoiled::new(40), train(), LoaderConfig { batch_size: 40, shuffle: false, ..CONFIG }), 2, 0);
    let len = 3 * 20 * 24;
    for batch in &small {
        for (place, &item) in batch.items.iter().enumerate() {
            assert!(floats(batch)[place * len..][..len] == floats(&plain[0])[item * len..][..len], "item {item}");
        }
    }
}

#[test]
fn super_gradients_416_batches_mix_classes() {
    // 2000 images in class order; without a full shuffle a batch would hold one class.
    let config = LoaderConfig { batch_size: 100, ..CONFIG };
    let loader = Loader::new(Arc::new(FashionMnist::val().unwrap()), eval(), config).unwrap();
    let mut chi2 = 0.0;
    for epoch in 0..5 {
        for batch in 0..20 {
            let mut counts = [0f64; 10];
            loader.items(epoch, batch).iter().for_each(|&item| counts[loader.source().label(item)] += 1.0);
            assert!(counts.iter().filter(|&&c| c > 0.0).count() >= 8);
            chi2 += counts.iter().map(|c| (c - 10.0).powi(2) / 10.0).sum::<f64>();
        }
    }
    // 100 batches of 9 degrees of freedom, less 5 % because draws are without replacement: 855 ± 42; four deviations.
    assert!((687.0..1023.0).contains(&chi2), "chi-square {chi2}");
}

#[test]
fn lengths_add_up() {
    for (len, batch_size, drop_last, expected) in
        [(100, 16, false, (100, 7, 4)), (100, 16, true, (96, 6, 16)), (5, 8, false, (5, 1, 5))]
    {
        let loader = loader(Spoiled::new(len), eval(), LoaderConfig { batch_size, drop_last, ..CONFIG });
        let last = loader.batches_per_epoch() - 1;
        assert_eq!((loader.len(), loader.batches_per_epoch(), loader.batch_len(last)), expected);
        assert_eq!(batches(&loader, 0, 0).len(), expected.1);
    }
}

#[test]
fn impossible_settings_are_named() {
    let key = |config| match Loader::new(Arc::new(Spoiled::new(5)), eval(), config).err() {
        Some(DataError::Config { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(key(LoaderConfig { batch_size: 0, ..CONFIG }), "batch_size");
    assert_eq!(key(LoaderConfig { drop_last: true, ..CONFIG }), "batch_size");
    assert_eq!(key(LoaderConfig { prefetch: 0, ..CONFIG }), "prefetch");
    assert_eq!(key(LoaderConfig { batch_size: usize::MAX, ..CONFIG }), "batch_size");
}

/// The first bad image in the epoch's order is reported, after all whole batches before it, and then nothing more.
#[test]
fn errors_are_the_same_for_any_number_of_threads() {
    for workers in [0, 1, 2, 8] {
        for _ in 0..10 {
            let source = Spoiled { empty: vec![40, 90], missing: vec![37, 41], ..Spoiled::new(100) };
            let config = LoaderConfig { workers, shuffle: false, ..CONFIG };
            let loader = loader(source, eval(), config);
            let mut batches = loader.epoch(0, 0);
            for _ in 0..2 {
                assert_eq!(batches.next().unwrap().unwrap().items.len(), 16);
            }
            let message = batches.next().unwrap().unwrap_err().to_string();
            assert_eq!(message, "spoiled/37.png: disk gone", "{workers} workers");
            assert!(batches.next().is_none());
            assert!(batches.next().is_none());
        }
    }
}

/// Burn's own loader ends such an epoch quietly with samples missing.
#[test]
fn a_panic_in_a_source_is_an_error_with_the_items_name() {
    for workers in [0, 1, 4] {
        for on_error in [OnError::Fail, OnError::Skip] {
            let source = Spoiled { panics: vec![20], ..Spoiled::new(64) };
            let loader = loader(source, eval(), LoaderConfig { workers, on_error, shuffle: false, ..CONFIG });
            let found: Vec<_> = loader.epoch(0, 0).collect();
            assert_eq!(found.len(), 2, "{workers} workers");
            let error = found[1].as_ref().unwrap_err();
            assert!(
                matches!(error, DataError::WorkerPanic { name, message }
                if name == "spoiled/20.png" && message == "the source broke at 20"),
                "{error}"
            );
        }
    }
}

/// timm takes the neighbour, others drop the sample unseen.
#[test]
fn skipped_images_are_listed_and_the_batch_is_smaller() {
    let clean = batches(&loader(Spoiled::new(48), train(), LoaderConfig { shuffle: false, ..CONFIG }), 4, 0);
    for workers in [0, 1, 4] {
        let all_of_the_second: Vec<usize> = (16..32).collect();
        let source = Spoiled { empty: [vec![0, 5], all_of_the_second].concat(), missing: vec![15], ..Spoiled::new(48) };
        let config = LoaderConfig { workers, on_error: OnError::Skip, shuffle: false, ..CONFIG };
        let found = batches(&loader(source, train(), config), 4, 0);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].shape, [13, 3, 20, 24]);
        assert_eq!(found[0].items, [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        let names: Vec<&str> = found[0].skipped.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["spoiled/0.png", "spoiled/5.png", "spoiled/15.png"]);
        assert!(found[0].skipped[0].reason.contains("an empty file"));
        let len = 3 * 20 * 24;
        for (place, &item) in found[0].items.iter().enumerate() {
            assert!(floats(&found[0])[place * len..][..len] == floats(&clean[0])[item * len..][..len]);
            assert_eq!(found[0].labels[place], clean[0].labels[item]);
        }
        assert_eq!((found[1].shape, found[1].images.len(), found[1].skipped.len()), ([0, 3, 20, 24], 0, 16));
        assert!(found[2] == clean[2]);
    }
}

#[test]
fn dropping_early_is_prompt_and_work_is_bounded() {
    let source = Arc::new(Spoiled { slow: Some(Duration::from_millis(5)), ..Spoiled::new(2000) });
    let config = LoaderConfig { workers: 4, prefetch: 2, ..CONFIG };
    let loader = Loader::new(Arc::clone(&source) as Arc<dyn Source>, eval(), config).unwrap();
    let mut batches = loader.epoch(0, 0);
    batches.next().unwrap().unwrap();
    // Time enough to make everything, if nothing held the workers back.
    std::thread::sleep(Duration::from_millis(400));
    assert!(source.reads.load(Ordering::Relaxed) <= 3 * 16, "{:?} images read for one batch", source.reads);
    batches.next().unwrap().unwrap();
    // What is left of the epoch would take 2.4 s.
    let start = Instant::now();
    drop(batches);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let reads = source.reads.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(source.reads.load(Ordering::Relaxed), reads, "a worker is still at work");
    assert_eq!(Arc::strong_count(&source), 2);
    // A fresh iterator that is never asked.
    drop(loader.epoch(1, 3));
}

#[test]
fn threads_end_with_the_epoch() {
    let loader = loader(Spoiled::new(40), eval(), LoaderConfig { workers: 3, ..CONFIG });
    let mut batches = loader.epoch(0, 0);
    assert_eq!(batches.by_ref().count(), 3);
    assert!(batches.next().is_none());
    assert_eq!(loader.epoch(0, 3).count(), 0);
    assert_eq!(loader.epoch(0, usize::MAX).count(), 0);
}

/// Values that a run's results hang on. A change here changes every seeded run, and is a mistake.
#[test]
fn draws_are_frozen() {
    use manyheads_data::random::{below, stream, uniform};
    use manyheads_data::transform::resize::Rect;
    use manyheads_data::{Purpose, permutation};
    let mut rng = stream(1, Purpose::Augment, 2, 3);
    let draws = (uniform(&mut rng), below(&mut rng, 1000), below(&mut rng, u64::MAX));
    assert_eq!(draws, (0.3849446626384675, 501, 2861751601071719678));
    assert_eq!(permutation(12, 42, 7), [5, 6, 11, 3, 10, 4, 7, 2, 1, 8, 0, 9]);
    let crop = RandomResizedCrop { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] };
    let place = crop.draw(500, 375, &mut stream(1, Purpose::Augment, 0, 0));
    assert_eq!(place, Rect { x: 219, y: 9, width: 281, height: 362 });
    let batch = batches(&loader(Spoiled::new(64), train(), CONFIG), 0, 1).swap_remove(0);
    assert_eq!(batch.items[..4], [40, 3, 19, 18]);
    let sum: f64 = floats(&batch).iter().enumerate().map(|(i, &v)| f64::from(v) * (i % 97) as f64).sum();
    assert!((sum - -194312.87334046373).abs() < 1e-6, "{sum}");
}

/// The ranks of a run see every item once between them, as often as each other, with the augmentation of a run on one rank.
#[test]
fn lightning_17389_ranks_share_an_epoch() {
    let alone = loader(Spoiled::new(103), train(), CONFIG);
    let whole = batches(&alone, 3, 0);
    let len = 3 * 20 * 24;
    for world in [2, 8] {
        let mut seen = HashSet::new();
        let mut lengths = HashSet::new();
        for rank in 0..world {
            let config = LoaderConfig { rank, world, workers: 2, batch_size: 5, ..CONFIG };
            let loader = loader(Spoiled::new(103), train(), config);
            let found = batches(&loader, 3, 0);
            lengths.insert((found.len(), loader.len()));
            for batch in &found {
                assert_eq!(batch.items, loader.items(3, batch.batch));
                for (place, &item) in batch.items.iter().enumerate().take(batch.counted) {
                    assert!(seen.insert(item), "item {item} twice");
                    let (at, among) =
                        whole.iter().find_map(|b| b.items.iter().position(|&other| other == item).map(|at| (at, b))).unwrap();
                    assert!(floats(batch)[place * len..][..len] == floats(among)[at * len..][..len]);
                }
            }
        }
        assert_eq!((seen.len(), lengths.len()), (103, 1));
    }
}

/// Copies of one item are augmented differently, and the first as without repeats.
#[test]
fn deit_95_repeated_augmentation() {
    let config = LoaderConfig { repeats: 3, workers: 2, batch_size: 30, ..CONFIG };
    let repeated = loader(Spoiled::new(90), train(), config);
    let found = batches(&repeated, 0, 0);
    let plain = batches(&loader(Spoiled::new(90), train(), LoaderConfig { batch_size: 90, ..CONFIG }), 0, 0);
    assert_eq!((repeated.len(), found.len()), (90, 3));
    let len = 3 * 20 * 24;
    for batch in &found {
        for first in (0..30).step_by(3) {
            assert_eq!(batch.copies[first..first + 3], [0, 1, 2]);
            assert!(batch.items[first..first + 3].iter().all(|&item| item == batch.items[first]));
            let row = |i: usize| &floats(batch)[(first + i) * len..][..len];
            assert!(row(0) != row(1) && row(1) != row(2) && row(0) != row(2));
            let place = plain[0].items.iter().position(|&item| item == batch.items[first]).unwrap();
            assert!(row(0) == &floats(&plain[0])[place * len..][..len]);
        }
    }
}

/// Bytes are the floats before normalisation.
#[test]
fn batches_of_bytes_are_those_of_floats() {
    let floats_of = batches(&loader(Spoiled::new(40), train(), CONFIG), 1, 0);
    let config = LoaderConfig { format: PixelFormat::U8, workers: 3, ..CONFIG };
    let bytes_of = batches(&loader(Spoiled::new(40), train(), config), 1, 0);
    let (mean, std) = ([0.485f32, 0.456, 0.406], [0.229f32, 0.224, 0.225]);
    for (a, b) in floats_of.iter().zip(&bytes_of) {
        assert_eq!((&a.items, a.shape), (&b.items, b.shape));
        for (i, (&float, &byte)) in floats(a).iter().zip(b.images.as_u8().unwrap()).enumerate() {
            let channel = i / (20 * 24) % 3;
            let expected = (f32::from(byte) / 255.0 - mean[channel]) / std[channel];
            assert!((float - expected).abs() < 1e-5, "{float} {expected}");
        }
    }
}

/// Bytes, normalised and filled with their patches, are the floats to the last bit: with every fill, one and several rectangles,
/// copies of an image, images left out, any number of threads, and memory that held other images.
#[test]
fn bytes_with_their_patches_are_the_floats_erased() {
    let (mean, std) = ([0.485f32, 0.456, 0.406], [0.229f32, 0.224, 0.225]);
    let size = [20, 24];
    for (fill, count) in
        [(Fill::Pixel, 1), (Fill::Pixel, 4), (Fill::Rand, 1), (Fill::Rand, 3), (Fill::Const, 1), (Fill::Const, 2)]
    {
        let erasing = RandomErasing { probability: 0.6, fill, count, ..RandomErasing::default() };
        let transform = Transform::Train(TrainTransform { size, random_erasing: Some(erasing), ..TrainTransform::default() });
        let source = || Spoiled { empty: vec![3, 17, 18], ..Spoiled::new(60) };
        let config = LoaderConfig { on_error: OnError::Skip, repeats: 3, ..CONFIG };
        let expected = batches(&loader(source(), transform.clone(), config.clone()), 1, 0);
        for workers in [0, 1, 2] {
            let config = LoaderConfig { format: PixelFormat::U8, workers, ..config.clone() };
            let loader = loader(source(), transform.clone(), config);
            let (mut changed, mut most, mut left_out) = (0, 0, 0);
            for (found, expected) in loader.epoch(1, 0).zip(&expected) {
                let found = found.unwrap();
                assert_eq!((&found.items, &found.copies, found.shape), (&expected.items, &expected.copies, expected.shape));
                assert_eq!(found.skipped, expected.skipped);
                left_out += found.skipped.len();
                let Images::U8 { values, patches } = &found.images else { panic!("these are bytes") };
                let normalise = |(i, &byte): (usize, &u8)| (f32::from(byte) / 255.0 - mean[i / 480 % 3]) / std[i / 480 % 3];
                let mut images: Vec<f32> = values.iter().enumerate().map(normalise).collect();
                changed += usize::from(images != floats(expected));
                for (image, patch) in patches {
                    patch.write(size, &mut images[image * 1440..][..1440]);
                }
                assert!(images == floats(expected), "{fill:?}, {count} rectangles, {workers} threads, batch {}", found.batch);
                assert!(patches.is_sorted_by_key(|(image, _)| *image));
                let of = |image| patches.iter().filter(|(other, _)| *other == image).count();
                most = most.max((0..found.items.len()).map(of).max().unwrap());
                loader.recycle(found.images);
            }
            assert_eq!((changed, most), (expected.len(), count), "something was erased in every batch");
            assert!(left_out > 0);
        }
    }
}

/// Memory given back is used again, and its old values show nowhere.
#[test]
fn recycled_buffers_change_nothing() {
    let expected = batches(&loader(Spoiled::new(100), train(), CONFIG), 0, 0);
    for workers in [0, 3] {
        let source = Spoiled::new(100);
        let loader = loader(source, train(), LoaderConfig { workers, prefetch: 2, ..CONFIG });
        for _ in 0..3 {
            let mut places = HashSet::new();
            for (batch, expected) in loader.epoch(0, 0).zip(&expected) {
                let batch = batch.unwrap();
                assert!(batch == *expected);
                places.insert(floats(&batch).as_ptr());
                loader.recycle(batch.images);
            }
            assert!(places.len() <= 5, "{} buffers for 7 batches", places.len());
        }
        loader.recycle(Images::U8 { values: vec![1; 10], patches: Vec::new() });
        assert!(loader.epoch(0, 0).next().unwrap().unwrap() == expected[0]);
    }
}

/// The bound on bytes holds back batches as the bound on their number does.
#[test]
fn batches_ahead_are_bounded_in_bytes() {
    let source = Arc::new(Spoiled::new(2000));
    // Room for two batches of 16 images of 28 x 28 floats.
    let config = LoaderConfig { workers: 3, prefetch: 50, memory: 2 * 16 * 28 * 28 * 4 + 5, ..CONFIG };
    let loader = Loader::new(Arc::clone(&source) as Arc<dyn Source>, eval(), config).unwrap();
    assert_eq!(loader.config().prefetch, 2);
    let mut batches = loader.epoch(0, 0);
    batches.next().unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(source.reads.load(Ordering::Relaxed) <= 3 * 16);
    let tiny = Loader::new(source, eval(), LoaderConfig { memory: 1, ..CONFIG }).unwrap();
    assert_eq!(tiny.config().prefetch, 1);
}

#[test]
fn impossible_shares_are_named() {
    let key = |config| match Loader::new(Arc::new(Spoiled::new(5)), eval(), config).err() {
        Some(DataError::Config { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(key(LoaderConfig { rank: 2, world: 2, ..CONFIG }), "rank");
    assert_eq!(key(LoaderConfig { world: 0, ..CONFIG }), "rank");
    assert_eq!(key(LoaderConfig { repeats: 0, ..CONFIG }), "repeats");
    assert_eq!(key(LoaderConfig { world: 6, batch_size: 1, drop_last: true, ..CONFIG }), "batch_size");
}
