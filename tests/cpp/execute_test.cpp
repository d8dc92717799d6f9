// Executions: the C interface against ExecuTorch's Module, repeated, at several budgets, from two threads.

#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "support.h"
#include "weightstream/module.h"
#include "weightstream/weightstream.h"

namespace {

using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using weightstream::Module;
using weightstream::Options;

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

std::string bytes_of(const std::vector<EValue>& outputs) {
  std::string bytes;
  for (const EValue& output : outputs) {
    const auto& tensor = output.toTensor();
    bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  return bytes;
}

std::string bytes_of(const ws_outputs* outputs) {
  std::string bytes;
  for (std::size_t index = 0; index < ws_outputs_count(outputs); ++index) {
    ws_tensor tensor{};
    EXPECT_EQ(ws_outputs_get(outputs, index, &tensor), WS_OK);
    bytes.append(static_cast<const char*>(tensor.data), tensor.nbytes);
  }
  return bytes;
}

// Views of tensors for the C interface.
class Views {
 public:
  explicit Views(const std::vector<TensorPtr>& tensors) {
    sizes_.reserve(tensors.size());
    for (const TensorPtr& tensor : tensors) {
      sizes_.emplace_back(tensor->sizes().begin(), tensor->sizes().end());
      views_.push_back({tensor->mutable_data_ptr(), tensor->nbytes(), static_cast<int32_t>(tensor->scalar_type()),
                        static_cast<int32_t>(tensor->dim()), sizes_.back().data(), nullptr, WS_DEVICE_CPU, 0});
    }
  }
  std::vector<ws_tensor>& list() { return views_; }

 private:
  std::vector<std::vector<std::int64_t>> sizes_;
  std::vector<ws_tensor> views_;
};

std::string run(Module& module, const std::vector<TensorPtr>& tensors) {
  const std::vector<EValue> inputs(tensors.begin(), tensors.end());
  const auto outputs = module.forward(inputs);
  EXPECT_TRUE(outputs.ok()) << weightstream::last_error();
  return outputs.ok() ? bytes_of(*outputs) : "";
}

// The C interface calls the delegate itself, and has to follow the program where the delegate takes and gives
// something else than the method.
class EachModel : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Execute, EachModel,
                         ::testing::Values("", "demo", "kv_decoder", "fact_returned", "fact_crossed"),
                         [](const auto& info) { return *info.param == '\0' ? "first" : std::string(info.param); });

TEST_P(EachModel, BothInterfacesGiveTheSameBytesAtEveryBudget) {
  REQUIRE_MODEL(model, GetParam());
  Module at_floor(model.pte, model.ptd);
  const auto tensors = ones(at_floor);
  const std::string expected = run(at_floor, tensors);
  ASSERT_FALSE(expected.empty());
  const auto stats = at_floor.stats();
  const std::uint64_t all = stats->total_weight_bytes + stats->direct_bytes;
  for (const std::uint64_t share : {25, 50, 75, 100}) {
    const std::uint64_t budget = std::max(stats->floor_bytes, all * share / 100);
    Module module(model.pte, model.ptd, Options().budget_bytes(budget));
    EXPECT_EQ(run(module, tensors), expected) << share << " %";
    EXPECT_LE(module.stats()->peak_bytes, budget);
  }
  const ws_program program{nullptr, 0, model.pte.c_str()};
  ws_model* loaded = nullptr;
  ASSERT_EQ(ws_init(&program, model.ptd.c_str(), "forward", nullptr, &loaded), WS_OK) << ws_last_error();
  Views views(tensors);
  ws_outputs* outputs = nullptr;
  EXPECT_EQ(ws_execute(loaded, views.list().data(), views.list().size(), &outputs), WS_OK) << ws_last_error();
  ws_destroy(loaded);
  // Outputs are independent of the model.
  EXPECT_EQ(bytes_of(outputs), expected);
  ws_outputs_destroy(outputs);
}

TEST_P(EachModel, ARefusedCallLeavesTheModelUsable) {
  REQUIRE_MODEL(model, GetParam());
  Module module(model.pte, model.ptd);
  const auto tensors = ones(module);
  const ws_program program{nullptr, 0, model.pte.c_str()};
  ws_model* loaded = nullptr;
  ASSERT_EQ(ws_init(&program, model.ptd.c_str(), "forward", nullptr, &loaded), WS_OK) << ws_last_error();
  Views views(tensors);
  ws_outputs* outputs = nullptr;
  views.list()[0].dtype += 1;
  EXPECT_EQ(ws_execute(loaded, views.list().data(), views.list().size(), &outputs), WS_INVALID_INPUT);
  EXPECT_NE(std::strstr(ws_last_error(), "input 0 '"), nullptr) << ws_last_error();
  EXPECT_EQ(outputs, nullptr);
  views.list()[0].dtype -= 1;
  EXPECT_EQ(ws_execute(loaded, views.list().data(), views.list().size(), &outputs), WS_OK) << ws_last_error();
  ws_outputs_destroy(outputs);
  ws_destroy(loaded);
}

// The elements of a tensor in another layout: the first dimension innermost, and holes between all elements.
struct Strided {
  explicit Strided(const executorch::aten::Tensor& tensor)
      : sizes(tensor.sizes().begin(), tensor.sizes().end()), strides(sizes.size()), order(sizes.size()) {
    const std::size_t item = tensor.nbytes() / tensor.numel();
    std::int64_t stride = 3;
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      order[dim] = static_cast<std::uint8_t>(dim);
      strides[dim] = static_cast<std::int32_t>(stride);
      stride *= sizes[dim];
    }
    std::int64_t reach = 1;
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      reach += (sizes[dim] - 1) * strides[dim];
    }
    bytes.resize(reach * item, 0xEE);
    const auto* from = static_cast<const std::uint8_t*>(tensor.const_data_ptr());
    for (std::int64_t at = 0; at < tensor.numel(); ++at) {
      std::int64_t rest = at;
      std::int64_t to = 0;
      for (std::size_t dim = sizes.size(); dim-- > 0;) {
        to += rest % sizes[dim] * strides[dim];
        rest /= sizes[dim];
      }
      std::memcpy(bytes.data() + to * item, from + at * item, item);
    }
    wide_sizes.assign(sizes.begin(), sizes.end());
    wide_strides.assign(strides.begin(), strides.end());
    dtype = tensor.scalar_type();
  }
  ws_tensor view() {
    return {bytes.data(),
            bytes.size(),
            static_cast<int32_t>(dtype),
            static_cast<int32_t>(sizes.size()),
            wide_sizes.data(),
            wide_strides.data(),
            WS_DEVICE_CPU,
            0};
  }
  bool is_row_major() const {
    return wide_sizes.empty() || wide_sizes == std::vector<std::int64_t>(wide_sizes.size(), 1);
  }

  std::vector<std::int32_t> sizes;
  std::vector<std::int32_t> strides;
  std::vector<std::uint8_t> order;
  std::vector<std::int64_t> wide_sizes;
  std::vector<std::int64_t> wide_strides;
  std::vector<std::uint8_t> bytes;
  executorch::aten::ScalarType dtype;
};

