/* The header is C, twice includable, and its numbers are what they were. */
#include "weightstream/weightstream.h"

_Static_assert(WS_OK == 0 && WS_INVALID_ARGUMENT == 1 && WS_INVALID_OPTION == 2 && WS_INVALID_INPUT == 3 &&
                   WS_IO == 4 && WS_MALFORMED == 5 && WS_MISSING == 6 && WS_MISMATCH == 7 && WS_BUDGET_TOO_SMALL == 8 &&
                   WS_UNSUPPORTED == 9 && WS_OUT_OF_MEMORY == 10 && WS_BUSY == 11 && WS_DIVERGENCE == 12 &&
                   WS_COMPILED_CODE == 13 && WS_DEVICE == 14 && WS_POISONED == 15 && WS_INTERNAL == 16,
               "statuses are append-only");
_Static_assert(sizeof(ws_stats_data) >= 14 * sizeof(uint64_t), "counters are append-only");

_Static_assert(WS_DEVICE_CPU == 0 && WS_DEVICE_CUDA == 1, "device types are ExecuTorch's and PyTorch's");
_Static_assert(offsetof(ws_tensor, strides) == 32 && offsetof(ws_tensor, device_type) == 40 &&
                   offsetof(ws_tensor, device_index) == 44 && sizeof(ws_tensor) == 48,
               "bindings in other languages know this layout");

int weightstream_header_is_c(void) { return (int)sizeof(ws_tensor); }
