// The boundary between ExecuTorch, which knows error codes, and the Rust side, whose errors arrive as exceptions.
#pragma once

#include <exception>
#include <string>

#include "errors.h"
#include "weightstream/src/ffi/bridge.rs.h"

namespace weightstream {

inline executorch::runtime::Error report(const char* doing, const char* text, ws_status status) {
  log_text(executorch::runtime::LogLevel::Error, std::string("WeightStream: ") + doing + ": " + text);
  return to_error(status);
}

// Runs `work`; every exception becomes an error code, with its text logged and kept for last_error().
template <typename Work>
executorch::runtime::Error guarded(const char* doing, Work work) {
  try {
    work();
    return executorch::runtime::Error::Ok;
  } catch (const rust::Error& error) {
    return report(doing, error.what(), static_cast<ws_status>(weightstream_bridge::last_status()));
  } catch (const std::exception& error) {
    weightstream_bridge::set_error(error.what());
    return report(doing, error.what(), WS_INVALID_ARGUMENT);
  }
}

}  // namespace weightstream
