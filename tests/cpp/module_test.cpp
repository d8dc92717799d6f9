// weightstream::Module: files that are wrong, and exported programs.

#include "weightstream/module.h"

#include <executorch/extension/tensor/tensor.h>

#include "support.h"

namespace {

using executorch::runtime::Error;
using executorch::runtime::EValue;
using weightstream::Module;
using weightstream::Options;
using weightstream::test::TempDir;

TEST(Module, IsAModuleOfExecuTorch) {
  Module module("/nowhere/a.pte", "/nowhere/a.ptd");
  executorch::extension::Module* base = &module;
  EXPECT_NE(dynamic_cast<Module*>(base), nullptr);
}

TEST(Module, MissingAndDamagedProgramsAreNamed) {
  Module missing("/nowhere/a.pte", "/nowhere/a.ptd");
  EXPECT_NE(missing.load(), Error::Ok);
  EXPECT_NE(weightstream::last_error().find("/nowhere/a.pte"), std::string::npos) << weightstream::last_error();
  const TempDir dir;
  const std::string junk = dir.write("junk.pte", std::string(5000, 'x'));
  Module damaged(junk, junk);
  EXPECT_NE(damaged.load(), Error::Ok);
  EXPECT_NE(weightstream::last_error().find("junk.pte: malformed"), std::string::npos) << weightstream::last_error();
}

TEST(Module, RequiredBudgetOfAMissingProgram) {
  const auto budget = weightstream::required_budget("/nowhere/a.pte");
  EXPECT_EQ(budget.error(), Error::AccessFailed);
}

TEST(Module, StatsNeedALoadedMethod) {
  Module module("/nowhere/a.pte", "/nowhere/a.ptd");
  EXPECT_EQ(module.stats().error(), Error::NotFound);
  EXPECT_NE(weightstream::last_error().find("'forward' is not loaded"), std::string::npos);
}

TEST(Module, BudgetTakesEffectAndIsCounted) {
  REQUIRE_MODEL(model);
  const auto required = weightstream::required_budget(model.pte);
  ASSERT_TRUE(required.ok()) << weightstream::last_error();
  Module module(model.pte, model.ptd, Options().budget_bytes(*required + 4096));
  // Through the base: options must take effect however the method is loaded.
  executorch::extension::Module& base = module;
  ASSERT_EQ(base.load_method("forward"), Error::Ok) << weightstream::last_error();
  const auto stats = module.stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->budget_bytes, *required + 4096);
  EXPECT_EQ(stats->floor_bytes, *required);
  EXPECT_EQ(*module.required_budget(), *required);
  EXPECT_TRUE(module.unload_method("forward"));
  EXPECT_EQ(module.stats().error(), Error::NotFound);
}

TEST(Module, TwoModulesHaveTheirOwnCounters) {
  REQUIRE_MODEL(model);
  const std::uint64_t required = *weightstream::required_budget(model.pte);
  Module first(model.pte, model.ptd, Options().budget_bytes(required));
  Module second(model.pte, model.ptd, Options().budget_bytes(required + 64));
  ASSERT_EQ(first.load_method("forward"), Error::Ok) << weightstream::last_error();
  ASSERT_EQ(second.load_method("forward"), Error::Ok) << weightstream::last_error();
  EXPECT_EQ(first.stats()->budget_bytes, required);
  EXPECT_EQ(second.stats()->budget_bytes, required + 64);
}

TEST(Module, WrongInputsAreExplained) {
  REQUIRE_MODEL(model);
  Module module(model.pte, model.ptd);
  const std::vector<EValue> none;
  EXPECT_FALSE(module.forward(none).ok());
  EXPECT_NE(weightstream::last_error().find("inputs, 0 were given"), std::string::npos) << weightstream::last_error();
  const auto meta = module.method_meta("forward");
  ASSERT_TRUE(meta.ok());
  const auto odd = executorch::extension::make_tensor_ptr({1, 1, 1, 1, 1, 3}, std::vector<double>(3));
  const std::vector<EValue> wrong(meta->num_inputs(), EValue(odd));
  EXPECT_FALSE(module.forward(wrong).ok());
  EXPECT_NE(weightstream::last_error().find("input 0"), std::string::npos) << weightstream::last_error();
}

TEST(Module, UnknownMethodIsNamed) {
  REQUIRE_MODEL(model);
  Module module(model.pte, model.ptd);
  EXPECT_FALSE(module.execute("backward").ok());
  EXPECT_NE(weightstream::last_error().find("'backward' is missing"), std::string::npos) << weightstream::last_error();
}

TEST(Module, LoadedAndEndedOftenGivesTheSameCounters) {
  REQUIRE_MODEL(model);
  for (int round = 0; round < 20; ++round) {
    Module module(model.pte, model.ptd);
    ASSERT_EQ(module.load_method("forward"), Error::Ok) << weightstream::last_error();
    EXPECT_EQ(module.stats()->passes, 0u);
  }
}

}  // namespace
