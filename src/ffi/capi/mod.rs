//! The C interface. `cpp/include/weightstream/weightstream.h` is its text for the reader; a test holds
//! the two together. Each exported function is a few lines: arguments to Rust types, one call, a status.

mod args;
mod dlpack;
mod execute;
mod graph_pool;
mod load;
mod offload;
mod offload_recorded;
mod order;
mod origin;
mod packed;
mod pool;
mod range;
mod range_memory;
mod range_ring;
mod stats;
mod types;

pub use dlpack::ManagedTensor;
pub use execute::{
    ws_execute, ws_execute_into, ws_outputs, ws_outputs_count, ws_outputs_destroy, ws_outputs_get,
};
pub use graph_pool::{
    ws_graph_pool, ws_graph_pool_alloc, ws_graph_pool_begin, ws_graph_pool_create,
    ws_graph_pool_destroy, ws_graph_pool_end, ws_graph_pool_enter, ws_graph_pool_free,
    ws_graph_pool_release, ws_graph_pool_report, ws_graph_pool_resume, ws_segment_alloc,
    ws_segment_bytes, ws_segment_free,
};
pub use load::{
    ws_destroy, ws_init, ws_init_method, ws_init_on_stream, ws_method_name, ws_model,
    ws_new_session, ws_required_budget, ws_required_budget_with_data, ws_reset_state,
    ws_set_budget, ws_set_options,
};
pub use offload::{
    ws_offload, ws_offload_addresses, ws_offload_begin, ws_offload_copy_again, ws_offload_create,
    ws_offload_destroy, ws_offload_end, ws_offload_needs, ws_offload_pass, ws_offload_read,
    ws_offload_release, ws_offload_set_budget, ws_offload_stats,
};
pub use offload_recorded::{
    ws_offload_event, ws_offload_file, ws_offload_recorded, ws_offload_weight,
};
pub use order::{
    ws_deprioritize, ws_next_turn, ws_offload_deprioritize, ws_offload_prioritize,
    ws_offload_set_place, ws_offload_set_priority, ws_prioritize, ws_range_deprioritize,
    ws_range_prioritize, ws_range_set_priority, ws_set_priority,
};
pub use packed::{ws_packed, ws_packed_create, ws_packed_destroy, ws_packed_stored_bytes};
pub use pool::{ws_device_report, ws_set_device_budget};
pub use range::{
    ws_fault, ws_range, ws_range_alloc, ws_range_create, ws_range_destroy, ws_range_fault,
    ws_range_fault_many, ws_range_tensor, ws_range_unpin, ws_range_used_on,
};
pub use range_memory::{
    ws_freed, ws_range_free_bytes, ws_range_invalidate, ws_range_residency, ws_range_set_limit,
    ws_range_watermark, ws_range_why,
};
pub use range_ring::{ws_range_set_ring, ws_range_slot};
pub use stats::{ws_stats, ws_stats_json};
pub use types::{ws_option, ws_options, ws_program, ws_stats_data, ws_tensor};

use std::ffi::c_char;

use super::log::Sink;
use super::status;

/// Version of the library.
#[no_mangle]
pub extern "C" fn ws_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Text of the last failure on the calling thread.
#[no_mangle]
pub extern "C" fn ws_last_error() -> *const c_char {
    status::last_error()
}

/// Sends log lines to `sink`; NULL is standard error.
#[no_mangle]
pub extern "C" fn ws_set_log(sink: Option<Sink>) {
    super::log::set_sink(sink);
}
