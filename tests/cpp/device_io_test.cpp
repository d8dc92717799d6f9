// Tensors, streams and indices of a GPU in the C interface and in ExecuTorch: what a program of the CPU refuses, memory
// of the caller's for outputs, and ExecuTorch's allocator. What needs a GPU is in python/tests/test_device_io.py.

#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/core/device_allocator.h>
#include <executorch/runtime/core/device_memory_buffer.h>

#include <cstring>
#include <vector>

#include "support.h"
#include "weightstream/module.h"
#include "weightstream/weightstream.h"

namespace {

namespace et = executorch::runtime;
using et::Error;
using et::EValue;
using et::etensor::Device;
using et::etensor::DeviceType;
using executorch::extension::TensorPtr;
using weightstream::Module;
using weightstream::test::Model;

bool error_has(const char* what) { return std::strstr(ws_last_error(), what) != nullptr; }

// Inputs of a method: ones, which are indices as well as numbers.
std::vector<TensorPtr> ones(Module& module) {
  const auto meta = module.method_meta("forward");
  std::vector<TensorPtr> tensors;
  for (std::size_t index = 0; index < meta->num_inputs(); ++index) {
    const auto info = meta->input_tensor_meta(index);
    tensors.push_back(executorch::extension::ones({info->sizes().begin(), info->sizes().end()}, info->scalar_type()));
  }
  return tensors;
}

// The same tensor, said to be on a GPU. Nothing may read it.
TensorPtr as_on_cuda(const TensorPtr& tensor, int index) {
  return executorch::extension::from_blob(tensor->mutable_data_ptr(), {tensor->sizes().begin(), tensor->sizes().end()},
                                          tensor->scalar_type(),
                                          Device(DeviceType::CUDA, static_cast<et::etensor::DeviceIndex>(index)));
}

class DeviceIo : public ::testing::Test {
 protected:
  void open(const Model& model) {
    Module module(model.pte, model.ptd);
    tensors_ = ones(module);
    for (const TensorPtr& tensor : tensors_) {
      sizes_.emplace_back(tensor->sizes().begin(), tensor->sizes().end());
    }
    for (std::size_t at = 0; at < tensors_.size(); ++at) {
      const TensorPtr& tensor = tensors_[at];
      inputs_.push_back({tensor->mutable_data_ptr(), tensor->nbytes(), static_cast<int32_t>(tensor->scalar_type()),
                         static_cast<int32_t>(tensor->dim()), sizes_[at].data(), nullptr, WS_DEVICE_CPU, 0});
    }
    const ws_program program{nullptr, 0, model.pte.c_str()};
    ASSERT_EQ(ws_init(&program, model.ptd.c_str(), "forward", nullptr, &model_), WS_OK) << ws_last_error();
    ASSERT_EQ(ws_execute(model_, inputs_.data(), inputs_.size(), &expected_), WS_OK) << ws_last_error();
    rooms_.resize(ws_outputs_count(expected_));
    for (std::size_t at = 0; at < rooms_.size(); ++at) {
      ASSERT_EQ(ws_outputs_get(expected_, at, &rooms_[at]), WS_OK);
      EXPECT_EQ(rooms_[at].device_type, WS_DEVICE_CPU);
      memory_.emplace_back(rooms_[at].nbytes + 8, 'x');
      rooms_[at].data = memory_[at].data();
    }
  }

  ws_status execute_into() {
    return ws_execute_into(model_, inputs_.data(), inputs_.size(), rooms_.data(), rooms_.size());
  }

  void TearDown() override {
    ws_outputs_destroy(expected_);
    ws_destroy(model_);
  }

