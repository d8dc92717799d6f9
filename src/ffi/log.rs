//! Where log lines go: to the sink of the embedding program, or to standard error.

use std::ffi::{c_char, CString};
use std::io::Write;
use std::sync::{Once, RwLock};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Receives one log line; the numbers are those of `ws_log_level`.
pub type Sink = extern "C" fn(level: i32, text: *const c_char);

static SINK: RwLock<Option<Sink>> = RwLock::new(None);
static INSTALLED: Once = Once::new();

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
        // The sink is copied out: it may set another one.
        let sink = *SINK.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        match sink {
            Some(sink) => forward(sink, record.level(), &text),
            None => print(record.level(), &text),
        }
    }

    fn flush(&self) {}
}

fn forward(sink: Sink, level: Level, text: &str) {
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    sink(number(level), text.as_ptr());
}

/// Debug lines are for a sink that asked for them.
fn print(level: Level, text: &str) {
    if level <= Level::Info {
        // Nobody can be told that standard error is closed.
        let _ = writeln!(std::io::stderr(), "weightstream: {level}: {text}");
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
    INSTALLED.call_once(|| {
        if log::set_logger(&Forward).is_ok() {
            log::set_max_level(LevelFilter::Debug);
        }
    });
}

/// Sets the sink; `None` is standard error.
pub fn set_sink(sink: Option<Sink>) {
    install();
    *SINK
        .write()
        .unwrap_or_else(|poisoned| poisoned.into_inner()) = sink;
}
