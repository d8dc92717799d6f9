//! What a bed needs of a device beyond its trait.

use super::draw::Draw;
use weightstream::device::sim::Order;
use weightstream::device::{Device, DevicePtr, HostBytes, HostDevice, Sim};

/// A device on which policies are played.
pub trait Played: Device + Sized {
    fn open(draw: &mut impl Draw) -> Self;

    /// A kernel reads these ranges, and must find these bytes there.
    fn kernel_reads(&mut self, reads: &[(DevicePtr, HostBytes)]);

    /// Panics if something went wrong that the device noticed by itself.
    fn judge(&mut self);

    /// Bytes of weights' memory that it has handed out.
    fn live(&self) -> u64;
}

impl Played for Sim {
    fn open(draw: &mut impl Draw) -> Sim {
        let order = match draw.below(4) {
            0 => Order::CopiesFirst,
            1 => Order::KernelsFirst,
            _ => Order::Random(draw.next()),
        };
        let mut sim = Sim::new(order);
        // Mostly with pages: without them nothing is planned.
        sim.set_page([Some(64), Some(128), Some(64), Some(64), None][draw.below(5) as usize]);
        sim
    }

    fn kernel_reads(&mut self, reads: &[(DevicePtr, HostBytes)]) {
        self.kernel(0, reads).unwrap();
    }

    fn judge(&mut self) {
        assert_eq!(self.verdict(), Ok(()));
    }

    fn live(&self) -> u64 {
        self.live_bytes()
    }
}

impl Played for HostDevice {
    fn open(_draw: &mut impl Draw) -> HostDevice {
        HostDevice::new().unwrap()
    }

    fn kernel_reads(&mut self, reads: &[(DevicePtr, HostBytes)]) {
        for (at, expected) in reads {
            let mut found = vec![0; expected.len() as usize];
            self.download(*at, &mut found).unwrap();
            // SAFETY: the contents live as long as the bed.
            let expected =
                unsafe { std::slice::from_raw_parts(expected.as_ptr(), expected.len() as usize) };
            assert!(found == expected, "{:#x} has other bytes", at.0);
        }
    }

    fn judge(&mut self) {}

    fn live(&self) -> u64 {
        self.live_bytes()
    }
}
