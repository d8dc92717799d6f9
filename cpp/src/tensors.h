// The arguments of one call as the Rust side takes them.
#pragma once

#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/span.h>

#include <vector>

#include "weightstream/src/ffi/bridge.rs.h"

namespace weightstream {

// Views of a delegate call's inputs, and room in its outputs, wherever ExecuTorch has put them. Throws std::exception
// with the input's name where an argument cannot be used.
class CallArguments final : public weightstream_bridge::OutputSink {
 public:
  // `args` holds the inputs and then the outputs of `loaded`; what is no tensor is not counted. It must outlive this
  // object.
  CallArguments(executorch::runtime::Span<executorch::runtime::EValue*> args,
                const weightstream_bridge::Loaded& loaded);

  // The views stay valid as long as this object.
  rust::Slice<const weightstream_bridge::Input> inputs() const { return {inputs_.data(), inputs_.size()}; }

  weightstream_bridge::Place room(std::size_t index, std::int32_t dtype, rust::Slice<const std::int64_t> sizes,
                                  rust::Vec<std::int64_t>& strides) override;

 private:
  void add_input(const weightstream_bridge::Loaded& loaded, std::size_t index);

  std::size_t num_inputs_;
  std::vector<const executorch::aten::Tensor*> tensors_;  // of the call, in order
  std::vector<std::vector<std::int64_t>> shapes_;         // sizes and then strides of each input
  std::vector<weightstream_bridge::Input> inputs_;
};

}  // namespace weightstream
