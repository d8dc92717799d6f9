#include "tensors.h"

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <stdexcept>
#include <string>

#include "words.h"

namespace weightstream {

namespace et = executorch::runtime;
namespace rs = weightstream_bridge;
using executorch::aten::SizesType;
using executorch::aten::Tensor;

namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

// Where a tensor's bytes lie.
rs::Place place_of(const Tensor& tensor, const void* data) {
  return {reinterpret_cast<std::size_t>(data), tensor.nbytes(), static_cast<std::int32_t>(tensor.device_type()),
          tensor.device_index()};
}

}  // namespace

CallArguments::CallArguments(et::Span<et::EValue*> args, const rs::Loaded& loaded) : num_inputs_(loaded.num_inputs()) {
  for (const et::EValue* value : args) {
    // None and numbers are part of the program: ExecuTorch compares them, and the compiled code takes none.
    if (value != nullptr && value->isTensor()) {
      tensors_.push_back(&value->toTensor());
    }
  }
  if (tensors_.size() < num_inputs_) {
    refuse("the call has " + counted(tensors_.size(), "tensor") + ", the program takes " +
           counted(num_inputs_, "input"));
  }
  shapes_.reserve(num_inputs_);
  inputs_.reserve(num_inputs_);
  for (std::size_t index = 0; index < num_inputs_; ++index) {
    add_input(loaded, index);
  }
}

void CallArguments::add_input(const rs::Loaded& loaded, std::size_t index) {
  // By name: the delegate numbers its inputs in an order of its own.
  const auto name = [&] { return "invalid input: " + std::string(loaded.input_name(index)) + ": "; };
  const Tensor& tensor = *tensors_[index];
  const std::size_t ndim = static_cast<std::size_t>(tensor.dim());
  std::vector<std::int64_t>& shape = shapes_.emplace_back();
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  shape.insert(shape.end(), tensor.strides().begin(), tensor.strides().end());
  if (tensor.const_data_ptr() == nullptr && tensor.nbytes() != 0) {
    refuse(name() + "it has no memory; set it before the call");
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
  if (index >= tensors_.size() - num_inputs_) {
    refuse("it has no place in the call");
  }
  const Tensor& tensor = *tensors_[num_inputs_ + index];
  if (static_cast<std::int32_t>(tensor.scalar_type()) != dtype) {
    refuse(std::string("it has dtype ") + dtype_name(static_cast<executorch::aten::ScalarType>(dtype)) +
           ", the call's tensor has " + dtype_name(tensor.scalar_type()));
  }
  const std::vector<SizesType> extents(sizes.begin(), sizes.end());
  if (et::resize_tensor(tensor, {extents.data(), extents.size()}) != et::Error::Ok) {
    refuse("it has sizes " + sizes_text(sizes) + ", and the call's tensor has room for " + sizes_text(tensor.sizes()));
  }
  for (const auto stride : tensor.strides()) {
    strides.push_back(stride);
  }
  void* data = tensor.mutable_data_ptr();
  if (data == nullptr && tensor.nbytes() != 0) {
    refuse("it has no memory in the call's tensor");
  }
  return place_of(tensor, data);
}

}  // namespace weightstream
