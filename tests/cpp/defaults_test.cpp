// Options for callers that cannot give any at load: set_option, the environment. A process sets defaults for good, so
// each test runs in a child of its own.

#include <executorch/extension/module/module.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>

#include <cstdlib>
#include <string>

#include "support.h"
#include "weightstream/module.h"
#include "weightstream/weightstream.h"

namespace {

using executorch::runtime::BackendOptions;
using executorch::runtime::Error;
using weightstream::Module;
using weightstream::Options;

template <std::size_t N, typename Value>
Error set(const char (&key)[N], Value value) {
  BackendOptions<1> options;
  EXPECT_EQ(options.set_option(key, value), Error::Ok);
  return executorch::runtime::set_option(weightstream::kBackendId, options.view());
}

// What `stats` says of the options of a load.
std::string options_of(const weightstream::test::Model& model, Options options = {}) {
  Module module(model.pte, model.ptd, std::move(options));
  if (module.load_method("forward") != Error::Ok) {
    return weightstream::last_error();
  }
  return module.stats()->options_json;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Ends the child: 0 if `passed`, else 1 with the text.
void finish(bool passed, const std::string& text) {
  if (!passed) {
    std::fprintf(stderr, "found: %s\n", text.c_str());
  }
  std::_Exit(passed ? 0 : 1);
}

class Defaults : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(Defaults, TheStrongestSaysWhatHolds) {
  REQUIRE_MODEL(model, "mlp");
  EXPECT_EXIT(
      {
        setenv("WEIGHTSTREAM_POLICY", "lru", 1);
        setenv("WEIGHTSTREAM_VERIFY", "load", 1);
        set("weight_offload_policy", "planned");
        const std::string found = options_of(model, Options().budget_mb(64));
        finish(has(found, R"("weight_offload_budget_mb": {"value": 64, "from": "load"})") &&
                   has(found, R"("weight_offload_policy": {"value": "planned", "from": "set_option"})") &&
                   has(found, R"("weight_offload_verify": {"value": "load", "from": "environment"})") &&
                   has(found, R"("weight_offload_gather": {"value": "auto", "from": "default"})"),
               found);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(Defaults, AStockModuleGetsThem) {
  REQUIRE_MODEL(model, "mlp");
  EXPECT_EXIT(
      {
        set("weight_offload_budget_bytes", "1");
        executorch::extension::Module module(model.pte, model.ptd, executorch::extension::Module::LoadMode::Mmap);
        const Error error = module.load_method("forward");
        finish(error == Error::OutOfResources, weightstream::last_error());
      },
      ::testing::ExitedWithCode(0), "needs at least");
}

TEST_F(Defaults, OneForAnotherDeviceIsLeftOutWithALogLine) {
  REQUIRE_MODEL(model, "mlp");
  if (weightstream::test::models_are_for_cuda()) {
    GTEST_SKIP() << "a program for a GPU takes it";
  }
  EXPECT_EXIT(
      {
        set("weight_offload_cuda_graph", true);
        const std::string found = options_of(model);
        finish(has(found, "weight_offload_policy") && !has(found, "weight_offload_cuda_graph"), found);
      },
      ::testing::ExitedWithCode(0), "'weight_offload_cuda_graph' of the set_option is left out: it is for GPUs");
}

TEST_F(Defaults, SetLaterTheyChangeNoLoadedProgram) {
  REQUIRE_MODEL(model, "mlp");
  EXPECT_EXIT(
      {
        Module module(model.pte, model.ptd);
        const Error loaded = module.load_method("forward");
        set("weight_offload_policy", "lru");
        finish(loaded == Error::Ok && has(module.stats()->options_json, R"("planned", "from": "default")") &&
                   has(options_of(model), R"("lru", "from": "set_option")"),
               module.stats()->options_json);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(Defaults, WhatIsSetCanBeAskedFor) {
  EXPECT_EXIT(
      {
        set("weight_offload_budget_mb", 7);
        BackendOptions<1> asked;
        asked.set_option("weight_offload_budget_mb", 0);
        const Error got = executorch::runtime::get_option(weightstream::kBackendId, asked.view());
        int budget = 0;
        asked.get_option("weight_offload_budget_mb", budget);
        finish(got == Error::Ok && budget == 7, std::to_string(budget));
      },
      ::testing::ExitedWithCode(0), "");
}

template <typename Slot, typename Value>
Slot switched(Value value) {
  EXPECT_EQ(set("weight_offload_sync", value), Error::Ok) << weightstream::last_error();
  BackendOptions<1> asked;
  asked.set_option("weight_offload_sync", Slot{});
  EXPECT_EQ(executorch::runtime::get_option(weightstream::kBackendId, asked.view()), Error::Ok);
  Slot found{};
  EXPECT_EQ(asked.get_option("weight_offload_sync", found), Error::Ok);
  return found;
}

TEST_F(Defaults, ASwitchIsABoolHoweverItWasSet) {
  EXPECT_EXIT(
      {
        finish(switched<bool>(true) && !switched<bool>(0) && switched<bool>("true") && switched<bool>("1") &&
                   switched<int>(true) == 1 && switched<int>("false") == 0 && !HasFailure(),
               weightstream::last_error());
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(Defaults, WhatIsWrongIsRefusedAndNothingIsSet) {
  EXPECT_EQ(set("weight_offload_budgets", 1), Error::InvalidArgument);
  EXPECT_TRUE(has(weightstream::last_error(), "'weight_offload_budgets': is unknown")) << weightstream::last_error();
  EXPECT_EQ(set("weight_offload_policy", 1), Error::InvalidArgument);
  EXPECT_EQ(set("weight_offload_pte_sha256", "00"), Error::InvalidArgument);
  const ws_option items[] = {{"weight_offload_verify", WS_OPTION_STRING, 0, "load"},
                             {"weight_offload_verified", WS_OPTION_STRING, 0, "load"}};
  const ws_options options = {items, 2};
  EXPECT_EQ(ws_set_options(&options), WS_INVALID_OPTION);
  BackendOptions<1> asked;
  asked.set_option("weight_offload_verify", "");
  EXPECT_NE(executorch::runtime::get_option(weightstream::kBackendId, asked.view()), Error::Ok);
}

TEST_F(Defaults, AnUnknownVariableIsAnError) {
  REQUIRE_MODEL(model, "mlp");
  EXPECT_EXIT(
      {
        setenv("WEIGHTSTREAM_BUDGT_MB", "64", 1);
        const std::string found = options_of(model);
        finish(has(found, "WEIGHTSTREAM_BUDGT_MB") && has(found, "WEIGHTSTREAM_BUDGET_MB"), found);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
