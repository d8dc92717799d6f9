// WeightStream as a backend of ExecuTorch.
#pragma once

#include <executorch/runtime/core/error.h>

#include <string>

#if defined(__GNUC__)
#define WEIGHTSTREAM_EXPORT __attribute__((visibility("default")))
#else
#define WEIGHTSTREAM_EXPORT
#endif

namespace weightstream {

// The name under which programs refer to the backend.
inline constexpr const char* kBackendId = "WeightStreamBackend";

// Makes the backend known to ExecuTorch. Loading the library does so already; calling this as well is
// harmless, and keeps a linker that drops unused libraries from dropping this one.
WEIGHTSTREAM_EXPORT executorch::runtime::Error register_backend();

// The text of the last failure on the calling thread: a sentence that names the thing, what was expected
// and what was found. Empty if there was none. ExecuTorch itself passes on nothing but an error code.
WEIGHTSTREAM_EXPORT std::string last_error();

}  // namespace weightstream