TEST_P(EachModel, InputsOfAnyLayoutAreCopiedAndCounted) {
  REQUIRE_MODEL(model, GetParam());
  Module module(model.pte, model.ptd);
  const auto tensors = ones(module);
  std::vector<Strided> strided;
  std::uint64_t copied = 0;
  for (const TensorPtr& tensor : tensors) {
    if (tensor->scalar_type() == executorch::aten::ScalarType::Float) {
      for (ssize_t at = 0; at < tensor->numel(); ++at) {
        tensor->mutable_data_ptr<float>()[at] = static_cast<float>(at * 37 % 64) / 16.0f - 2.0f;
      }
    }
    strided.emplace_back(*tensor);
    copied += strided.back().is_row_major() ? 0 : 1;
  }
  if (copied == 0) {
    GTEST_SKIP() << "inputs of one element are row-major whatever their strides";
  }
  const std::string expected = run(module, tensors);
  EXPECT_EQ(module.stats()->inputs_copied, 0u);
  // ExecuTorch's own factories refuse these strides, but nothing else does.
  std::vector<std::unique_ptr<executorch::runtime::etensor::TensorImpl>> impls;
  std::vector<EValue> values;
  for (Strided& one : strided) {
    impls.push_back(std::make_unique<executorch::runtime::etensor::TensorImpl>(
        one.dtype, one.sizes.size(), one.sizes.data(), one.bytes.data(), one.order.data(), one.strides.data()));
    values.emplace_back(executorch::aten::Tensor(impls.back().get()));
  }
  Module fresh(model.pte, model.ptd);
  const auto outputs = fresh.forward(values);
  ASSERT_TRUE(outputs.ok()) << weightstream::last_error();
  EXPECT_EQ(bytes_of(*outputs), expected);
  EXPECT_EQ(fresh.stats()->inputs_copied, copied);

  const ws_program program{nullptr, 0, model.pte.c_str()};
  ws_model* loaded = nullptr;
  ASSERT_EQ(ws_init(&program, model.ptd.c_str(), "forward", nullptr, &loaded), WS_OK) << ws_last_error();
  std::vector<ws_tensor> views;
  for (Strided& one : strided) {
    views.push_back(one.view());
  }
  ws_outputs* found = nullptr;
  ASSERT_EQ(ws_execute(loaded, views.data(), views.size(), &found), WS_OK) << ws_last_error();
  EXPECT_EQ(bytes_of(found), expected);
  ws_outputs_destroy(found);
  ws_stats_data stats{};
  stats.struct_size = sizeof(stats);
  ASSERT_EQ(ws_stats(loaded, &stats), WS_OK);
  EXPECT_GT(stats.inputs_copied, 0u);
  EXPECT_LE(stats.inputs_copied, copied);  // one that is not read is not copied
  views[0].nbytes -= 1;
  EXPECT_EQ(ws_execute(loaded, views.data(), views.size(), &found), WS_INVALID_INPUT);
  EXPECT_NE(std::strstr(ws_last_error(), " and strides "), nullptr) << ws_last_error();
  ws_destroy(loaded);
}

