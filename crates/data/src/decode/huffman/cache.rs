//! Tables are kept from image to image: nearly all files of a collection have the same ones.

use std::cell::RefCell;
use std::rc::Rc;

use super::table::{Ac, Dc, Definition};

/// Tables kept of each kind; a table takes up to 16 KiB.
const KEPT: usize = 8;

/// The tables used last, the latest first.
struct Recent<T>(Vec<(Definition, Rc<T>)>);

impl<T> Recent<T> {
    const fn new() -> Self {
        Self(Vec::new())
    }

    fn get(&mut self, definition: &Definition, make: impl FnOnce(&Definition) -> Option<T>) -> Option<Rc<T>> {
        match self.0.iter().position(|(kept, _)| kept == definition) {
            Some(place) => self.0[..=place].rotate_right(1),
            None => {
                let table = Rc::new(make(definition)?);
                self.0.truncate(KEPT - 1);
                self.0.insert(0, (definition.clone(), table));
            }
        }
        Some(Rc::clone(&self.0[0].1))
    }
}

thread_local! {
    static DC: RefCell<Recent<Dc>> = const { RefCell::new(Recent::new()) };
    static AC: RefCell<Recent<Ac>> = const { RefCell::new(Recent::new()) };
}

/// The table for a definition; none if the definition is wrong.
pub(super) fn dc(definition: &Definition) -> Option<Rc<Dc>> {
    DC.with_borrow_mut(|recent| recent.get(definition, Dc::new))
}

/// As [`dc`].
pub(super) fn ac(definition: &Definition) -> Option<Rc<Ac>> {
    AC.with_borrow_mut(|recent| recent.get(definition, Ac::new))
}
