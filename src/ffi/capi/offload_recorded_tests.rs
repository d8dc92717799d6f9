//! Files of weights, as C callers give them.

use super::super::offload::{ws_offload_create, ws_offload_destroy};
use super::super::types::ws_option;
use super::super::ws_last_error;
use super::*;
use crate::ffi::status::Status;
use std::ffi::{CStr, CString};
use std::io::Write;
use std::ptr::{null, null_mut};

const BYTES: usize = 8192;

/// One weight of a file, read in one call, and what is given beside it.
struct Given {
    named: tempfile::NamedTempFile,
    content: &'static [u8],
}

impl Given {
    fn new() -> Given {
        let content: &'static [u8] = Vec::leak(vec![5; BYTES]);
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(content).unwrap();
        Given { named, content }
    }

    /// The status of the call, and the error's text.
    fn create(
        &self,
        change: impl Fn(&mut ws_offload_file),
        options: &[(&CStr, &CStr)],
    ) -> (Status, String) {
        let path = CString::new(self.named.path().to_str().unwrap()).unwrap();
        let mut file = ws_offload_file {
            path: path.as_ptr(),
            data: self.content.as_ptr().cast(),
            nbytes: BYTES as u64,
        };
        change(&mut file);
        let weight = ws_offload_weight {
            name: c"w".as_ptr(),
            data: self.content[64..].as_ptr().cast(),
            nbytes: (BYTES - 64) as u64,
            packed: std::ptr::null(),
        };
        let events = [0, 1, 2].map(|kind| ws_offload_event { kind, index: 0 });
        let option = |(key, text): &(&CStr, &CStr)| ws_option {
            key: key.as_ptr(),
            kind: 2,
            number: 0,
            text: text.as_ptr(),
        };
        let items: Vec<ws_option> = options.iter().map(option).collect();
        let options = ws_options {
            items: items.as_ptr(),
            count: items.len(),
        };
        let recorded = ws_offload_recorded {
            device: c"cpu".as_ptr(),
            name: c"module".as_ptr(),
            stream: null_mut(),
            weights: &weight,
            num_weights: 1,
            entry: ws_offload_entry {
                reads: &0,
                num_reads: 1,
                events: events.as_ptr(),
                num_events: 3,
                rows: null(),
                num_rows: 0,
            },
            budget: FLOOR,
            beside: 0,
            priority: 0,
            files: &file,
            num_files: usize::from(file.nbytes > 0),
            options: &options,
        };
        let mut made = null_mut();
        // SAFETY: all lives during the call, and the bytes for ever.
        let status = unsafe { ws_offload_create(&recorded, &mut made) };
        // SAFETY: NULL, or what was just made.
        unsafe { ws_offload_destroy(made) };
        // SAFETY: a text of this thread.
        let text = unsafe { CStr::from_ptr(ws_last_error()) };
        (status, text.to_string_lossy().into_owned())
    }
}

#[test]
fn weights_of_files_are_taken() {
    let given = Given::new();
    for options in [&[][..], &[(c"weight_offload_host", c"mapped")]] {
        let (status, text) = given.create(|_| {}, options);
        assert_eq!(status, Status::Ok, "{text}");
    }
}

#[test]
fn files_that_are_wrong_are_refused() {
    let given = Given::new();
    let refused = |status, said: &str, change: fn(&mut ws_offload_file)| {
        let (found, text) = given.create(change, &[]);
        assert!(found == status && text.contains(said), "{found:?}: {text}");
    };
    refused(Status::InvalidArgument, "path of a file", |file| {
        file.path = null();
    });
    refused(Status::InvalidArgument, "data of a file", |file| {
        file.data = null();
    });
    refused(Status::Io, "/nowhere", |file| {
        file.path = c"/nowhere".as_ptr();
    });
    refused(
        Status::Io,
        "it has 8192 bytes, and 8191 were mapped",
        |file| {
            file.nbytes -= 1;
        },
    );
}

#[test]
fn options_that_have_no_effect_are_refused() {
    let given = Given::new();
    for (key, value, said) in [
        (c"weight_offload_host", c"staged", "'module' runs on 'cpu'"),
        (c"weight_offload_host", c"pinned", "'module' runs on 'cpu'"),
        (c"weight_offload_host", c"disk", "'disk'"),
        (
            c"weight_offload_staging_mb",
            c"64",
            "'module' runs on 'cpu'",
        ),
        (c"weight_offload_policy", c"lru", "weight_offload_policy"),
    ] {
        let (status, text) = given.create(|_| {}, &[(key, value)]);
        assert!(status != Status::Ok && text.contains(said), "{text}");
    }
    let none = |file: &mut ws_offload_file| file.nbytes = 0;
    let (status, text) = given.create(none, &[(c"weight_offload_host", c"mapped")]);
    assert_eq!(status, Status::InvalidOption);
    assert!(text.contains("those of 'module' lie in none"), "{text}");
}