// Two threads on one handle: each call either runs or is told that the handle is busy, and every output is
// right.
TEST(Execute, ASecondCallWhileOneRunsIsBusy) {
  REQUIRE_MODEL(model, "demo");
  Module module(model.pte, model.ptd);
  const auto tensors = ones(module);
  const std::string expected = run(module, tensors);
  const ws_program program{nullptr, 0, model.pte.c_str()};
  ws_model* loaded = nullptr;
  ASSERT_EQ(ws_init(&program, model.ptd.c_str(), "forward", nullptr, &loaded), WS_OK) << ws_last_error();
  std::atomic<int> ran{0};
  std::atomic<int> busy{0};
  const auto work = [&] {
    Views views(tensors);
    for (int call = 0; call < 10; ++call) {
      ws_outputs* outputs = nullptr;
      const ws_status status = ws_execute(loaded, views.list().data(), views.list().size(), &outputs);
      if (status == WS_BUSY) {
        ++busy;
        std::this_thread::yield();
      } else {
        EXPECT_EQ(status, WS_OK) << ws_last_error();
        EXPECT_EQ(bytes_of(outputs), expected);
        ++ran;
      }
      ws_outputs_destroy(outputs);
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(ran + busy, 20);
  EXPECT_GT(ran, 0);
  EXPECT_GT(busy, 0);
  ws_destroy(loaded);
}

}  // namespace
