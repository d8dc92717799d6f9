//! What plans go by beside bytes.

use crate::device::Device;
use crate::figures::{DeviceModel, Link};
use crate::store::Store;

/// What is known of the device, of its link, and of kernels.
pub(super) struct Timing {
    /// Kernels of methods are timed, each in its second complete pass.
    pub kernels: bool,
    /// What copies cost, where that was measured or given at load.
    pub link: Option<Link>,
    /// The device beside the direct constants.
    pub model: DeviceModel,
}

impl Timing {
    /// `asked`: no times were given at load.
    pub fn new<D: Device>(store: &Store<D>, link: Option<Link>, asked: bool) -> Timing {
        let planned = store.residency().plan().is_some();
        Timing {
            kernels: asked && link.is_some() && planned && store.device.times_kernels(),
            link,
            model: store.model(),
        }
    }
}
