// Misuse of the C interface: every wrong argument is an error with a text, and nothing is written.

#include <cstring>
#include <thread>

#include "support.h"
#include "weightstream/weightstream.h"

extern "C" int weightstream_header_is_c(void);

namespace {

using weightstream::test::TempDir;

ws_model* const kUntouched = reinterpret_cast<ws_model*>(0x1234);

ws_program by_path(const char* path) { return ws_program{nullptr, 0, path}; }

TEST(CApi, HeaderIsC) { EXPECT_GT(weightstream_header_is_c(), 0); }

TEST(CApi, VersionIsANumber) { EXPECT_NE(std::strchr(ws_version(), '.'), nullptr); }

TEST(CApi, NullArgumentsAreNamed) {
  ws_model* model = kUntouched;
  const ws_program program = by_path("a.pte");
  EXPECT_EQ(ws_init(nullptr, "a.ptd", "forward", nullptr, &model), WS_INVALID_ARGUMENT);
  EXPECT_STREQ(ws_last_error(), "invalid argument: argument 'program' is NULL");
  EXPECT_EQ(ws_required_budget(nullptr, "forward", nullptr), WS_INVALID_ARGUMENT);
  EXPECT_STREQ(ws_last_error(), "invalid argument: argument 'pte_path' is NULL");
  EXPECT_EQ(ws_execute(nullptr, nullptr, 0, nullptr), WS_INVALID_ARGUMENT);
  EXPECT_STREQ(ws_last_error(), "invalid argument: argument 'model' is NULL");
  EXPECT_EQ(ws_stats(nullptr, nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_stats_json(nullptr, nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_outputs_get(nullptr, 0, nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_outputs_count(nullptr), 0u);
  EXPECT_EQ(model, kUntouched);
  (void)program;
}

TEST(CApi, NullIsEnded) {
  ws_destroy(nullptr);
  ws_outputs_destroy(nullptr);
}

TEST(CApi, ProgramIsBytesOrPath) {
  ws_model* model = kUntouched;
  ws_program program{nullptr, 0, nullptr};
  EXPECT_EQ(ws_init(&program, "a.ptd", "forward", nullptr, &model), WS_INVALID_ARGUMENT);
  program = ws_program{"x", 1, "a.pte"};
  EXPECT_EQ(ws_init(&program, "a.ptd", "forward", nullptr, &model), WS_INVALID_ARGUMENT);
  EXPECT_EQ(model, kUntouched);
}

TEST(CApi, MissingAndDamagedFilesAreNamed) {
  const TempDir dir;
  ws_model* model = kUntouched;
  ws_program program = by_path("/nowhere/a.pte");
  EXPECT_EQ(ws_init(&program, "a.ptd", "forward", nullptr, &model), WS_IO);
  EXPECT_NE(std::strstr(ws_last_error(), "/nowhere/a.pte"), nullptr);
  const std::string damaged = dir.write("damaged.pte", std::string(200, 'x'));
  program = by_path(damaged.c_str());
  EXPECT_EQ(ws_init(&program, "a.ptd", "forward", nullptr, &model), WS_MALFORMED);
  EXPECT_NE(std::strstr(ws_last_error(), "damaged.pte: malformed at byte"), nullptr);
  const std::string bytes(200, 'y');
  program = ws_program{bytes.data(), bytes.size(), nullptr};
  EXPECT_EQ(ws_init(&program, "a.ptd", "forward", nullptr, &model), WS_MALFORMED);
  EXPECT_NE(std::strstr(ws_last_error(), "in memory"), nullptr);
  EXPECT_EQ(model, kUntouched);
}

TEST(CApi, EmptyProgramIsMalformed) {
  const TempDir dir;
  const std::string empty = dir.write("empty.pte", "");
  std::uint64_t bytes = 77;
  EXPECT_EQ(ws_required_budget(empty.c_str(), "forward", &bytes), WS_MALFORMED) << ws_last_error();
  EXPECT_EQ(bytes, 77u);
}

TEST(CApi, NamesThatAreNotUtf8AreRefused) {
  std::uint64_t bytes = 0;
  EXPECT_EQ(ws_required_budget("a.pte", "forw\xff", &bytes), WS_INVALID_ARGUMENT);
  EXPECT_STREQ(ws_last_error(), "invalid argument: argument 'method' is not UTF-8");
}

TEST(CApi, EachThreadHasItsOwnText) {
  EXPECT_EQ(ws_stats(nullptr, nullptr), WS_INVALID_ARGUMENT);
  std::thread([] { EXPECT_STREQ(ws_last_error(), ""); }).join();
  EXPECT_STRNE(ws_last_error(), "");
}

TEST(CApi, LogGoesToTheSink) {
  ws_set_log([](ws_log_level, const char*) {});
  ws_set_log(nullptr);
}

}  // namespace
