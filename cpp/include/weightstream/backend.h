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

// Gives ExecuTorch memory of CUDA devices, if nobody has done so before, and tells whether the memory is ours.
//
// A program whose inputs or outputs are planned on a GPU needs it before its method is loaded. weightstream::Module
// does this by itself, and so does the load of any method that was exported for CUDA. Call it before ExecuTorch's own
// Module loads such a program. ExecuTorch ends the process at a second registration. So a backend that registers memory
// of its own while it is loaded, as ExecuTorch's CUDA backend does, has to be loaded earlier. Registering needs no GPU;
// without one the first allocation fails, and last_error() says why.
WEIGHTSTREAM_EXPORT bool register_cuda_allocator();

}  // namespace weightstream
