// A child made by fork: what the parent loaded is refused there with the reason, its end is harmless, and a load of the
// child's own works.

#include <executorch/extension/module/module.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "support.h"
#include "weightstream/backend.h"
#include "weightstream/module.h"
#include "weightstream/weightstream.h"

namespace {

using executorch::runtime::Error;
using executorch::runtime::EValue;

// Runs `body` in a child, which returns how many of its expectations failed; one that hangs is ended.
template <typename Body>
void in_child(Body body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended with status " << status;
}

void expect_reason(const std::string& text, pid_t parent) {
  EXPECT_NE(text.find("process " + std::to_string(parent)), std::string::npos) << text;
  EXPECT_NE(text.find("process " + std::to_string(getpid())), std::string::npos) << text;
  EXPECT_NE(text.find("fork"), std::string::npos) << text;
}

ws_model* load(const weightstream::test::Model& model) {
  const ws_program program{nullptr, 0, model.pte.c_str()};
  ws_model* loaded = nullptr;
  EXPECT_EQ(ws_init(&program, model.ptd.c_str(), "forward", nullptr, &loaded), WS_OK) << ws_last_error();
  return loaded;
}

TEST(Fork, AModelOfTheParentIsRefusedInAChild) {
  REQUIRE_MODEL(model);
  const pid_t parent = getpid();
  ws_model* loaded = load(model);
  in_child([&] {
    ws_outputs* outputs = nullptr;
    EXPECT_EQ(ws_execute(loaded, nullptr, 0, &outputs), WS_POISONED);
    expect_reason(ws_last_error(), parent);
    EXPECT_EQ(ws_execute_into(loaded, nullptr, 0, nullptr, 0), WS_POISONED);
    ws_stats_data stats{};
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(ws_stats(loaded, &stats), WS_POISONED);
    const char* json = nullptr;
    EXPECT_EQ(ws_stats_json(loaded, &json), WS_POISONED);
    expect_reason(ws_last_error(), parent);
    ws_destroy(loaded);
    if (!weightstream::test::models_are_for_cuda()) {
      ws_destroy(load(model));
    }
  });
  ws_stats_data stats{};
  stats.struct_size = sizeof(stats);
  EXPECT_EQ(ws_stats(loaded, &stats), WS_OK) << ws_last_error();
  ws_destroy(loaded);
}

TEST(Fork, AModuleOfTheParentIsRefusedInAChild) {
  REQUIRE_MODEL(model);
  const pid_t parent = getpid();
  auto module = std::make_unique<weightstream::Module>(model.pte, model.ptd);
  ASSERT_EQ(module->load_method("forward"), Error::Ok) << weightstream::last_error();
  in_child([&] {
    EXPECT_EQ(module->execute("forward", std::vector<EValue>()).error(), Error::InvalidState);
    expect_reason(weightstream::last_error(), parent);
    EXPECT_EQ(module->stats().error(), Error::InvalidState);
    EXPECT_EQ(module->load(), Error::InvalidState);
    expect_reason(weightstream::last_error(), parent);
    module.reset();
    if (!weightstream::test::models_are_for_cuda()) {
      weightstream::Module own(model.pte, model.ptd);
      EXPECT_EQ(own.load_method("forward"), Error::Ok) << weightstream::last_error();
    }
  });
  EXPECT_TRUE(module->stats().ok()) << weightstream::last_error();
}

// What is only opened is nobody's yet. In a process of its own: other tests of this one may have initialised a GPU's
// driver, which no child can use then.
TEST(Fork, AModuleThatIsNotLoadedCanBeLoadedInAChild) {
  REQUIRE_MODEL(model);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        weightstream::Module module(model.pte, model.ptd);
        in_child([&] { EXPECT_EQ(module.load_method("forward"), Error::Ok) << weightstream::last_error(); });
        std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

// ExecuTorch's own Module knows nothing of the backend.
TEST(Fork, AStockModuleOfTheParentEndsInAChild) {
  REQUIRE_MODEL(model);
  using Stock = executorch::extension::Module;
  auto module = std::make_unique<Stock>(model.pte, model.ptd, Stock::LoadMode::Mmap);
  ASSERT_EQ(module->load_method("forward"), Error::Ok) << weightstream::last_error();
  in_child([&] { module.reset(); });
}

}  // namespace
