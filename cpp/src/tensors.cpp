#include "tensors.h"

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <stdexcept>
#include <string>

namespace weightstream {

namespace et = executorch::runtime;
namespace rs = weightstream_bridge;
using executorch::aten::SizesType;
using executorch::aten::Tensor;

namespace {

[[noreturn]] void refuse(const char* what, std::size_t index, const std::string& why) {
  throw std::invalid_argument(std::string(what) + " " + std::to_string(index) + " " + why);
}

const Tensor& tensor_of(const char* what, std::size_t index, const et::EValue* value) {
  if (value == nullptr || !value->isTensor()) {
    refuse(what, index, "is not a tensor");
  }
  return value->toTensor();
}

// Where a tensor's bytes lie.
rs::Place place_of(const Tensor& tensor, const void* data) {
  return {reinterpret_cast<std::size_t>(data), tensor.nbytes(), static_cast<std::int32_t>(tensor.device_type()),
          tensor.device_index()};
}

}  // namespace

CallArguments::CallArguments(et::Span<et::EValue*> args, std::size_t num_inputs)
    : args_(args), num_inputs_(num_inputs) {
  if (args.size() < num_inputs) {
    throw std::invalid_argument("the call has " + std::to_string(args.size()) + " arguments, the program takes " +
                                std::to_string(num_inputs) + " inputs");
  }
  shapes_.reserve(num_inputs);
  inputs_.reserve(num_inputs);
  for (std::size_t index = 0; index < num_inputs; ++index) {
    add_input(index);
  }
}

void CallArguments::add_input(std::size_t index) {
  const Tensor& tensor = tensor_of("input", index, args_[index]);
  const std::size_t ndim = static_cast<std::size_t>(tensor.dim());
  std::vector<std::int64_t>& shape = shapes_.emplace_back();
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  shape.insert(shape.end(), tensor.strides().begin(), tensor.strides().end());
  if (tensor.const_data_ptr() == nullptr && tensor.nbytes() != 0) {
    refuse("input", index, "has no memory; set it before the call");
  }
  rs::Input input;
  input.dtype = static_cast<std::int32_t>(tensor.scalar_type());
  input.sizes = rust::Slice<const std::int64_t>(shape.data(), ndim);
  input.strides = rust::Slice<const std::int64_t>(shape.data() + ndim, ndim);
  input.place = place_of(tensor, tensor.const_data_ptr());
  inputs_.push_back(input);
}

rs::Place CallArguments::room(std::size_t index, std::int32_t dtype, rust::Slice<const std::int64_t> sizes,
                              rust::Vec<std::int64_t>& strides) {
  if (index >= args_.size() - num_inputs_) {
    refuse("output", index, "has no place in the call");
  }
  const Tensor& tensor = tensor_of("output", index, args_[num_inputs_ + index]);
  if (static_cast<std::int32_t>(tensor.scalar_type()) != dtype) {
    refuse("output", index,
           "has dtype " + std::to_string(dtype) + ", the call's tensor has " +
               std::to_string(static_cast<int>(tensor.scalar_type())));
  }
  const std::vector<SizesType> extents(sizes.begin(), sizes.end());
  if (et::resize_tensor(tensor, {extents.data(), extents.size()}) != et::Error::Ok) {
    refuse("output", index, "does not fit into the call's tensor");
  }
  for (const auto stride : tensor.strides()) {
    strides.push_back(stride);
  }
  void* data = tensor.mutable_data_ptr();
  if (data == nullptr && tensor.nbytes() != 0) {
    refuse("output", index, "has no memory in the call's tensor");
  }
  return place_of(tensor, data);
}

}  // namespace weightstream
