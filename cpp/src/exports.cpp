// The C interface is written in Rust and lies in a static library, from which the linker takes only what
// is referred to. This table refers to all of it; a test compares the exported names with the header.
#include "weightstream/weightstream.h"

namespace weightstream {

__attribute__((used)) const void* const kCInterface[] = {
    reinterpret_cast<const void*>(&ws_version),
    reinterpret_cast<const void*>(&ws_last_error),
    reinterpret_cast<const void*>(&ws_set_log),
    reinterpret_cast<const void*>(&ws_required_budget),
    reinterpret_cast<const void*>(&ws_init),
    reinterpret_cast<const void*>(&ws_init_on_stream),
    reinterpret_cast<const void*>(&ws_execute),
    reinterpret_cast<const void*>(&ws_execute_into),
    reinterpret_cast<const void*>(&ws_outputs_count),
    reinterpret_cast<const void*>(&ws_outputs_get),
    reinterpret_cast<const void*>(&ws_outputs_destroy),
    reinterpret_cast<const void*>(&ws_stats),
    reinterpret_cast<const void*>(&ws_stats_json),
    reinterpret_cast<const void*>(&ws_destroy),
    reinterpret_cast<const void*>(&ws_set_options),
    reinterpret_cast<const void*>(&ws_set_device_budget),
    reinterpret_cast<const void*>(&ws_device_report),
    reinterpret_cast<const void*>(&ws_range_create),
    reinterpret_cast<const void*>(&ws_range_alloc),
    reinterpret_cast<const void*>(&ws_range_fault),
    reinterpret_cast<const void*>(&ws_range_fault_many),
    reinterpret_cast<const void*>(&ws_range_unpin),
    reinterpret_cast<const void*>(&ws_range_tensor),
    reinterpret_cast<const void*>(&ws_range_used_on),
    reinterpret_cast<const void*>(&ws_range_prioritize),
    reinterpret_cast<const void*>(&ws_range_deprioritize),
    reinterpret_cast<const void*>(&ws_range_free_bytes),
    reinterpret_cast<const void*>(&ws_range_set_limit),
    reinterpret_cast<const void*>(&ws_range_invalidate),
    reinterpret_cast<const void*>(&ws_range_watermark),
    reinterpret_cast<const void*>(&ws_range_residency),
    reinterpret_cast<const void*>(&ws_range_destroy),
    reinterpret_cast<const void*>(&ws_offload_create),
    reinterpret_cast<const void*>(&ws_offload_begin),
    reinterpret_cast<const void*>(&ws_offload_read),
    reinterpret_cast<const void*>(&ws_offload_release),
    reinterpret_cast<const void*>(&ws_offload_end),
    reinterpret_cast<const void*>(&ws_offload_addresses),
    reinterpret_cast<const void*>(&ws_offload_set_budget),
    reinterpret_cast<const void*>(&ws_offload_stats),
    reinterpret_cast<const void*>(&ws_offload_destroy),
};

}  // namespace weightstream
