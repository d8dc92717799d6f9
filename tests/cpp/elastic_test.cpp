// Budgets that change, and models that share a device, through our Module, ExecuTorch's own and the C interface.

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support.h"
#include "weightstream/module.h"
#include "weightstream/weightstream.h"

namespace {

using executorch::extension::from_blob;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using Floats = std::vector<float>;
using weightstream::Options;

const char* device() { return weightstream::test::models_are_for_cuda() ? "cuda:0" : "cpu"; }

// Two small modules fit: a GPU's pages have 2 MB.
std::uint64_t cap() { return std::uint64_t{weightstream::test::models_are_for_cuda() ? 32U : 2U} << 20; }

Floats run(executorch::extension::Module& module) {
  Floats input(8 * 256);
  for (std::size_t at = 0; at < input.size(); ++at) {
    input[at] = static_cast<float>(at % 17) / 16 - 0.5F;
  }
  const auto outputs = module.execute("forward", {EValue(from_blob(input.data(), {8, 256}))});
  EXPECT_TRUE(outputs.ok()) << weightstream::last_error();
  if (!outputs.ok()) {
    return {};
  }
  const auto& tensor = outputs->front().toTensor();
  const auto* data = tensor.const_data_ptr<float>();
  return {data, data + tensor.numel()};
}

std::string report() {
  const char* json = nullptr;
  EXPECT_EQ(ws_device_report(device(), &json), WS_OK) << ws_last_error();
  return json == nullptr ? "" : json;
}

TEST(Elastic, TheBudgetOfAModuleChanges) {
  REQUIRE_MODEL(model, "mlp");
  weightstream::Module module(model.pte, model.ptd, Options().budget_mb(16));
  const Floats expected = run(module);
  const auto least = module.required_budget();
  ASSERT_TRUE(least.ok());
  for (const std::uint64_t budget : {*least, *least + (256 << 10), std::uint64_t{8} << 20, *least}) {
    ASSERT_EQ(module.set_budget(budget), Error::Ok) << weightstream::last_error();
    EXPECT_EQ(run(module), expected) << budget;
    const auto stats = module.stats();
    ASSERT_TRUE(stats.ok());
    EXPECT_EQ(stats->budget_bytes, budget);
    EXPECT_LE(stats->peak_bytes, budget);
  }
  EXPECT_NE(module.set_budget(*least - 1), Error::Ok);
  EXPECT_NE(weightstream::last_error().find(std::to_string(*least)), std::string::npos) << weightstream::last_error();
  EXPECT_EQ(run(module), expected);
}

TEST(Elastic, ModulesShareADevice) {
  REQUIRE_MODEL(model, "mlp");
  weightstream::Module alone(model.pte, model.ptd, Options().budget_mb(16));
  const Floats expected = run(alone);
  ASSERT_EQ(ws_set_device_budget(device(), cap()), WS_OK) << ws_last_error();
  {
    weightstream::Module first(model.pte, model.ptd, Options().budget_shared().priority(1));
    weightstream::Module second(model.pte, model.ptd, Options().budget_shared());
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(run(first), expected);
      EXPECT_EQ(run(second), expected);
    }
    const std::string text = report();
    EXPECT_NE(text.find("\"cap_bytes\": " + std::to_string(cap())), std::string::npos) << text;
    EXPECT_NE(text.find("\"priority\": 1"), std::string::npos) << text;
    EXPECT_EQ(ws_set_device_budget(device(), 1), WS_BUDGET_TOO_SMALL);
    EXPECT_EQ(first.set_budget(1 << 20), Error::InvalidArgument) << weightstream::last_error();
    // The order of the device, the first place first.
    ASSERT_EQ(first.set_priority(-2), Error::Ok) << weightstream::last_error();
    const std::string lower = report();
    EXPECT_LT(lower.find("\"priority\": 0"), lower.find("\"priority\": -2")) << lower;
    EXPECT_EQ(first.set_priority(0), Error::Ok);
    EXPECT_EQ(first.prioritize(), Error::Ok);
    EXPECT_EQ(second.deprioritize(), Error::Ok);
    EXPECT_EQ(run(second), expected);
  }
  EXPECT_EQ(alone.prioritize(), Error::InvalidArgument) << weightstream::last_error();
  EXPECT_NE(report().find("\"tenants\": []"), std::string::npos) << report();
  EXPECT_EQ(ws_set_device_budget(device(), WS_DEVICE_BUDGET_AUTO), WS_OK);
}

TEST(Elastic, WrongArgumentsOfTheCInterface) {
  const char* json = nullptr;
  EXPECT_EQ(ws_set_device_budget(nullptr, 1), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_set_device_budget("gpu", 1), WS_INVALID_INPUT) << ws_last_error();
  EXPECT_EQ(ws_device_report("cuda:-1", &json), WS_INVALID_INPUT);
  EXPECT_EQ(ws_device_report(device(), nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_set_budget(nullptr, 1), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_set_priority(nullptr, 1), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_prioritize(nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_offload_deprioritize(nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_range_set_priority(nullptr, 1), WS_INVALID_ARGUMENT);
}

}  // namespace
