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
  EXPECT_NE(std::strstr(ws_last_error(), "inputs, 0 were given"), nullptr) << ws_last_error();
  EXPECT_NE(wsm_execute(module, "backward", nullptr, 0), 0);
  EXPECT_NE(std::strstr(ws_last_error(), "'backward' is missing"), nullptr) << ws_last_error();
  ws_tensor tensor;
  EXPECT_NE(wsm_output(module, 0, &tensor), 0);
  wsm_close(module);
}

}  // namespace