  ws_model* model_ = nullptr;
  ws_outputs* expected_ = nullptr;
  std::vector<TensorPtr> tensors_;
  std::vector<std::vector<std::int64_t>> sizes_;
  std::vector<ws_tensor> inputs_;
  std::vector<ws_tensor> rooms_;
  std::vector<std::string> memory_;
};

TEST_F(DeviceIo, OutputsGoToTheMemoryThatWasGiven) {
  REQUIRE_MODEL(model);
  ASSERT_NO_FATAL_FAILURE(open(model));
  // More room than is needed: the rest stays as it was.
  rooms_[0].nbytes += 8;
  ASSERT_EQ(execute_into(), WS_OK) << ws_last_error();
  for (std::size_t at = 0; at < rooms_.size(); ++at) {
    ws_tensor tensor{};
    ASSERT_EQ(ws_outputs_get(expected_, at, &tensor), WS_OK);
    const std::string bytes(static_cast<const char*>(tensor.data), tensor.nbytes);
    EXPECT_EQ(memory_[at], bytes + "xxxxxxxx") << at;
  }
}

TEST_F(DeviceIo, AnOutputMayBeAskedForInAnotherOrder) {
  REQUIRE_MODEL(model);
  ASSERT_NO_FATAL_FAILURE(open(model));
  ws_tensor& room = rooms_[0];
  ASSERT_GE(room.ndim, 1);
  ASSERT_EQ(room.dtype, 6);
  // The first dimension innermost.
  std::vector<std::int64_t> strides(room.ndim);
  std::int64_t step = 1;
  for (int32_t dim = 0; dim < room.ndim; ++dim) {
    strides[dim] = step;
    step *= room.sizes[dim];
  }
  room.strides = strides.data();
  ASSERT_EQ(execute_into(), WS_OK) << ws_last_error();
  ws_tensor dense{};
  ASSERT_EQ(ws_outputs_get(expected_, 0, &dense), WS_OK);
  const auto* found = reinterpret_cast<const float*>(memory_[0].data());
  const auto* expected = static_cast<const float*>(dense.data);
  for (std::int64_t at = 0; at < step; ++at) {
    std::int64_t rest = at;
    std::int64_t place = 0;
    for (int32_t dim = room.ndim - 1; dim >= 0; --dim) {
      place += rest % room.sizes[dim] * strides[dim];
      rest /= room.sizes[dim];
    }
    ASSERT_EQ(found[place], expected[at]) << at;
  }
}

TEST_F(DeviceIo, RoomThatDoesNotFitIsRefusedWithBothSizes) {
  REQUIRE_MODEL(model);
  ASSERT_NO_FATAL_FAILURE(open(model));
  const std::vector<ws_tensor> good = rooms_;
  EXPECT_EQ(ws_execute_into(model_, inputs_.data(), inputs_.size(), nullptr, 0), WS_INVALID_INPUT);
  EXPECT_TRUE(error_has("output, room for 0 was given")) << ws_last_error();
  EXPECT_EQ(ws_execute_into(model_, inputs_.data(), inputs_.size(), nullptr, 1), WS_INVALID_ARGUMENT);

  rooms_[0].dtype = 4;
  EXPECT_EQ(execute_into(), WS_INVALID_INPUT);
  EXPECT_TRUE(error_has("output 0: it has dtype float32, room was given for dtype int64")) << ws_last_error();

  rooms_ = good;
  rooms_[0].nbytes -= 1;
  EXPECT_EQ(execute_into(), WS_INVALID_INPUT);
  const std::string both = "output 0: it has " + std::to_string(good[0].nbytes) + " bytes, and room was given for " +
                           std::to_string(good[0].nbytes - 1);
  EXPECT_TRUE(error_has(both.c_str())) << ws_last_error();

  rooms_ = good;
  std::vector<std::int64_t> sizes(good[0].sizes, good[0].sizes + good[0].ndim);
  sizes[0] += 1;
  rooms_[0].sizes = sizes.data();
  EXPECT_EQ(execute_into(), WS_INVALID_INPUT);
  EXPECT_TRUE(error_has("output 0: it will have ")) << ws_last_error();

  rooms_ = good;
  std::vector<std::int64_t> strides(good[0].ndim, 0);
  rooms_[0].strides = strides.data();
  EXPECT_EQ(execute_into(), WS_INVALID_INPUT);
  EXPECT_TRUE(error_has("dense strides")) << ws_last_error();

  rooms_ = good;
  EXPECT_EQ(execute_into(), WS_OK) << ws_last_error();
}

TEST_F(DeviceIo, AProgramOfTheCpuRefusesMemoryOfAGpu) {
  REQUIRE_MODEL(model);
  if (weightstream::test::models_are_for_cuda()) {
    GTEST_SKIP() << "the models are for CUDA";
  }
  ASSERT_NO_FATAL_FAILURE(open(model));
  ws_outputs* outputs = nullptr;
  inputs_[0].device_type = WS_DEVICE_CUDA;
  inputs_[0].device_index = 2;
  EXPECT_EQ(ws_execute(model_, inputs_.data(), inputs_.size(), &outputs), WS_INVALID_INPUT);
  EXPECT_TRUE(error_has("input 0 '")) << ws_last_error();
  EXPECT_TRUE(error_has("its memory is on cuda:2, and this method was exported for the device 'cpu'"))
      << ws_last_error();
  inputs_[0].device_index = -1;
  EXPECT_EQ(ws_execute(model_, inputs_.data(), inputs_.size(), &outputs), WS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("inputs[0].device_index is -1")) << ws_last_error();
  inputs_[0].device_type = 7;
  EXPECT_EQ(ws_execute(model_, inputs_.data(), inputs_.size(), &outputs), WS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("inputs[0].device_type is 7; 0 is the CPU, 1 CUDA")) << ws_last_error();
  EXPECT_EQ(outputs, nullptr);

  inputs_[0].device_type = WS_DEVICE_CPU;
  rooms_[0].device_type = WS_DEVICE_CUDA;
  EXPECT_EQ(execute_into(), WS_INVALID_INPUT);
  EXPECT_TRUE(error_has("output 0: its memory is on cuda:0")) << ws_last_error();
  rooms_[0].data = nullptr;
  EXPECT_EQ(execute_into(), WS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("argument 'outputs[0].data' is NULL")) << ws_last_error();
}

TEST_F(DeviceIo, AProgramOfTheCpuHasNoStreamsAndNoGpuToChoose) {
  REQUIRE_MODEL(model);
  if (weightstream::test::models_are_for_cuda()) {
    GTEST_SKIP() << "the models are for CUDA";
  }
  const ws_program program{nullptr, 0, model.pte.c_str()};
  EXPECT_EQ(ws_init_on_stream(&program, model.ptd.c_str(), "forward", nullptr, nullptr, &model_), WS_UNSUPPORTED);
  EXPECT_TRUE(error_has("has no streams")) << ws_last_error();
  for (const std::int64_t index : {0, 1}) {
    const ws_option option{"weight_offload_device", WS_OPTION_INT, index, nullptr};
    const ws_options options{&option, 1};
    EXPECT_EQ(ws_init(&program, model.ptd.c_str(), "forward", &options, &model_), WS_INVALID_OPTION);
    EXPECT_TRUE(error_has("option 'weight_offload_device': method 'forward' was exported for the device 'cpu'"))
        << ws_last_error();
  }
  Module module(model.pte, model.ptd, weightstream::Options().device(0));
  EXPECT_NE(module.load_method("forward"), Error::Ok);
  EXPECT_TRUE(error_has("no GPU to choose")) << ws_last_error();
  EXPECT_EQ(model_, nullptr);
}

TEST_F(DeviceIo, ExecuTorchInputsOnTheWrongDeviceAreNamed) {
  REQUIRE_MODEL(model);
  Module module(model.pte, model.ptd);
  const auto tensors = ones(module);
  std::vector<EValue> inputs(tensors.begin(), tensors.end());
  ASSERT_TRUE(module.forward(inputs).ok()) << weightstream::last_error();
  const TensorPtr elsewhere = as_on_cuda(tensors[0], 1);
  inputs[0] = EValue(elsewhere);
  EXPECT_EQ(module.forward(inputs).error(), Error::InvalidArgument);
  EXPECT_TRUE(error_has("input 0: expected a tensor on the cpu, found it on cuda:1")) << ws_last_error();
  // ExecuTorch counts the inputs as set by now; they are not taken for those of this call.
  EXPECT_EQ(module.forward(std::vector<EValue>()).error(), Error::InvalidArgument);
  EXPECT_TRUE(error_has(", 0 were given")) << ws_last_error();
  inputs[0] = EValue(tensors[0]);
  EXPECT_TRUE(module.forward(inputs).ok()) << weightstream::last_error();
}

// Registered once, and never while the library is loaded: other tests of this program have loaded methods of the CPU.
TEST(DeviceAllocator, IsRegisteredOnRequestAndOnce) {
  if (weightstream::test::models_are_for_cuda()) {
    GTEST_SKIP() << "earlier tests of this process have loaded methods for CUDA, which registers it";
  }
  EXPECT_EQ(et::get_device_allocator(DeviceType::CUDA), nullptr);
  EXPECT_TRUE(weightstream::register_cuda_allocator());
  auto* allocator = et::get_device_allocator(DeviceType::CUDA);
  ASSERT_NE(allocator, nullptr);
  EXPECT_TRUE(weightstream::register_cuda_allocator());
  EXPECT_EQ(et::get_device_allocator(DeviceType::CUDA), allocator);

  auto buffer = et::DeviceMemoryBuffer::create(4096, DeviceType::CUDA, 0);
  if (!buffer.ok()) {
    EXPECT_STRNE(ws_last_error(), "");
    EXPECT_TRUE(error_has("libcuda.so.1") || error_has("GPU")) << ws_last_error();
    // An address that nobody gave: refused, not followed.
    EXPECT_NE(allocator->copy_host_to_device(&buffer, &buffer, 1, 0), Error::Ok);
    allocator->deallocate(&buffer, 0);
    allocator->deallocate(nullptr, 0);
    return;
  }
  const std::string sent(4096, 's');
  std::string found(4096, 'x');
  EXPECT_EQ(allocator->copy_host_to_device(buffer->data(), sent.data(), sent.size(), 0), Error::Ok);
  EXPECT_EQ(allocator->copy_device_to_host(found.data(), buffer->data(), found.size(), 0), Error::Ok);
  EXPECT_EQ(found, sent);
  EXPECT_NE(allocator->copy_host_to_device(found.data(), sent.data(), 16, 0), Error::Ok);
  EXPECT_TRUE(error_has("address of the host")) << ws_last_error();
}

}  // namespace
