//! The pass that runs on this thread. The compiled code's calls carry no context of their own, so they
//! find it here. It also keeps the first error of a pass: the compiled code turns codes into text on
//! stderr, and ignores some of them.

use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;

use super::hooks::PassHooks;
use super::slab::{Handle, Slab};
use super::tensor::{Owner, Storage};
use crate::error::{Error, Result};
use crate::figures::DeviceId;

/// What the functions called by the compiled code work on.
pub(crate) struct Context<'a> {
    /// Handles of the container.
    pub(crate) slab: &'a mut Slab,
    /// The device that the container was made for.
    pub(crate) device: TorchDevice,
    /// PyTorch's flag; nothing here depends on it, but it must answer as it was set.
    pub(crate) grad_enabled: bool,
    /// State of the program's random numbers.
    pub(crate) random: u64,
    hooks: Option<&'a mut dyn PassHooks>,
    error: Option<Error>,
    calls: u64,
    /// Which of them is to fail, for tests: looked up once for the pass, not in each call.
    fail_at: u64,
}

/// A device as PyTorch tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TorchDevice {
    /// `c10::DeviceType`.
    pub(crate) kind: i32,
    /// Which one of its kind; -1 on the CPU.
    pub(crate) index: i32,
}

impl TorchDevice {
    /// The CPU.
    pub(crate) const CPU: TorchDevice = TorchDevice { kind: 0, index: -1 };

    /// Whether its memory is this process's own.
    pub(crate) fn is_host(self) -> bool {
        self.kind == 0
    }
}

impl From<DeviceId> for TorchDevice {
    fn from(device: DeviceId) -> TorchDevice {
        match device {
            DeviceId::Cpu => TorchDevice::CPU,
            // The driver counts them in an int too.
            DeviceId::Cuda(index) => TorchDevice {
                kind: 1,
                index: index as i32,
            },
        }
    }
}

/// Why a function called by the compiled code failed.
#[derive(Debug)]
pub(crate) enum Fail {
    /// Its own reason; the function's name is added where it is kept.
    What(String),
    /// An error of the hooks, kept as it is.
    Hooks(Error),
}

impl Fail {
    /// As an error of a place outside of every function.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Fail::What(what) => Error::Internal(what),
            Fail::Hooks(error) => error,
        }
    }
}

impl From<String> for Fail {
    fn from(what: String) -> Fail {
        Fail::What(what)
    }
}

