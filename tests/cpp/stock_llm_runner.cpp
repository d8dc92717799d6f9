// The calls of ExecuTorch 1.5's text LLM runner, without its tokenizer and sampler, which the wheel does not have:
// create_text_llm_runner, TextPrefiller, TextDecoderRunner and TextTokenGenerator of extension/llm/runner.
//
//     stock_llm_runner MODEL.pte WEIGHTS.ptd (file|mmap|mlock) COUNT TOKEN...
//
// Its Module is ExecuTorch's own, and knows nothing of WeightStream. Prints the tokens.

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "weightstream/backend.h"

namespace {

using executorch::aten::ScalarType;
using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Result;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s %s\n", what.c_str(), weightstream::last_error().c_str());
  std::exit(1);
}

template <typename T>
T unwrap(Result<T> result, const std::string& what) {
  if (!result.ok()) {
    fail(what);
  }
  return std::move(*result);
}

// get_llm_metadata
std::map<std::string, std::int64_t> metadata_of(Module& module, const std::unordered_set<std::string>& names) {
  std::map<std::string, std::int64_t> metadata = {{"enable_dynamic_shape", 0},
                                                  {"get_max_seq_len", 128},
                                                  {"get_max_context_len", 128},
                                                  {"use_kv_cache", 1},
                                                  {"use_sdpa_with_kv_cache", 0}};
  if (names.count("get_max_seq_len") == 0) {
    fail("no get_max_seq_len");
  }
  for (auto& [name, value] : metadata) {
    if (names.count(name) != 0) {
      value = unwrap(module.get(name), name).toScalar().to<std::int64_t>();
    }
  }
  return metadata;
}

// get_eos_ids
std::unordered_set<std::uint64_t> ends_of(Module& module, const std::unordered_set<std::string>& names) {
  std::unordered_set<std::uint64_t> ends;
  if (names.count("get_eos_ids") != 0) {
    for (const EValue& end : unwrap(module.execute("get_eos_ids"), "get_eos_ids")) {
      ends.insert(static_cast<std::uint64_t>(end.toScalar().to<std::int64_t>()));
    }
  }
  return ends;
}

// TextDecoderRunner::step, with populate_start_pos_or_cache_position and IOManager::prepare_decode.
EValue step(Module& module, const std::string& method, TensorPtr& tokens, std::int64_t start) {
  const auto meta = unwrap(module.method_meta(method), method);
  if (meta.num_inputs() != 2) {
    fail(method + " has no two inputs");
  }
  const auto places = unwrap(meta.input_tensor_meta(1), method);
  std::vector<std::int64_t> positions;
  TensorPtr position;
  if (places.sizes()[0] > 1) {
    for (std::int64_t at = 0; at < tokens->numel(); ++at) {
      positions.push_back(start + at);
    }
    position = from_blob(positions.data(), {static_cast<int>(positions.size())}, ScalarType::Long);
  } else {
    position = from_blob(&start, {1}, ScalarType::Long);
  }
  const std::vector<EValue> inputs = {tokens, position};
  const auto outputs = unwrap(module.execute(method, inputs), method);
  if (outputs.size() != 1 || !outputs[0].isTensor()) {
    fail(method + " does not give one tensor");
  }
  return outputs[0];
}

// sample_from_logits at temperature 0.
std::uint64_t sampled(const EValue& output) {
  const auto& logits = output.toTensor();
  const auto words = logits.size(logits.dim() - 1);
  const float* row = logits.const_data_ptr<float>();
  if (logits.dim() == 3) {
    row += (logits.size(1) - 1) * words;
  }
  return static_cast<std::uint64_t>(std::max_element(row, row + words) - row);
}

// TextPrefiller::prefill
std::uint64_t prefill(Module& module, const std::string& method, std::vector<std::uint64_t> prompt, std::int64_t& at,
                      std::int64_t longest) {
  std::uint64_t token = 0;
  for (std::size_t from = 0; from < prompt.size(); from += static_cast<std::size_t>(longest)) {
    const auto count = static_cast<int>(std::min<std::size_t>(prompt.size() - from, static_cast<std::size_t>(longest)));
    auto tokens = from_blob(prompt.data() + from, {1, count}, ScalarType::Long);
    token = sampled(step(module, method, tokens, at));
    at += count;
  }
  return token;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    fail("usage: stock_llm_runner MODEL.pte WEIGHTS.ptd (file|mmap|mlock) COUNT TOKEN...");
  }
  const std::map<std::string, Module::LoadMode> modes = {{"file", Module::LoadMode::File},
                                                         {"mmap", Module::LoadMode::Mmap},
                                                         {"mlock", Module::LoadMode::MmapUseMlockIgnoreErrors}};
  Module module(argv[1], std::vector<std::string>{argv[2]}, modes.at(argv[3]));
  const int count = std::atoi(argv[4]);
  std::vector<std::uint64_t> prompt;
  for (int at = 5; at < argc; ++at) {
    prompt.push_back(std::strtoull(argv[at], nullptr, 10));
  }

  // create_text_llm_runner
  const auto names = unwrap(module.method_names(), "method_names");
  const auto metadata = metadata_of(module, names);
  const auto ends = ends_of(module, names);
  const std::string first = names.count("forward") == 0 && names.count("prefill") != 0 ? "prefill" : "forward";
  const std::string next = names.count("decode") != 0 ? "decode" : first;
  if (metadata.at("use_kv_cache") == 0 || metadata.at("enable_dynamic_shape") == 0) {
    fail("the runner would fill the cache token by token, or not at all");
  }

  // TextLLMRunner::load and generate
  for (const std::string& method : {first, next}) {
    if (module.load_method(method) != Error::Ok) {
      fail("load " + method);
    }
  }
  if (static_cast<std::int64_t>(prompt.size()) >= metadata.at("get_max_context_len")) {
    fail("the prompt is too long");
  }
  std::int64_t at = 0;
  std::uint64_t token = prefill(module, first, prompt, at, metadata.at("get_max_seq_len"));
  std::printf("%llu", static_cast<unsigned long long>(token));

  // TextTokenGenerator::generate: one tensor over one place, whose value changes.
  std::vector<std::uint64_t> place = {token};
  auto tokens = from_blob(place.data(), {1, 1}, ScalarType::Long);
  for (int made = 1; made < count && ends.count(token) == 0; ++made) {
    token = sampled(step(module, next, tokens, at++));
    place[0] = token;
    std::printf(" %llu", static_cast<unsigned long long>(token));
  }
  std::printf("\n");
  return 0;
}
