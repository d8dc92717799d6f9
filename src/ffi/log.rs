//! Where log lines go: to the sink of the embedding program, or to standard error.

use std::ffi::{c_char, CString};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicPtr, Ordering};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Receives one log line; the numbers are those of `ws_log_level`.
pub type Sink = extern "C" fn(level: i32, text: *const c_char);

/// A [`Sink`], or null. No lock: a child of this process would find it as another thread held it at the fork.
static SINK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

struct Forward;

impl Log for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Debug
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = record.args().to_string();
        match sink() {
            Some(sink) => forward(sink, record.level(), &text),
            None => print(record.level(), &text),
        }
    }

    fn flush(&self) {}
}

fn sink() -> Option<Sink> {
    let sink = SINK.load(Ordering::Acquire);
    // SAFETY: null, which is `None`, or a `Sink` that `set_sink` has stored.
    unsafe { std::mem::transmute::<*mut (), Option<Sink>>(sink) }
}

fn forward(sink: Sink, level: Level, text: &str) {
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    sink(number(level), text.as_ptr());
}

/// Debug lines are for a sink that asked for them.
fn print(level: Level, text: &str) {
    if level <= Level::Info {
        let line = format!("weightstream: {level}: {text}\n");
        // SAFETY: only written to, and never closed here. Without the lock of `std::io::stderr`, as above.
        let mut stderr = ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDERR_FILENO) });
        // Nobody can be told that standard error is closed.
        let _ = stderr.write_all(line.as_bytes());
    }
}

fn number(level: Level) -> i32 {
    match level {
        Level::Trace | Level::Debug => 0,
        Level::Info => 1,
        Level::Warn => 2,
        Level::Error => 3,
    }
}

/// Makes this crate's log lines go to the sink. A Rust program that has its own logger keeps it.
pub fn install() {
    if log::set_logger(&Forward).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}

/// Sets the sink; `None` is standard error.
pub fn set_sink(sink: Option<Sink>) {
    install();
    let sink = sink.map_or(std::ptr::null_mut(), |sink| sink as *mut ());
    SINK.store(sink, Ordering::Release);
}
