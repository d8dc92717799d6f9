// The backend in ExecuTorch's registry, and stock Modules over exported programs.

#include "weightstream/backend.h"

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/interface.h>

#include <string>
#include <vector>

#include "support.h"
#include "weightstream/weightstream.h"

namespace {

using executorch::extension::Module;
using executorch::runtime::BackendOptions;
using executorch::runtime::Error;
using executorch::runtime::LoadBackendOptionsMap;

TEST(Backend, IsRegisteredOnceByLoadingTheLibrary) {
  EXPECT_NE(executorch::runtime::get_backend_class(weightstream::kBackendId), nullptr);
  const size_t count = executorch::runtime::get_num_registered_backends();
  EXPECT_EQ(weightstream::register_backend(), Error::Ok);
  EXPECT_EQ(weightstream::register_backend(), Error::Ok);
  EXPECT_EQ(executorch::runtime::get_num_registered_backends(), count);
  EXPECT_TRUE(executorch::runtime::get_backend_class(weightstream::kBackendId)->is_available());
}

// Memory of all sizes that was freed before, filled with what no weight holds.
std::vector<std::string> use_freed_memory() {
  std::vector<std::string> blocks;
  for (std::size_t size = 32; size <= std::size_t{1} << 17; size += size / 4) {
    for (int count = 0; count < 20; ++count) {
      blocks.emplace_back(size, '\x7f');
    }
  }
  return blocks;
}

class StockModule : public ::testing::Test {
 protected:
  Error load(const weightstream::test::Model& model, Module::LoadMode mode) {
    module_ = std::make_unique<Module>(model.pte, model.ptd, mode);
    LoadBackendOptionsMap map;
    EXPECT_EQ(map.set_options(weightstream::kBackendId, options_.view()), Error::Ok);
    const Error error = module_->load(map);
    return error != Error::Ok ? error : module_->load_method("forward");
  }

  // The bytes of the outputs for inputs of ones.
  std::string run() {
    const auto meta = module_->method_meta("forward");
    std::vector<executorch::extension::TensorPtr> tensors;
    for (std::size_t index = 0; index < meta->num_inputs(); ++index) {
      const auto info = meta->input_tensor_meta(index);
      tensors.push_back(executorch::extension::ones({info->sizes().begin(), info->sizes().end()}, info->scalar_type()));
    }
    const auto outputs = module_->forward(std::vector<executorch::runtime::EValue>(tensors.begin(), tensors.end()));
    EXPECT_TRUE(outputs.ok()) << weightstream::last_error();
    std::string bytes;
    for (std::size_t index = 0; outputs.ok() && index < outputs->size(); ++index) {
      const auto& tensor = outputs->at(index).toTensor();
      bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    }
    return bytes;
  }

