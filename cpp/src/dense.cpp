#include "dense.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "weightstream/src/ffi/bridge.rs.h"

namespace weightstream {

namespace et = executorch::runtime;
namespace rs = weightstream_bridge;
using executorch::aten::SizesType;
using executorch::aten::Tensor;

bool is_row_major(const Tensor& tensor) {
  std::int64_t expected = 1;
  bool row_major = true;
  for (auto dim = tensor.dim() - 1; dim >= 0; --dim) {
    const auto size = tensor.size(dim);
    row_major = row_major && (size == 1 || tensor.strides()[dim] == expected);
    expected *= size;
  }
  return row_major || expected == 0;
}

const std::vector<et::EValue>& DenseInputs::of(const std::vector<et::EValue>& inputs) {
  copied_ = 0;
  const auto strided = [](const et::EValue& input) { return input.isTensor() && !is_row_major(input.toTensor()); };
  if (std::none_of(inputs.begin(), inputs.end(), strided)) {
    return inputs;
  }
  bytes_.resize(std::max(bytes_.size(), inputs.size()));
  tensors_.resize(bytes_.size());
  values_ = inputs;
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    if (strided(inputs[index])) {
      values_[index] = copy(index, inputs[index].toTensor());
      ++copied_;
    }
  }
  return values_;
}

et::EValue DenseInputs::copy(std::size_t index, const Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    throw std::invalid_argument(
        "invalid input: input " + std::to_string(index) +
        ": its elements do not lie in row-major order in the device's memory; make it contiguous there");
  }
  const std::vector<std::int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  const std::vector<std::int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  const std::size_t item = et::elementSize(tensor.scalar_type());
  std::size_t reach = 1;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (strides[dim] < 0) {
      throw std::invalid_argument("invalid input: input " + std::to_string(index) + ": a stride is negative");
    }
    reach += static_cast<std::size_t>((sizes[dim] - 1) * strides[dim]);
  }
  std::vector<std::uint8_t>& bytes = bytes_[index];
  bytes.resize(tensor.nbytes());
  rs::pack({bytes.data(), bytes.size()}, {static_cast<const std::uint8_t*>(tensor.const_data_ptr()), reach * item},
           item, {sizes.data(), sizes.size()}, {strides.data(), strides.size()});
  tensors_[index] = executorch::extension::from_blob(bytes.data(), std::vector<SizesType>(sizes.begin(), sizes.end()),
                                                     tensor.scalar_type());
  return tensors_[index];
}

}  // namespace weightstream
