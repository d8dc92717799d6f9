//! The example of a device is enough of one: passes over it are right, also after its budget has changed.

use crate::plain_device::Plain;
use crate::session_support::{chain, play, Kernels, Model, Pass};
use weightstream::config::PolicyKind;
use weightstream::device::{Device, DevicePtr, HostBytes};
use weightstream::session::Session;
use weightstream::store::StoreOptions;

impl Kernels for Plain {
    /// The device writes down what it should find, and compares both.
    fn kernel(&mut self, number: u32, reads: &[(DevicePtr, HostBytes)]) {
        for &(ptr, expected) in reads {
            let scratch = self.alloc_scratch(expected.len()).unwrap();
            self.upload_bytes(scratch, expected).unwrap();
            let mut bytes = |at| {
                let mut bytes = vec![0; expected.len() as usize];
                self.download(at, &mut bytes).unwrap();
                bytes
            };
            let (found, wanted) = (bytes(ptr), bytes(scratch));
            assert!(
                found == wanted,
                "kernel {number} read other bytes than its weight's"
            );
            self.free_scratch(scratch, expected.len()).unwrap();
        }
    }

    /// A kernel has run, and was checked, when it was issued.
    fn check(&mut self) {}
}

fn everything(model: &Model) -> u64 {
    let floor = model.floor();
    floor.direct + floor.everything
}

fn elastic(model: &Model, budget: u64) -> Session<Plain> {
    let options = StoreOptions {
        budget: Some(budget),
        policy: PolicyKind::Planned,
        elastic: true,
        ..StoreOptions::default()
    };
    Session::new(Plain::new(), model.program(), model.host_bytes(), options).unwrap()
}

#[test]
fn passes_are_right_under_every_budget() {
    // Of whole units, and of sizes that end within a page.
    let odd: Vec<u64> = (0..20).map(|i| 40_000 + 1234 * i).collect();
    for model in [chain(&[1 << 16; 20]), chain(&odd)] {
        let all = everything(&model);
        let mut session = elastic(&model, all / 2);
        for percent in [30, 75, 20, 100] {
            let budget = all * percent / 100;
            session.set_budget(budget).unwrap();
            for _ in 0..3 {
                play(&model, &mut session, Pass::Complete).unwrap();
            }
            let stats = session.stats();
            assert!(stats.peak_bytes <= budget, "{percent} %");
            assert!(
                session.device().live_bytes() <= budget + 4096,
                "{percent} %"
            );
            // Otherwise no kernel would have waited for a copy.
            let streams = stats.bytes_copied_last_pass > 0;
            assert!(streams || percent == 100, "{percent} %");
        }
        assert_eq!(session.stats().budget_changes, 4);
        session.device_mut().check();
    }
}
