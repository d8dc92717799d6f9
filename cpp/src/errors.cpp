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

std::string_view take_line(std::string_view& text) {
  // What ExecuTorch keeps of a line, in bytes; words that are longer are cut between two characters.
  constexpr std::size_t kMost = 250;
  const std::size_t space = text.size() > kMost ? text.rfind(' ', kMost) : std::string_view::npos;
  std::size_t length = std::min(text.size(), kMost);
  if (space != std::string_view::npos && space != 0) {
    length = space;
  } else if (text.size() > kMost) {
    while (length > 1 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) {
      --length;
    }
  }
  const std::string_view line = text.substr(0, length);
  text.remove_prefix(length == space ? length + 1 : length);
  return line;
}

void log_text(LogLevel level, std::string_view text) {
  do {
    const std::string_view piece = take_line(text);
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