impl From<&str> for Fail {
    fn from(what: &str) -> Fail {
        Fail::What(what.to_owned())
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Fail {
        Fail::Hooks(error)
    }
}

/// Result of the body of a function called by the compiled code.
pub(crate) type Shim<T = ()> = std::result::Result<T, Fail>;

thread_local! {
    static CURRENT: Cell<Option<NonNull<Context<'static>>>> = const { Cell::new(None) };
    static FAIL_AT: Cell<u64> = const { Cell::new(0) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// For tests: makes the `n`-th fallible call (from 1) of each following pass on this thread fail; 0 ends it.
#[doc(hidden)]
pub fn fail_call(n: u64) {
    FAIL_AT.set(n);
}

/// For tests: fallible calls of the last pass on this thread.
#[doc(hidden)]
pub fn calls_of_last_pass() -> u64 {
    CALLS.get()
}

/// Puts the previous context back, on a panic as well.
struct Restore(Option<NonNull<Context<'static>>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        slab: &'a mut Slab,
        hooks: Option<&'a mut dyn PassHooks>,
        device: TorchDevice,
    ) -> Self {
        Context {
            slab,
            device,
            grad_enabled: false,
            random: 0,
            hooks,
            error: None,
            calls: 0,
            fail_at: FAIL_AT.get(),
        }
    }

    /// Runs `body` with this context installed for the calling thread.
    pub(crate) fn with<R>(&mut self, body: impl FnOnce() -> R) -> R {
        let pointer = NonNull::from(&mut *self).cast::<Context<'static>>();
        let restore = Restore(CURRENT.replace(Some(pointer)));
        let result = body();
        drop(restore);
        CALLS.set(self.calls);
        result
    }

    /// The hooks of the pass.
    pub(crate) fn hooks(&mut self) -> Shim<&mut (dyn PassHooks + 'a)> {
        match &mut self.hooks {
            Some(hooks) => Ok(&mut **hooks),
            None => Err("no pass is running".into()),
        }
    }

    /// The slab and the hooks at once.
    pub(crate) fn parts(&mut self) -> Shim<(&mut Slab, &mut (dyn PassHooks + 'a))> {
        match &mut self.hooks {
            Some(hooks) => Ok((self.slab, &mut **hooks)),
            None => Err("no pass is running".into()),
        }
    }

    /// Keeps `error` unless an earlier one is kept.
    pub(crate) fn record(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// The first error since the last call of this function.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Deletes a handle and tells the hooks when its storage ends.
    pub(crate) fn delete(&mut self, handle: Handle) -> Shim {
        if let Some(ended) = self.slab.delete(handle)? {
            self.end(ended)?;
        }
        Ok(())
    }

    /// Gives a storage without handles back to its owner.
    pub(crate) fn end(&mut self, storage: Storage) -> Shim {
        match storage.owner {
            Owner::Borrowed => {}
            Owner::Activation => self.hooks()?.free_activation(storage.ptr, storage.bytes),
            Owner::Lease(id) => self.hooks()?.release(id),
        }
        Ok(())
    }

    /// Deletes every handle that a pass did not delete; returns their number.
    pub(crate) fn reclaim(&mut self) -> usize {
        let leftovers = self.slab.leftovers();
        for handle in &leftovers {
            self.discard(*handle);
        }
        leftovers.len()
    }

    /// Deletes a handle from outside the compiled code; a failure is kept.
    pub(crate) fn discard(&mut self, handle: Handle) {
        if let Err(fail) = self.delete(handle) {
            self.fail("deleting a tensor handle", fail);
        }
    }

    fn fail(&mut self, function: &str, fail: Fail) {
        self.record(match fail {
            // What a capture refuses: the device does not know for which operator it was called.
            Fail::Hooks(error @ Error::Unsupported(_)) => error.at(|| function.to_owned()),
            Fail::Hooks(error) => error,
            Fail::What(what) => Error::Compiled {
                function: function.to_owned(),
                what,
            },
        });
    }

    /// Counts a call that may fail, and fails it if a test asked for that.
    fn count(&mut self) -> Shim {
        self.calls += 1;
        match self.fail_at == self.calls {
            true => Err("a test made this call fail".into()),
            false => Ok(()),
        }
    }
}

/// Runs the body of a shim on the current context. Returns whether it succeeded; what went wrong is kept
/// in the context. Panics do not leave this function.
pub(crate) fn call(function: &'static str, body: impl FnOnce(&mut Context<'_>) -> Shim) -> bool {
    enter(function, |context| {
        context.count().and_then(|()| body(context))
    })
}

/// As [`call`], for functions that are not allowed to fail and are not counted.
pub(crate) fn enter(function: &'static str, body: impl FnOnce(&mut Context<'_>) -> Shim) -> bool {
    // Looked up once: in a shared library that is a call of its own.
    CURRENT.with(|current| {
        // While one call runs there is no current context: a call from within would alias it.
        let Some(pointer) = current.take() else {
            log::error!("{function} was called outside a pass");
            return false;
        };
        // SAFETY: `Context::with` put this pointer here, and takes it away before its borrow of the context
        // ends. It was taken out of `CURRENT` above, and other threads have a `CURRENT` of their own. So no
        // other reference is made from it until it is put back below, after the last use of this one. The
        // lifetime is a shortened one: the reference does not leave this function.
        let context = unsafe { &mut *pointer.as_ptr() };
        let result = catch_unwind(AssertUnwindSafe(|| body(context)));
        let done = match result {
            Ok(done) => done,
            Err(panic) => Err(Fail::What(format!("panicked: {}", panic_text(&*panic)))),
        };
        let succeeded = done.is_ok();
        if let Err(fail) = done {
            context.fail(function, fail);
        }
        current.set(Some(pointer));
        succeeded
    })
}

/// Keeps a failure that has no shim's result to go into, if a pass runs on this thread.
pub(crate) fn note(function: &'static str, what: String) {
    if CURRENT.get().is_some() {
        enter(function, |_| Err(Fail::What(what)));
    }
}

/// Turns the state after a run into one result. A kept error wins over the code that the compiled code
/// returns, since its callers ignore that code in places.
pub(crate) fn outcome(context: &mut Context<'_>, function: &str, code: i32) -> Result<()> {
    match (context.take_error(), code) {
        (Some(error), _) => Err(error),
        (None, 0) => Ok(()),
        (None, code) => Err(Error::Compiled {
            function: function.to_owned(),
            what: format!("it returned {code} and wrote the reason to stderr"),
        }),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_kept_and_panics_stay_inside() {
        let mut slab = Slab::new();
        let mut context = Context::new(&mut slab, None, TorchDevice::CPU);
        context.with(|| {
            assert!(call("good", |_| Ok(())));
            assert!(!call("first", |_| Err("why".into())));
            assert!(!call("second", |_| panic!("boom")));
        });
        let first = Error::Compiled {
            function: "first".into(),
            what: "why".into(),
        };
        assert_eq!(context.take_error(), Some(first));
        context.with(|| assert!(!call("second", |_| panic!("boom"))));
        let text = context
            .take_error()
            .map(|e| e.to_string())
            .unwrap_or_default();
        assert_eq!(text, "second failed: panicked: boom");
        assert_eq!(calls_of_last_pass(), 4);
    }

    #[test]
    fn what_cannot_be_captured_is_told_with_the_function_that_asked_for_it() {
        let mut slab = Slab::new();
        let mut context = Context::new(&mut slab, None, TorchDevice::CPU);
        let refused = || Error::Unsupported("a download cannot be captured".to_owned());
        context.with(|| assert!(!call("aoti_torch_item_int64", |_| Err(refused().into()))));
        let told = "aoti_torch_item_int64: a download cannot be captured";
        assert_eq!(
            context.take_error(),
            Some(Error::Unsupported(told.to_owned()))
        );
    }

    #[test]
    fn devices_are_told_as_pytorch_tells_them() {
        let told = |device| TorchDevice::from(device);
        assert_eq!(told(DeviceId::Cpu), TorchDevice::CPU);
        assert_eq!(told(DeviceId::Cuda(3)), TorchDevice { kind: 1, index: 3 });
    }

    #[test]
    fn calls_outside_a_pass_and_from_within_a_call_fail() {
        assert!(!call("outside", |_| Ok(())));
        let mut slab = Slab::new();
        let mut context = Context::new(&mut slab, None, TorchDevice::CPU);
        context.with(|| {
            assert!(call("outer", |_| {
                assert!(!call("inner", |_| Ok(())));
                Ok(())
            }));
            assert!(call("after", |_| Ok(())));
        });
        assert!(!call("outside", |_| Ok(())));
    }

    #[test]
    fn an_error_goes_before_a_code_of_zero() {
        let mut slab = Slab::new();
        let mut context = Context::new(&mut slab, None, TorchDevice::CPU);
        context.with(|| call("unchecked", |_| Err("why".into())));
        assert!(outcome(&mut context, "Run", 0)
            .unwrap_err()
            .to_string()
            .contains("unchecked"));
        assert!(outcome(&mut context, "Run", 1)
            .unwrap_err()
            .to_string()
            .contains("Run"));
        assert_eq!(outcome(&mut context, "Run", 0), Ok(()));
    }
}
