// Executions: the C interface against ExecuTorch's Module, repeated, at several budgets, from two threads.

#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstring>
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
