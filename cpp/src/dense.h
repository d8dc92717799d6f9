// Inputs of a Module in any layout. ExecuTorch hands on an input's address and sizes, but no strides. Bytes in another
// order than row-major would be misread, so such inputs are copied first.
#pragma once

#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/core/evalue.h>

#include <cstdint>
#include <vector>

namespace weightstream {

// Whether elements follow each other, the last dimension innermost. Strides of sizes of one do not matter.
bool is_row_major(const executorch::aten::Tensor& tensor);

class DenseInputs {
 public:
  // `inputs`, or a list with copies of those that are not row-major. It and the copies stay until the next call. Throws
  // for one that is not in host memory.
  const std::vector<executorch::runtime::EValue>& of(const std::vector<executorch::runtime::EValue>& inputs);

  // How many were copied by the last call of of().
  std::size_t copied() const { return copied_; }

 private:
  executorch::runtime::EValue copy(std::size_t index, const executorch::aten::Tensor& tensor);

  std::size_t copied_ = 0;
  std::vector<std::vector<std::uint8_t>> bytes_;
  std::vector<executorch::extension::TensorPtr> tensors_;
  std::vector<executorch::runtime::EValue> values_;
};

}  // namespace weightstream
