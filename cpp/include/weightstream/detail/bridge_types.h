// What the Rust side asks of the C++ adapter, as interfaces: only declarations, so that the Rust tests
// build without ExecuTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rust/cxx.h"

namespace weightstream_bridge {

// Memory of a tensor; in the generated header.
struct Place;

// The named data of the program that is being loaded.
class NamedData {
 public:
  virtual ~NamedData() = default;

  // The bytes stored under `key`, valid while this object lives. Throws if there are none.
  virtual rust::Slice<const std::uint8_t> bytes(rust::Str key) const = 0;

  // Appends the number of the dtype, the sizes, and as many places of the dimension order. Throws if there is no such
  // tensor.
  virtual void layout(rust::Str key, rust::Vec<std::int64_t>& into) const = 0;
};

// Takes the outputs of a pass, one after the other.
class OutputSink {
 public:
  virtual ~OutputSink() = default;

  // Makes room for output `index` and returns it: as many bytes as the output has, on the host or on a device.
  // `strides` receives its strides in elements, one for each size. Throws if the output does not fit.
  virtual Place room(std::size_t index, std::int32_t dtype, rust::Slice<const std::int64_t> sizes,
                     rust::Vec<std::int64_t>& strides) = 0;
};

}  // namespace weightstream_bridge
