// weightstream::Module: files that are wrong, and exported programs.

#include "weightstream/module.h"

#include <executorch/extension/tensor/tensor.h>
#include <sys/stat.h>

#include "support.h"
#include "weightstream/weightstream.h"

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
  Module damaged(junk, dir.path("junk.ptd"));
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

TEST(Module, AMethodThatIsNotThereIsRefusedWithThoseThatAre) {
  REQUIRE_MODEL(model);
  Module module(model.pte, model.ptd);
  for (int time = 0; time < 2; ++time) {
    EXPECT_NE(module.load_method("foward"), Error::Ok);
    const std::string text = weightstream::last_error();
    EXPECT_NE(text.find("'foward' is missing in " + model.pte), std::string::npos) << text;
    EXPECT_NE(text.find("its methods are 'forward'"), std::string::npos) << text;
    EXPECT_FALSE(module.execute("foward", std::vector<EValue>()).ok());
    EXPECT_NE(weightstream::last_error().find("its methods are 'forward'"), std::string::npos);
  }
  EXPECT_EQ(module.load_method("forward"), Error::Ok) << weightstream::last_error();
}

TEST(Module, TheRangeOfAnInputIsTold) {
  REQUIRE_MODEL(model);
  Module module(model.pte, model.ptd);
  const auto meta = module.method_meta("forward");
  ASSERT_TRUE(meta.ok());
  const auto largest = meta->input_tensor_meta(0)->sizes();
  const auto range = module.input_range("forward", 0);
  ASSERT_TRUE(range.ok()) << weightstream::last_error();
  ASSERT_EQ(range->size(), largest.size());
  for (std::size_t dim = 0; dim < largest.size(); ++dim) {
    EXPECT_LE((*range)[dim].first, (*range)[dim].second);
    EXPECT_EQ((*range)[dim].second, largest[dim]);
  }
  EXPECT_TRUE(module.input_range("forward", 99)->empty());
  EXPECT_FALSE(module.input_range("foward", 0).ok());
}

TEST(Module, WrongInputsAreExplained) {
  REQUIRE_MODEL(model);
  Module module(model.pte, model.ptd);
  const std::vector<EValue> none;
  EXPECT_FALSE(module.forward(none).ok());
  EXPECT_NE(weightstream::last_error().find(", 0 were given"), std::string::npos) << weightstream::last_error();
  const auto meta = module.method_meta("forward");
  ASSERT_TRUE(meta.ok());
  const auto odd = executorch::extension::make_tensor_ptr({1, 1, 1, 1, 1, 3}, std::vector<double>(3));
  const std::vector<EValue> wrong(meta->num_inputs(), EValue(odd));
  EXPECT_FALSE(module.forward(wrong).ok());
  EXPECT_NE(weightstream::last_error().find("input 0"), std::string::npos) << weightstream::last_error();
}

// An input that may be smaller is not blamed for another one's fault.
TEST(Module, TheInputThatIsWrongIsNamed) {
  REQUIRE_MODEL(model, "kv_decoder");
  Module module(model.pte, model.ptd);
  const auto meta = module.method_meta("forward");
  ASSERT_TRUE(meta.ok());
  const std::size_t last = meta->num_inputs() - 1;
  ASSERT_GT(last, 0u);
  std::vector<executorch::extension::TensorPtr> tensors;
  for (std::size_t index = 0; index <= last; ++index) {
    const auto info = meta->input_tensor_meta(index);
    std::vector<executorch::aten::SizesType> sizes(info->sizes().begin(), info->sizes().end());
    if (index == 0) {
      sizes.back() -= 1;
    }
    tensors.push_back(executorch::extension::zeros(
        sizes, index == last ? executorch::aten::ScalarType::Double : info->scalar_type()));
  }
  const std::vector<EValue> inputs(tensors.begin(), tensors.end());
  EXPECT_FALSE(module.forward(inputs).ok());
  const std::string expected = "input " + std::to_string(last) + ": expected dtype";
  EXPECT_NE(weightstream::last_error().find(expected), std::string::npos) << weightstream::last_error();
}

TEST(Module, WhatIsNoFileAndOneFileForBothAreRefusedAtOnce) {
  REQUIRE_MODEL(model);
  const weightstream::test::TempDir dir;
  const std::string fifo = dir.path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const auto refusal = [](const std::string& pte, const std::string& ptd) {
    Module module(pte, ptd);
    EXPECT_EQ(module.load_method("forward"), Error::AccessFailed);
    return weightstream::last_error();
  };
  for (const auto& [pte, ptd] : {std::pair{fifo, model.ptd}, std::pair{model.pte, fifo}}) {
    const std::string text = refusal(pte, ptd);
    EXPECT_NE(text.find(fifo + ": cannot open: this is a FIFO"), std::string::npos) << text;
  }
  const std::string twice = refusal(model.pte, model.pte);
  EXPECT_NE(twice.find(model.pte + ": this file was given twice"), std::string::npos) << twice;
  std::uint64_t bytes = 0;
  EXPECT_EQ(ws_required_budget(fifo.c_str(), "forward", &bytes), WS_IO);
  const ws_program program{nullptr, 0, model.pte.c_str()};
  ws_model* loaded = nullptr;
  for (const std::string& ptd : {fifo, model.pte}) {
    EXPECT_EQ(ws_init(&program, ptd.c_str(), "forward", nullptr, &loaded), WS_IO) << ws_last_error();
  }
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
