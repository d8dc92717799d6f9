// Programs of several methods, through ExecuTorch's own Module, ours and the C interface: one store and one state for
// each loaded program; sessions with a state of their own.

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/backend/options.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support.h"
#include "weightstream/module.h"
#include "weightstream/weightstream.h"

namespace {

namespace et = executorch::runtime;
using executorch::extension::from_blob;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using Stock = executorch::extension::Module;
using Floats = std::vector<float>;
using Tokens = std::vector<std::int64_t>;

const Tokens kPrompts[] = {{3, 1, 4, 1, 5}, {200, 7, 90}};
const Tokens kSteps = {9, 2, 6};

Tokens positions(std::size_t start, std::size_t count) {
  Tokens found(count);
  std::iota(found.begin(), found.end(), static_cast<std::int64_t>(start));
  return found;
}

// One call: tokens from position `start` on.
Floats run(Stock& module, const char* method, Tokens tokens, std::size_t start) {
  Tokens places = positions(start, tokens.size());
  const int count = static_cast<int>(tokens.size());
  const auto text = from_blob(tokens.data(), {1, count}, executorch::aten::ScalarType::Long);
  const auto where = from_blob(places.data(), {count}, executorch::aten::ScalarType::Long);
  const auto outputs = module.execute(method, {EValue(text), EValue(where)});
  EXPECT_TRUE(outputs.ok()) << method << ": " << weightstream::last_error();
  if (!outputs.ok()) {
    return {};
  }
  const auto& tensor = outputs->front().toTensor();
  const auto* data = tensor.const_data_ptr<float>();
  return {data, data + tensor.numel()};
}

// A prompt, then tokens one by one.
std::vector<Floats> play(Stock& module, const Tokens& prompt) {
  std::vector<Floats> found{run(module, "prefill", prompt, 0)};
  for (std::size_t at = 0; at < kSteps.size(); ++at) {
    found.push_back(run(module, "decode", {kSteps[at]}, prompt.size() + at));
  }
  return found;
}

std::vector<Floats> reference(const weightstream::test::Model& model, const Tokens& prompt) {
  weightstream::Module module(model.pte, model.ptd, weightstream::Options().budget_mb(64));
  return play(module, prompt);
}

class StockPrograms : public ::testing::TestWithParam<Stock::LoadMode> {};

// Methods find their own program, though both are of one file and their loads take turns; they end in any order.
TEST_P(StockPrograms, TwoModulesOfOneFileHaveTwoStates) {
  REQUIRE_MODEL(model, "methods_decoder");
  const std::vector<Floats> expected[] = {reference(model, kPrompts[0]), reference(model, kPrompts[1])};
  for (const int last : {0, 1}) {
    std::unique_ptr<Stock> modules[] = {std::make_unique<Stock>(model.pte, model.ptd, GetParam()),
                                        std::make_unique<Stock>(model.pte, model.ptd, GetParam())};
    for (const char* method : {"prefill", "decode"}) {
      for (const auto& module : modules) {
        ASSERT_EQ(module->load_method(method), Error::Ok) << weightstream::last_error();
      }
    }
    std::vector<Floats> found[2];
    for (const int at : {0, 1}) {
      found[at].push_back(run(*modules[at], "prefill", kPrompts[at], 0));
    }
    for (std::size_t step = 0; step < kSteps.size(); ++step) {
      for (const int at : {1, 0}) {
        found[at].push_back(run(*modules[at], "decode", {kSteps[step]}, kPrompts[at].size() + step));
      }
    }
    EXPECT_EQ(found[0], expected[0]);
    EXPECT_EQ(found[1], expected[1]);
    modules[1 - last].reset();
    // The method that loaded the program may go before the others.
    ASSERT_TRUE(modules[last]->unload_method("prefill"));
    run(*modules[last], "decode", {1}, 9);
    ASSERT_EQ(modules[last]->load_method("prefill"), Error::Ok) << weightstream::last_error();
    EXPECT_EQ(play(*modules[last], kPrompts[last]), expected[last]);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, StockPrograms, ::testing::Values(Stock::LoadMode::Mmap, Stock::LoadMode::File),
                         [](const auto& info) { return info.param == Stock::LoadMode::File ? "File" : "Mmap"; });

TEST(StockProgram, AnotherBudgetAtALaterLoadIsRefused) {
  REQUIRE_MODEL(model, "methods_decoder");
  Stock module(model.pte, model.ptd, Stock::LoadMode::Mmap);
  const auto load = [&](const char* method, int mb) {
    et::BackendOptions<1> options;
    EXPECT_EQ(options.set_option("weight_offload_budget_mb", mb), Error::Ok);
    et::LoadBackendOptionsMap map;
    EXPECT_EQ(map.set_options(weightstream::kBackendId, options.view()), Error::Ok);
    return module.load_method(method, nullptr, nullptr, &map);
  };
  ASSERT_EQ(load("prefill", 8), Error::Ok) << weightstream::last_error();
  EXPECT_NE(load("decode", 9), Error::Ok);
  const std::string text = weightstream::last_error();
  EXPECT_NE(text.find("weight_offload_budget_mb"), std::string::npos) << text;
  EXPECT_NE(text.find("9"), std::string::npos) << text;
  EXPECT_NE(text.find("8"), std::string::npos) << text;
  EXPECT_EQ(load("decode", 8), Error::Ok) << weightstream::last_error();
}

TEST(Sessions, OfAModuleHaveStatesOfTheirOwn) {
  REQUIRE_MODEL(model, "methods_decoder");
  auto first =
      std::make_unique<weightstream::Module>(model.pte, model.ptd, weightstream::Options().concurrent("refuse"));
  const auto methods = first->methods();
  ASSERT_TRUE(methods.ok());
  EXPECT_EQ(*methods, (std::vector<std::string>{"decode", "prefill"}));
  auto session = first->new_session();
  ASSERT_TRUE(session.ok()) << weightstream::last_error();
  const auto expected = play(*first, kPrompts[0]);
  EXPECT_EQ(play(**session, kPrompts[1]), reference(model, kPrompts[1]));
  const auto stats = (*session)->stats("prefill");
  ASSERT_TRUE(stats.ok());
  EXPECT_GT(stats->session_bytes, 0u);
  EXPECT_EQ(stats->passes, 2 * (1 + kSteps.size()));
  // A token that sees what the first call has left, and one that does not.
  const Floats seen = run(**session, "decode", {5}, 9);
  ASSERT_EQ((*session)->reset_state(), Error::Ok) << weightstream::last_error();
  EXPECT_NE(run(**session, "decode", {5}, 9), seen);
  EXPECT_EQ(play(*first, kPrompts[0]), expected);
  first.reset();
  EXPECT_EQ(play(**session, kPrompts[0]), expected);
}

// A loaded method of the C interface.
struct Loaded {
  ws_model* model = nullptr;
  ~Loaded() { ws_destroy(model); }
};

Floats run(ws_model* model, Tokens tokens, std::size_t start) {
  Tokens places = positions(start, tokens.size());
  const std::int64_t sizes[] = {1, static_cast<std::int64_t>(tokens.size())};
  ws_tensor inputs[2] = {};
  inputs[0] = {tokens.data(), tokens.size() * 8, 4, 2, sizes, nullptr, 0, 0};
  inputs[1] = {places.data(), places.size() * 8, 4, 1, sizes + 1, nullptr, 0, 0};
  ws_outputs* outputs = nullptr;
  EXPECT_EQ(ws_execute(model, inputs, 2, &outputs), WS_OK) << ws_last_error();
  ws_tensor output{};
  if (ws_outputs_get(outputs, 0, &output) != WS_OK) {
    return {};
  }
  Floats found(output.nbytes / sizeof(float));
  std::memcpy(found.data(), output.data, output.nbytes);
  ws_outputs_destroy(outputs);
  return found;
}

TEST(CInterface, MethodsAndSessionsOfAProgram) {
  REQUIRE_MODEL(model, "methods_decoder");
  const char* name = nullptr;
  std::vector<std::string> names;
  while (ws_method_name(model.pte.c_str(), names.size(), &name) == WS_OK) {
    names.emplace_back(name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"decode", "prefill"}));
  const ws_program program{nullptr, 0, model.pte.c_str()};
  Loaded prefill, decode, other;
  ASSERT_EQ(ws_init(&program, model.ptd.c_str(), "prefill", nullptr, &prefill.model), WS_OK) << ws_last_error();
  ASSERT_EQ(ws_init_method(prefill.model, &program, "decode", &decode.model), WS_OK) << ws_last_error();
  const auto expected = reference(model, kPrompts[0]);
  EXPECT_EQ(run(prefill.model, kPrompts[0], 0), expected[0]);
  EXPECT_EQ(run(decode.model, {kSteps[0]}, kPrompts[0].size()), expected[1]);
  ASSERT_EQ(ws_new_session(prefill.model, &program, "decode", &other.model), WS_OK) << ws_last_error();
  const Floats fresh = run(other.model, {5}, 9);
  EXPECT_NE(run(decode.model, {5}, 9), fresh);
  ASSERT_EQ(ws_reset_state(prefill.model), WS_OK);
  EXPECT_EQ(run(decode.model, {5}, 9), fresh);
  std::uint64_t whole = 0, one = 0;
  EXPECT_EQ(ws_required_budget(model.pte.c_str(), nullptr, &whole), WS_OK);
  EXPECT_EQ(ws_required_budget(model.pte.c_str(), "decode", &one), WS_OK);
  EXPECT_EQ(whole, one);
  REQUIRE_MODEL(mlp, "mlp");
  const ws_program another{nullptr, 0, mlp.pte.c_str()};
  Loaded none;
  EXPECT_EQ(ws_init_method(prefill.model, &another, "forward", &none.model), WS_MISMATCH) << ws_last_error();
  EXPECT_EQ(ws_init_method(nullptr, &program, "decode", &none.model), WS_INVALID_ARGUMENT);
}

}  // namespace
