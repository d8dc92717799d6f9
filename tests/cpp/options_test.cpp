// Options of weightstream::Module: what reaches the backend, and what is refused.

#include "support.h"
#include "weightstream/module.h"

namespace {

using executorch::runtime::Error;
using weightstream::Module;
using weightstream::Options;

std::string refusal(const weightstream::test::Model& model, const Options& options) {
  Module module(model.pte, model.ptd, options);
  EXPECT_NE(module.load_method("forward"), Error::Ok);
  return weightstream::last_error();
}

TEST(Options, AreSpecsByName) {
  Options options;
  options.budget_bytes(123).policy("lru").set("weight_offload_verify", std::string("off"));
  ASSERT_EQ(options.specs().size(), 3u);
  EXPECT_EQ(options.specs()[0].first, "weight_offload_budget_bytes");
  EXPECT_EQ(std::get<std::string>(options.specs()[0].second), "123");
}

// What is wrong by itself needs no program.
TEST(Options, AreCheckedWithoutAProgram) {
  EXPECT_EQ(Options().check(), Error::Ok);
  EXPECT_EQ(Options().budget_mb(512).policy("lru").pte_sha256(std::string(64, '0')).check(), Error::Ok);
  EXPECT_EQ(Options().set("weight_offload_budget_mb", std::string("0.5")).check(), Error::Ok);
  EXPECT_EQ(Options().set("weight_offload_device", std::string("cuda:1")).check(), Error::Ok);
  EXPECT_EQ(Options().policy("fifo").check(), Error::InvalidArgument);
  EXPECT_NE(weightstream::last_error().find("'weight_offload_policy'"), std::string::npos);
  EXPECT_EQ(Options().set("unknown", 1).check(), Error::InvalidArgument);
}

TEST(Options, WrongOnesAreRefusedByName) {
  REQUIRE_MODEL(model);
  EXPECT_NE(refusal(model, Options().budget_mb(-1)).find("'weight_offload_budget_mb': takes a number from 0 up"),
            std::string::npos);
  EXPECT_NE(refusal(model, Options().budget_mb(0)).find("weight budget of 0 bytes is too small"), std::string::npos);
  EXPECT_NE(refusal(model, Options().budget_mb(1).budget_bytes(1 << 20)).find("not two"), std::string::npos);
  EXPECT_NE(refusal(model, Options().budget_auto().budget_mb(1)).find("not two"), std::string::npos);
  EXPECT_NE(refusal(model, Options().set("weight_offload_budget", std::string("most"))).find("takes 'auto'"),
            std::string::npos);
  EXPECT_NE(refusal(model, Options().host("swapped")).find("'mapped', 'pinned', 'staged'"), std::string::npos);
  EXPECT_NE(refusal(model, Options().staging_mb(0)).find("'weight_offload_staging_mb': takes a number from 1 up"),
            std::string::npos);
  EXPECT_NE(refusal(model, Options().device(-1)).find("the index of a GPU"), std::string::npos);
  EXPECT_NE(refusal(model, Options().policy("fifo")).find("'lru'"), std::string::npos);
  EXPECT_NE(refusal(model, Options().policy("fifo")).find("'planned'"), std::string::npos);
  EXPECT_NE(refusal(model, Options().verify("always")).find("'off', 'load'"), std::string::npos);
  EXPECT_NE(refusal(model, Options().set("weight_offload_verify", true)).find("the bool true"), std::string::npos);
  EXPECT_NE(
      refusal(model, Options().set("weight_offload_sync", 2)).find("takes true or false, or 1 or 0, not the int 2"),
      std::string::npos);
  EXPECT_NE(refusal(model, Options().set("weight_offload_cuda_graph", 2))
                .find("takes true or false, or 1 or 0, not the int 2"),
            std::string::npos);
  EXPECT_NE(refusal(model, Options().link_gbps(0))
                .find("takes a positive number of GB/s, at most 1000000, or 'auto', not the string '0'"),
            std::string::npos);
  if (!weightstream::test::models_are_for_cuda()) {
    EXPECT_NE(refusal(model, Options().link_gbps(12.5)).find("for 'cpu', which has no link"), std::string::npos);
    EXPECT_NE(refusal(model, Options().link_auto()).find("for 'cpu', which has no link"), std::string::npos);
  }
  EXPECT_NE(refusal(model, Options().link_gbps(12.5).policy("lru"))
                .find("under weight_offload_policy = lru nothing is planned"),
            std::string::npos);
  if (!weightstream::test::models_are_for_cuda()) {
    EXPECT_NE(refusal(model, Options().kernel_times("times.txt")).find("for 'cpu', where they do not count"),
              std::string::npos);
  }
  EXPECT_NE(refusal(model, Options().kernel_times("times.txt").policy("lru"))
                .find("under weight_offload_policy = lru nothing is planned"),
            std::string::npos);
  EXPECT_NE(refusal(model, Options().kernel_times("")).find("takes the path of a file of kernels' times"),
            std::string::npos);
  EXPECT_NE(refusal(model, Options().set("num_threads", 4)).find("'num_threads': is unknown"), std::string::npos);
}

TEST(Options, TheBudgetIsChosenAutomatically) {
  REQUIRE_MODEL(model);
  Module module(model.pte, model.ptd, Options().budget_auto());
  ASSERT_EQ(module.load_method("forward"), Error::Ok) << weightstream::last_error();
  const auto stats = module.stats();
  ASSERT_TRUE(stats.ok());
  // Any machine that runs the tests has room for all of a test model.
  EXPECT_EQ(stats->budget_bytes, stats->direct_bytes + stats->total_weight_bytes);
}

TEST(Options, OnlyThePinnedProgramIsLoaded) {
  REQUIRE_MODEL(model);
  const std::string pin = weightstream::test::sha256(model.pte);
  Module pinned(model.pte, model.ptd, Options().pte_sha256(pin));
  EXPECT_EQ(pinned.load_method("forward"), Error::Ok) << weightstream::last_error();

  const std::string other(64, '0');
  Module refused(model.pte, model.ptd, Options().pte_sha256(other));
  EXPECT_EQ(refused.load(), Error::InvalidExternalData);
  EXPECT_FALSE(refused.is_loaded());
  const std::string text = weightstream::last_error();
  EXPECT_NE(text.find("SHA-256 of the program differs"), std::string::npos) << text;
  EXPECT_NE(text.find(pin), std::string::npos) << text;
  EXPECT_NE(text.find(other), std::string::npos) << text;

  EXPECT_NE(refusal(model, Options().pte_sha256("12")).find("64 hexadecimal digits"), std::string::npos);
  EXPECT_NE(refusal(model, Options().pte_sha256(pin).pte_sha256(pin)).find("is given twice"), std::string::npos);
  EXPECT_NE(refusal(model, Options().set("weight_offload_pte_sha256", 1)).find("the int 1"), std::string::npos);
}

TEST(Options, EveryReadIsVerifiedWhereAsked) {
  REQUIRE_MODEL(model, "mlp");
  Module module(model.pte, model.ptd, Options().verify("every_read"));
  EXPECT_EQ(module.load_method("forward"), Error::Ok) << weightstream::last_error();
}

TEST(Options, LongTextsAreNeverCutInSilence) {
  REQUIRE_MODEL(model);
  EXPECT_NE(refusal(model, Options().policy(std::string(300, 'l'))).find("may have been cut"), std::string::npos);
  EXPECT_NE(refusal(model, Options().set(std::string(100, 'k'), 1)).find("is unknown"), std::string::npos);
}

TEST(Options, BelongToTheConstructor) {
  REQUIRE_MODEL(model);
  executorch::runtime::BackendOptions<1> options;
  options.set_option("weight_offload_budget_mb", 64);
  executorch::runtime::LoadBackendOptionsMap map;
  ASSERT_EQ(map.set_options(weightstream::kBackendId, options.view()), Error::Ok);
  Module module(model.pte, model.ptd);
  EXPECT_EQ(module.load(map), Error::InvalidArgument);
  EXPECT_NE(weightstream::last_error().find("constructor"), std::string::npos);
}

}  // namespace
