// The functions behind the Python binding: wrong arguments are errors with a text.

#include "python_api.h"

#include <cstring>

#include "support.h"

namespace {

TEST(PythonApi, NullArgumentsAreNamed) {
  EXPECT_EQ(wsm_open(nullptr, "a.ptd", nullptr, 0), nullptr);
  EXPECT_STREQ(ws_last_error(), "argument 'pte_path' is NULL");
  EXPECT_EQ(wsm_open("a.pte", "a.ptd", nullptr, 1), nullptr);
  EXPECT_STREQ(ws_last_error(), "argument 'options' is NULL");
  EXPECT_NE(wsm_load_method(nullptr, "forward"), 0);
  EXPECT_NE(wsm_execute(nullptr, "forward", nullptr, 0), 0);
  EXPECT_NE(wsm_output(nullptr, 0, nullptr), 0);
  EXPECT_EQ(wsm_stats_json(nullptr, "forward"), nullptr);
  EXPECT_NE(wsm_call_inputs("a.pte", "forward", nullptr, nullptr), 0);
  EXPECT_STREQ(ws_last_error(), "argument 'inputs' is NULL");
  EXPECT_EQ(wsm_num_outputs(nullptr), 0u);
  wsm_close(nullptr);
}

TEST(PythonApi, NumbersThatExecuTorchWouldCutAreRefused) {
  const ws_option option{"weight_offload_budget_mb", WS_OPTION_INT, std::int64_t{1} << 40, nullptr};
  EXPECT_EQ(wsm_open("a.pte", "a.ptd", &option, 1), nullptr);
  EXPECT_NE(std::strstr(ws_last_error(), "'weight_offload_budget_mb': 1099511627776 does not fit"), nullptr);
}

TEST(PythonApi, LoadsAndCounts) {
  REQUIRE_MODEL(model);
  wsm_module* module = wsm_open(model.pte.c_str(), model.ptd.c_str(), nullptr, 0);
  ASSERT_NE(module, nullptr) << ws_last_error();
  EXPECT_EQ(wsm_stats_json(module, "forward"), nullptr);
  EXPECT_EQ(wsm_load_method(module, "forward"), 0) << ws_last_error();
  const char* json = wsm_stats_json(module, "forward");
  ASSERT_NE(json, nullptr) << ws_last_error();
  EXPECT_NE(std::strstr(json, "\"passes\": 0"), nullptr) << json;
  EXPECT_NE(wsm_execute(module, "forward", nullptr, 0), 0);
  EXPECT_NE(std::strstr(ws_last_error(), ", 0 were given"), nullptr) << ws_last_error();
  EXPECT_NE(wsm_execute(module, "backward", nullptr, 0), 0);
  EXPECT_NE(std::strstr(ws_last_error(), "'backward' is missing"), nullptr) << ws_last_error();
  wsm_value output;
  EXPECT_NE(wsm_output(module, 0, &output), 0);
  EXPECT_STREQ(ws_last_error(), "output 0 is none of the last execution");
  wsm_close(module);
}

TEST(PythonApi, WhatIsNoTensorIsNamed) {
  REQUIRE_MODEL(model, "demo");
  wsm_module* module = wsm_open(model.pte.c_str(), model.ptd.c_str(), nullptr, 0);
  ASSERT_NE(module, nullptr) << ws_last_error();
  wsm_value value{};
  value.kind = WSM_INT;
  value.integer = 3;
  EXPECT_NE(wsm_execute(module, "forward", &value, 1), 0);
  EXPECT_STREQ(ws_last_error(), "invalid input: input 0: expected a tensor, as at export, found 3");
  value.kind = WSM_NONE;
  EXPECT_NE(wsm_execute(module, "forward", &value, 1), 0);
  EXPECT_STREQ(ws_last_error(), "invalid input: input 0: expected a tensor, as at export, found None");
  value.kind = 77;
  EXPECT_NE(wsm_execute(module, "forward", &value, 1), 0);
  EXPECT_STREQ(ws_last_error(), "invalid input: input 0: it has the kind 77");
  wsm_close(module);
}

TEST(PythonApi, NothingIsReadBeyondAnInputsBytes) {
  REQUIRE_MODEL(model, "demo");
  wsm_module* module = wsm_open(model.pte.c_str(), model.ptd.c_str(), nullptr, 0);
  ASSERT_NE(module, nullptr) << ws_last_error();
  float data[6] = {};
  const std::int64_t sizes[] = {2, 3};
  const std::int64_t strides[] = {1, 2};
  const std::int64_t far[] = {std::int64_t{1} << 40, 1};
  wsm_value value{};
  for (const std::int64_t* given : {static_cast<const std::int64_t*>(nullptr), strides}) {
    value.tensor = {data, sizeof(data) - 1, 6, 2, sizes, given, WS_DEVICE_CPU, 0};
    EXPECT_NE(wsm_execute(module, "forward", &value, 1), 0);
    EXPECT_STREQ(ws_last_error(), "invalid input: input 0: its sizes and strides reach beyond its 23 bytes");
  }
  value.tensor.strides = far;
  EXPECT_NE(wsm_execute(module, "forward", &value, 1), 0);
  EXPECT_STREQ(ws_last_error(), "invalid input: input 0: a size or a stride does not fit into 31 bits");
  wsm_close(module);
}

}  // namespace