  BackendOptions<4> options_;
  std::unique_ptr<Module> module_;
};

TEST_F(StockModule, MappedNamedDataIsEnough) {
  REQUIRE_MODEL(model);
  EXPECT_EQ(load(model, Module::LoadMode::Mmap), Error::Ok) << weightstream::last_error();
}

// Of a load that ExecuTorch has read into memory: the weights are used there, and must stay for as long as the method.
TEST_F(StockModule, EveryLoadModeGivesTheSameBits) {
  REQUIRE_MODEL(model, "mlp");
  ASSERT_EQ(load(model, Module::LoadMode::Mmap), Error::Ok) << weightstream::last_error();
  const std::string expected = run();
  EXPECT_FALSE(expected.empty());
  for (const auto mode :
       {Module::LoadMode::File, Module::LoadMode::MmapUseMlock, Module::LoadMode::MmapUseMlockIgnoreErrors}) {
    ASSERT_EQ(load(model, mode), Error::Ok) << weightstream::last_error();
    const auto others = use_freed_memory();
    EXPECT_EQ(run(), expected);
    EXPECT_EQ(run(), expected);
  }
}

// Weights of both lie in the heap, some on one page, beside inputs and outputs.
TEST_F(StockModule, TwoLoadsMayShareTheHeap) {
  REQUIRE_MODEL(model, "mlp");
  ASSERT_EQ(load(model, Module::LoadMode::Mmap), Error::Ok) << weightstream::last_error();
  const std::string expected = run();
  ASSERT_EQ(load(model, Module::LoadMode::File), Error::Ok) << weightstream::last_error();
  std::unique_ptr<Module> first = std::move(module_);
  ASSERT_EQ(load(model, Module::LoadMode::File), Error::Ok) << weightstream::last_error();
  EXPECT_EQ(run(), expected);
  std::swap(first, module_);
  EXPECT_EQ(run(), expected);
  module_.reset();
  module_ = std::move(first);
  const auto others = use_freed_memory();
  EXPECT_EQ(run(), expected);
}

// ExecuTorch locks what it is asked for. The weights are held as the option says all the same.
TEST_F(StockModule, LockedDataIsHeldInEveryWay) {
  REQUIRE_MODEL(model, "mlp");
  ASSERT_EQ(load(model, Module::LoadMode::Mmap), Error::Ok) << weightstream::last_error();
  const std::string expected = run();
  for (const auto mode : {Module::LoadMode::MmapUseMlock, Module::LoadMode::MmapUseMlockIgnoreErrors}) {
    for (const char* host : {"auto", "mapped", "pinned", "staged"}) {
      options_ = {};
      options_.set_option("weight_offload_host", host);
      const bool only_for_gpus = std::string(host) == "pinned" || std::string(host) == "staged";
      if (only_for_gpus && !weightstream::test::models_are_for_cuda()) {
        EXPECT_EQ(load(model, mode), Error::InvalidArgument) << host;
        EXPECT_NE(weightstream::last_error().find("could have no effect"), std::string::npos);
        continue;
      }
      ASSERT_EQ(load(model, mode), Error::Ok) << host << ": " << weightstream::last_error();
      EXPECT_EQ(run(), expected) << host;
      EXPECT_EQ(run(), expected) << host;
    }
  }
}

TEST_F(StockModule, NamedDataInMemoryGivesWayToAPath) {
  REQUIRE_MODEL(model);
  if (model.ptd.size() < 255) {
    options_.set_option("weight_offload_data", model.ptd.c_str());
    EXPECT_EQ(load(model, Module::LoadMode::File), Error::Ok) << weightstream::last_error();
  }
}

TEST_F(StockModule, UnknownSpecsAreRefused) {
  REQUIRE_MODEL(model);
  options_.set_option("weight_offload_budgets", 1);
  EXPECT_EQ(load(model, Module::LoadMode::Mmap), Error::InvalidArgument);
  EXPECT_NE(weightstream::last_error().find("'weight_offload_budgets': is unknown"), std::string::npos);
}

TEST_F(StockModule, APathThatExecuTorchCutIsRefused) {
  REQUIRE_MODEL(model);
  const std::string path = "/" + std::string(400, 'p');
  options_.set_option("weight_offload_data", path.c_str());
  EXPECT_EQ(load(model, Module::LoadMode::Mmap), Error::InvalidArgument);
  EXPECT_NE(weightstream::last_error().find("may have been cut"), std::string::npos) << weightstream::last_error();
}

TEST_F(StockModule, APinThatCannotTakeEffectIsRefused) {
  REQUIRE_MODEL(model);
  options_.set_option("weight_offload_pte_sha256", weightstream::test::sha256(model.pte).c_str());
  EXPECT_EQ(load(model, Module::LoadMode::Mmap), Error::InvalidArgument);
  EXPECT_NE(weightstream::last_error().find("cannot take effect"), std::string::npos) << weightstream::last_error();
}

TEST_F(StockModule, ABudgetBelowTheFloorIsRefused) {
  REQUIRE_MODEL(model);
  options_.set_option("weight_offload_budget_bytes", "1");
  EXPECT_EQ(load(model, Module::LoadMode::Mmap), Error::OutOfResources);
  EXPECT_NE(weightstream::last_error().find("needs at least"), std::string::npos);
}

}  // namespace
