// The C interface over exported programs, without ExecuTorch.

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "support.h"
#include "weightstream/weightstream.h"

namespace {

using weightstream::test::Model;

// Inputs are made by the weightstream-run of the same program; here it is enough that the interface says
// what it wants.
class CModels : public ::testing::Test {
 protected:
  void open(const Model& model, const std::vector<ws_option>& items = {}) {
    const ws_program program{nullptr, 0, model.pte.c_str()};
    const ws_options options{items.data(), items.size()};
    status_ = ws_init(&program, model.ptd.c_str(), "forward", &options, &model_);
  }

  void TearDown() override { ws_destroy(model_); }

  ws_status status_ = WS_OK;
  ws_model* model_ = nullptr;
};

TEST_F(CModels, LoadsAtTheFloorWithoutABudget) {
  REQUIRE_MODEL(model);
  open(model);
  ASSERT_EQ(status_, WS_OK) << ws_last_error();
  ws_stats_data stats{};
  stats.struct_size = sizeof(stats);
  ASSERT_EQ(ws_stats(model_, &stats), WS_OK);
  std::uint64_t required = 0;
  ASSERT_EQ(ws_required_budget(model.pte.c_str(), "forward", &required), WS_OK);
  EXPECT_EQ(stats.budget_bytes, required);
  EXPECT_EQ(stats.floor_bytes, required);
  EXPECT_LE(stats.peak_bytes, stats.budget_bytes);
  const char* json = nullptr;
  ASSERT_EQ(ws_stats_json(model_, &json), WS_OK);
  EXPECT_NE(std::strstr(json, "\"budget_bytes\": "), nullptr);
}

TEST_F(CModels, RefusesOneByteBelowTheFloorWithTheNumber) {
  REQUIRE_MODEL(model);
  std::uint64_t required = 0;
  ASSERT_EQ(ws_required_budget(model.pte.c_str(), "forward", &required), WS_OK);
  const std::string below = std::to_string(required - 1);
  open(model, {{"weight_offload_budget_bytes", WS_OPTION_STRING, 0, below.c_str()}});
  EXPECT_EQ(status_, WS_BUDGET_TOO_SMALL);
  EXPECT_EQ(model_, nullptr);
  EXPECT_NE(std::strstr(ws_last_error(), (std::to_string(required) + " bytes").c_str()), nullptr) << ws_last_error();
}

TEST_F(CModels, ProgramMayBeBytes) {
  REQUIRE_MODEL(model);
  const std::string bytes = weightstream::test::read_file(model.pte);
  const ws_program program{bytes.data(), bytes.size(), nullptr};
  EXPECT_EQ(ws_init(&program, model.ptd.c_str(), "forward", nullptr, &model_), WS_OK) << ws_last_error();
}

TEST_F(CModels, OnlyThePinnedProgramIsLoaded) {
  REQUIRE_MODEL(model);
  const std::string pin = weightstream::test::sha256(model.pte);
  const std::string other(64, 'f');
  open(model, {{"weight_offload_pte_sha256", WS_OPTION_STRING, 0, other.c_str()}});
  EXPECT_EQ(status_, WS_MISMATCH);
  EXPECT_NE(std::strstr(ws_last_error(), pin.c_str()), nullptr) << ws_last_error();
  open(model, {{"weight_offload_pte_sha256", WS_OPTION_STRING, 0, pin.c_str()}});
  EXPECT_EQ(status_, WS_OK) << ws_last_error();
}

TEST_F(CModels, UnknownMethodIsMissing) {
  REQUIRE_MODEL(model);
  const ws_program program{nullptr, 0, model.pte.c_str()};
  EXPECT_EQ(ws_init(&program, model.ptd.c_str(), "backward", nullptr, &model_), WS_MISSING);
  EXPECT_NE(std::strstr(ws_last_error(), "backward"), nullptr) << ws_last_error();
}

TEST_F(CModels, OptionsAreChecked) {
  REQUIRE_MODEL(model);
  open(model, {{"weight_offload_bugdet_mb", WS_OPTION_INT, 1, nullptr}});
  EXPECT_EQ(status_, WS_INVALID_OPTION);
  EXPECT_NE(std::strstr(ws_last_error(), "weight_offload_bugdet_mb"), nullptr);
  open(model, {{"weight_offload_budget_mb", static_cast<ws_option_type>(9), 1, nullptr}});
  EXPECT_EQ(status_, WS_INVALID_OPTION);
  open(model, {{"weight_offload_policy", WS_OPTION_STRING, 0, nullptr}});
  EXPECT_EQ(status_, WS_INVALID_ARGUMENT);
  open(model, {{"weight_offload_data", WS_OPTION_STRING, 0, "w.ptd"}});
  EXPECT_EQ(status_, WS_INVALID_OPTION);
  EXPECT_EQ(model_, nullptr);
}

TEST_F(CModels, WeightsOfAnotherProgramAreRefused) {
  REQUIRE_MODEL(model);
  const weightstream::test::TempDir dir;
  const ws_program program{nullptr, 0, model.pte.c_str()};
  const std::string copy = dir.write("copy.pte", weightstream::test::read_file(model.pte));
  EXPECT_EQ(ws_init(&program, copy.c_str(), "forward", nullptr, &model_), WS_MALFORMED);
  std::string bytes = weightstream::test::read_file(model.ptd);
  const std::string cut = dir.write("cut.ptd", bytes.substr(0, bytes.size() / 2));
  EXPECT_EQ(ws_init(&program, cut.c_str(), "forward", nullptr, &model_), WS_MALFORMED) << ws_last_error();
  EXPECT_NE(std::strstr(ws_last_error(), "cut.ptd"), nullptr);
  EXPECT_EQ(model_, nullptr);
}

TEST_F(CModels, WrongInputsAreRefusedAndTheModelGoesOn) {
  REQUIRE_MODEL(model);
  open(model);
  ASSERT_EQ(status_, WS_OK) << ws_last_error();
  ws_outputs* outputs = nullptr;
  const std::int64_t sizes[] = {1};
  float value = 0;
  std::vector<ws_tensor> many(40, ws_tensor{&value, sizeof(value), 6, 1, sizes, nullptr, WS_DEVICE_CPU, 0});
  EXPECT_EQ(ws_execute(model_, many.data(), many.size(), &outputs), WS_INVALID_INPUT);
  EXPECT_NE(std::strstr(ws_last_error(), "40 were given"), nullptr) << ws_last_error();
  EXPECT_EQ(ws_execute(model_, nullptr, 1, &outputs), WS_INVALID_ARGUMENT);
  many[0].ndim = -1;
  EXPECT_EQ(ws_execute(model_, many.data(), 1, &outputs), WS_INVALID_ARGUMENT);
  EXPECT_EQ(outputs, nullptr);
}

TEST_F(CModels, StatsNeedTheirSize) {
  REQUIRE_MODEL(model);
  open(model);
  ASSERT_EQ(status_, WS_OK) << ws_last_error();
  ws_stats_data stats{};
  EXPECT_EQ(ws_stats(model_, &stats), WS_INVALID_ARGUMENT);
  // A caller with a later, larger structure: what the library does not know stays as it was.
  struct {
    ws_stats_data known;
    std::uint64_t later;
  } larger{};
  larger.known.struct_size = sizeof(larger);
  larger.later = 77;
  EXPECT_EQ(ws_stats(model_, &larger.known), WS_OK);
  EXPECT_EQ(larger.known.struct_size, sizeof(larger));
  EXPECT_EQ(larger.later, 77u);
}

std::atomic<int> floor_lines{0};

TEST_F(CModels, TheFloorAsBudgetIsLogged) {
  REQUIRE_MODEL(model);
  floor_lines = 0;
  ws_set_log([](ws_log_level, const char* text) {
    if (std::strstr(text, "no budget was given") != nullptr) {
      ++floor_lines;
    }
  });
  open(model);
  ws_set_log(nullptr);
  ASSERT_EQ(status_, WS_OK) << ws_last_error();
  EXPECT_EQ(floor_lines, 1);
}

}  // namespace
