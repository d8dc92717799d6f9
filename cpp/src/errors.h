// Failures of the Rust side as ExecuTorch errors and log lines.
#pragma once

#include <executorch/runtime/core/error.h>
#include <executorch/runtime/platform/log.h>

#include <string_view>

#include "weightstream/weightstream.h"

namespace weightstream {

// The ExecuTorch error that comes closest.
executorch::runtime::Error to_error(ws_status status);

// Logs `text` with ET_LOG, in pieces: a log line of ExecuTorch is cut after 255 characters.
void log_text(executorch::runtime::LogLevel level, std::string_view text);

}  // namespace weightstream
