//! A delegate in a child that was forked after its load: every call says why it fails, and the end is harmless.

use super::support::{payload, RecordSpec};
use super::*;
use crate::device::{Device, HostBytes, HostDevice};

/// A host device with copies under way: its end waits for the copy thread, which a child does not have.
struct Copying(HostDevice);

impl RunPass for Copying {
    fn run(
        &mut self,
        _: &Signature<'_>,
        _: &[InputTensor<'_>],
        _: super::TakeOutputs<'_>,
    ) -> Result<()> {
        self.0.synchronize()
    }

    fn reset_state(&mut self) -> Result<()> {
        Ok(())
    }

    fn set_budget(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn parts(&self) -> Parts {
        Parts {
            program: Arc::new(()),
            state: None,
            membership: None,
        }
    }

    fn stats(&self) -> Arc<Mutex<Stats>> {
        Arc::default()
    }
}

fn delegate() -> Delegate {
    let mut device = HostDevice::new().unwrap();
    let ptr = device.alloc(1 << 20).unwrap();
    let bytes = HostBytes::from_static(Box::leak(vec![7; 1 << 20].into_boxed_slice()));
    device.bring(ptr, bytes).unwrap();
    Delegate {
        records: Records::from_payload("payload", &payload(&RecordSpec::small())).unwrap(),
        wiring: Wiring::straight(1, 1),
        live: Live::new(Box::new(Copying(device))),
        inputs_copied: AtomicU64::new(0),
        options: String::new(),
    }
}

fn assert_refused(result: Result<()>, parent: u32) {
    let text = result.unwrap_err().to_string();
    for part in [parent, std::process::id()] {
        assert!(text.contains(&format!("process {part}")), "{text}");
    }
    assert!(
        text.contains("fork") && text.contains("load it again"),
        "{text}"
    );
}

#[test]
fn in_a_child_every_call_says_why_it_fails_and_the_end_is_harmless() {
    let delegate = delegate();
    let live = delegate.live.get().unwrap();
    // As if another thread held them at the fork: in the child they are never free again.
    std::mem::forget((live.engine.lock(), live.stats.lock()));
    let (mut delegate, parent) = (Some(delegate), std::process::id());
    crate::fork::in_child(|| {
        let delegate = delegate.take().unwrap();
        assert_refused(delegate.execute(&[], &mut |_, _| Ok(())), parent);
        assert_refused(delegate.execute_into(&[], &mut []), parent);
        assert_refused(delegate.stats().map(drop), parent);
        assert_refused(delegate.check_process(), parent);
        assert_eq!(delegate.method(), "forward");
        drop(delegate);
        HostDevice::new().unwrap().synchronize().unwrap();
    });
    delegate.unwrap().check_process().unwrap();
}
