// Numbers and types as messages say them: in the adapter and in the tools.
#pragma once

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include <cstddef>
#include <string>

namespace weightstream {

// `1 input`, `2 inputs`.
inline std::string counted(std::size_t number, const std::string& thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

// `0 were given`, `1 was given`.
inline std::string given(std::size_t number) {
  return std::to_string(number) + (number == 1 ? " was given" : " were given");
}

// `[2, 3]`.
template <typename Sizes>
std::string sizes_text(const Sizes& sizes) {
  std::string text;
  for (const auto size : sizes) {
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  }
  return "[" + text + "]";
}

// The name of a type in PyTorch, which the program's author knows.
inline const char* dtype_name(executorch::aten::ScalarType dtype) {
  using executorch::aten::ScalarType;
  switch (dtype) {
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::ComplexHalf:
      return "complex32";
    case ScalarType::ComplexFloat:
      return "complex64";
    case ScalarType::ComplexDouble:
      return "complex128";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::UInt16:
      return "uint16";
    case ScalarType::UInt32:
      return "uint32";
    case ScalarType::UInt64:
      return "uint64";
    default:
      return executorch::runtime::toString(dtype);
  }
}

}  // namespace weightstream
