// Failures of the Rust side as ExecuTorch errors and log lines.
#pragma once

#include <executorch/runtime/core/error.h>
#include <executorch/runtime/platform/log.h>

#include <string_view>

#include "weightstream/weightstream.h"

namespace weightstream {

// The ExecuTorch error that comes closest.
executorch::runtime::Error to_error(ws_status status);

// Takes as much from the front of `text` as a log line of ExecuTorch holds: it cuts lines after 255 bytes. Ends at a
// space, and takes the space too.
std::string_view take_line(std::string_view& text);

// Logs `text` with ET_LOG, in lines that hold whole words.
void log_text(executorch::runtime::LogLevel level, std::string_view text);

}  // namespace weightstream
