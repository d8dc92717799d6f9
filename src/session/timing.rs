//! What is kept until kernels were timed.

use crate::device::Device;
use crate::figures::{DeviceModel, Link};
use crate::schedule::Event;
use crate::store::Store;

/// Until the plan is final.
pub(super) struct Timing {
    pub(super) model: DeviceModel,
    pub(super) link: Link,
    /// What the kernels after each mark of the pass belong to, if they are any; `None` outside of the timed pass.
    pub(super) marks: Option<Vec<Option<Event>>>,
}

impl Timing {
    /// Of a store whose plan could be another one if kernels' times were known.
    pub(super) fn new<D: Device>(store: &Store<D>, link: Option<Link>) -> Option<Timing> {
        let streams = store.residency().plan().is_some();
        let link = link.filter(|_| streams && store.device.times_kernels())?;
        Some(Timing {
            model: store.device.model().beside(store.floor().direct),
            link,
            marks: None,
        })
    }
}
