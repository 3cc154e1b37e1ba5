//! Decoded pages, kept up to a number of bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ::parquet::data_type::ByteArray;

/// Number of a row group over all files, and of a page in it.
type Key = (usize, usize);

/// The images of one page.
pub(super) struct Page {
    first: usize,
    images: Vec<Option<ByteArray>>,
    bytes: usize,
}

impl Page {
    /// `first`: row of the first image in its group.
    pub(super) fn new(first: usize, images: Vec<Option<ByteArray>>) -> Self {
        let bytes = images.iter().flatten().map(ByteArray::len).sum();
        Self { first, images, bytes }
    }

    /// The image of a row of the group.
    pub(super) fn image(&self, row: usize) -> Option<ByteArray> {
        self.images.get(row - self.first)?.clone()
    }
}

/// A page that is there, or that a thread is decoding.
type Slot = Arc<OnceLock<Result<Arc<Page>, String>>>;

struct Pages {
    /// With the time of the last use.
    slots: HashMap<Key, (Slot, u64)>,
    clock: u64,
    bytes: usize,
}

/// Pages last used longest ago go first. Threads that want one page wait for the one that decodes it.
pub(super) struct Cache {
    limit: usize,
    pages: Mutex<Pages>,
}

impl Cache {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, pages: Mutex::new(Pages { slots: HashMap::new(), clock: 0, bytes: 0 }) }
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: Key, load: impl FnOnce() -> Result<Page, String>) -> Result<Arc<Page>, String> {
        let slot = {
            let mut pages = self.lock();
            pages.clock += 1;
            let now = pages.clock;
            let (slot, used) = pages.slots.entry(key).or_insert_with(|| (Slot::default(), now));
            *used = now;
            Arc::clone(slot)
        };
        let mut loaded = false;
        let page = slot
            .get_or_init(|| {
                loaded = true;
                load().map(Arc::new)
            })
            .clone();
        if loaded {
            let mut pages = self.lock();
            match &page {
                Ok(page) => {
                    pages.bytes += page.bytes;
                    self.evict(&mut pages, key);
                }
                // Another try may succeed: the disk may be back.
                Err(_) => {
                    pages.slots.remove(&key);
                }
            }
        }
        page
    }

    /// Drops pages until the rest fit; `keep` goes too if it alone does not fit, once its readers are done.
    fn evict(&self, pages: &mut Pages, keep: Key) {
        while pages.bytes > self.limit {
            let finished = pages.slots.iter().filter(|(key, (slot, _))| **key != keep && slot.get().is_some());
            let oldest = finished.min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key);
            let key = oldest.unwrap_or(keep);
            if let Some((slot, _)) = pages.slots.remove(&key)
                && let Some(Ok(page)) = slot.get()
            {
                pages.bytes -= page.bytes.min(pages.bytes);
            }
            if key == keep {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(bytes: usize) -> Result<Page, String> {
        Ok(Page::new(0, vec![Some(ByteArray::from(vec![0; bytes])), None]))
    }

    #[test]
    fn pages_are_kept_up_to_the_limit() {
        let cache = Cache::new(100);
        for i in 0..10 {
            cache.get((0, i), || page(30)).unwrap();
            assert!(cache.lock().bytes <= 100);
        }
        assert!(cache.get((0, 9), || Err("read again".into())).is_ok());
        assert!(cache.get((0, 0), || Err("gone".into())).is_err());
        // A page that alone is too large is handed out and not kept.
        assert_eq!(cache.get((1, 0), || page(500)).unwrap().image(0).unwrap().len(), 500);
        assert!(cache.lock().bytes <= 100);
        assert!(cache.get((0, 9), || page(1)).unwrap().image(1).is_none());
    }

    #[test]
    fn one_thread_decodes_for_all() {
        let (cache, loads) = (Cache::new(100), std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    cache.get((0, 0), || {
                        loads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        page(10)
                    })
                });
            }
        });
        assert_eq!(loads.into_inner(), 1);
    }
}
