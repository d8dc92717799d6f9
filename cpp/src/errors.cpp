#include "errors.h"

#include <algorithm>

namespace weightstream {

using executorch::runtime::Error;
using executorch::runtime::LogLevel;

Error to_error(ws_status status) {
  switch (status) {
    case WS_OK:
      return Error::Ok;
    case WS_INVALID_ARGUMENT:
    case WS_INVALID_OPTION:
    case WS_INVALID_INPUT:
      return Error::InvalidArgument;
    case WS_BUDGET_TOO_SMALL:
      return Error::OutOfResources;
    case WS_IO:
      return Error::AccessFailed;
    case WS_MALFORMED:
    case WS_MISMATCH:
      return Error::InvalidExternalData;
    case WS_MISSING:
      return Error::NotFound;
    case WS_UNSUPPORTED:
      return Error::NotSupported;
    case WS_OUT_OF_MEMORY:
      return Error::MemoryAllocationFailed;
    case WS_BUSY:
    case WS_POISONED:
      return Error::InvalidState;
    case WS_DIVERGENCE:
      return Error::InvalidProgram;
    case WS_COMPILED_CODE:
    case WS_DEVICE:
    case WS_INTERNAL:
      return Error::Internal;
  }
  return Error::Internal;
}

void log_text(LogLevel level, std::string_view text) {
  constexpr std::size_t kPiece = 220;
  do {
    const std::string_view piece = text.substr(0, kPiece);
    text.remove_prefix(piece.size());
    const int length = static_cast<int>(piece.size());
    switch (level) {
      case LogLevel::Debug:
        ET_LOG(Debug, "%.*s", length, piece.data());
        break;
      case LogLevel::Info:
        ET_LOG(Info, "%.*s", length, piece.data());
        break;
      default:
        ET_LOG(Error, "%.*s", length, piece.data());
        break;
    }
  } while (!text.empty());
}

}  // namespace weightstream
