//! Pages of host memory that several loads and modules of this process need under the driver, which takes each page once.

use super::context::{Entered, PrimaryContext};
use super::register::{RegisterAccess, Registration};
use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is registered, by address: where each registration ends.
#[derive(Default)]
pub(super) struct Taken(BTreeMap<u64, (u64, Option<Arc<Registration>>)>);

/// How much of some pages one registration has.
pub(super) enum Registered {
    Nothing,
    /// All of them. Tests have no registration.
    All(Option<Arc<Registration>>),
    Some,
}

static TAKEN: Mutex<Taken> = Mutex::new(Taken(BTreeMap::new()));

/// Of all devices of the process. Registrations begin and end only while this is held.
pub(super) fn taken() -> MutexGuard<'static, Taken> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Taken {
    pub(super) fn of(&self, pages: &Range<u64>) -> Registered {
        match self.0.range(..pages.end).next_back() {
            Some((start, (end, one))) if *end > pages.start => {
                match *start <= pages.start && pages.end <= *end {
                    true => Registered::All(one.clone()),
                    false => Registered::Some,
                }
            }
            _ => Registered::Nothing,
        }
    }

    /// These pages, of which nothing was registered, are from now on.
    pub(super) fn insert(&mut self, pages: Range<u64>, registration: Option<Arc<Registration>>) {
        self.0.insert(pages.start, (pages.end, registration));
    }

    /// The registration of these pages: a new one, or the one that has them all. `cuts` as for [`Registration::new`].
    ///
    /// # Safety
    /// The pages are mapped, and stay so until what is returned is dropped.
    pub(super) unsafe fn register(
        &mut self,
        context: &Arc<PrimaryContext>,
        pages: Range<u64>,
        cuts: &[u64],
        access: RegisterAccess,
        entered: &Entered<'_>,
    ) -> Result<SharedRegistration> {
        if let Registered::All(known @ Some(_)) = self.of(&pages) {
            return Ok(SharedRegistration(known));
        }
        let all = pages.clone();
        // SAFETY: by the caller's promise. Who shares it has given that, too: it is the same memory, since it has the same addresses.
        let found = unsafe { Registration::of_pages(context, all, cuts, access, entered) };
        let found = Arc::new(found?);
        self.insert(pages, Some(Arc::clone(&found)));
        Ok(SharedRegistration(Some(found)))
    }
}

/// One user of a registration, which ends with the last of them.
pub(super) struct SharedRegistration(Option<Arc<Registration>>);

impl SharedRegistration {
    pub(super) fn get(&self) -> Option<&Registration> {
        self.0.as_deref()
    }
}

impl Drop for SharedRegistration {
    fn drop(&mut self) {
        let mut taken = taken();
        self.0 = None;
        // What only the table knows of has no user any more. Whoever wants these pages next waits here until the driver let go of them.
        let unused = |one: &Arc<Registration>| Arc::strong_count(one) == 1;
        taken
            .0
            .retain(|_, (_, one)| !one.as_ref().is_some_and(unused));
    }
}
