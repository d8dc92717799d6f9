#include "generator.h"

#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <stdexcept>

#include "words.h"

namespace weightstream::tool {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::from_blob;
using executorch::runtime::EValue;

constexpr const char* kPrefill = "prefill";
constexpr const char* kDecode = "decode";
constexpr const char* kSettings = "get_llm_settings";
constexpr const char* kBatch = "get_max_batch_size";

// The last row.
template <typename T>
std::vector<float> last_row(const executorch::aten::Tensor& logits) {
  const auto words = static_cast<std::size_t>(logits.size(logits.dim() - 1));
  const T* row = logits.const_data_ptr<T>() + (static_cast<std::size_t>(logits.numel()) - words);
  return std::vector<float>(row, row + words);
}

}  // namespace

Generator::Generator(const Files& files, const Options& options) : module_(files.program, files.weights, options) {
  const Clock clock;
  const auto names = module_.method_names();
  check(names.error(), "load");
  names_ = std::set<std::string>(names->begin(), names->end());
  for (const char* name : {kPrefill, kDecode}) {
    if (names_.count(name) == 0) {
      throw std::runtime_error(std::string("the program has no method '") + name +
                               "', which it takes to generate; its methods are: " + own_methods(module_));
    }
  }
  find_constants();
  load_methods();
  load_ms_ = clock.ms();
}

void Generator::find_constants() {
  chunk_ = number_of("get_max_seq_len");
  context_ = names_.count("get_max_context_len") == 0 ? chunk_ : number_of("get_max_context_len");
  if (names_.count("get_eos_ids") != 0) {
    const auto ends = module_.execute("get_eos_ids");
    check(ends.error(), "get_eos_ids");
    for (const EValue& end : *ends) {
      ends_.insert(end.toScalar().to<std::int64_t>());
    }
  }
  if (names_.count(kSettings) != 0) {
    const auto settings = module_.get(kSettings);
    check(settings.error(), kSettings);
    settings_ = std::string(settings->toString());
  }
}

void Generator::load_methods() {
  for (const char* name : {kPrefill, kDecode}) {
    check(module_.load_method(name), "load");
    const auto meta = module_.method_meta(name);
    check(meta.error(), "load");
    if (names_.count(kBatch) != 0 && number_of(kBatch) > 1) {
      throw std::runtime_error("the program continues " + std::to_string(number_of(kBatch)) +
                               " texts at once (get_max_batch_size), and this command one: use weightstream.LLM in "
                               "Python, or export it without --batch");
    }
    if (meta->num_inputs() != 2 || meta->num_outputs() != 1 || !meta->input_tensor_meta(1).ok()) {
      throw std::runtime_error(std::string("method '") + name + "' has " + counted(meta->num_inputs(), "input") +
                               " and " + counted(meta->num_outputs(), "output") +
                               "; expected tokens and a position, and logits");
    }
  }
  const auto words = module_.method_meta(kDecode)->output_tensor_meta(0);
  check(words.error(), "load");
  words_ = words->sizes()[words->sizes().size() - 1];
}

std::int64_t Generator::number_of(const char* constant) {
  if (names_.count(constant) == 0) {
    throw std::runtime_error(std::string("the program does not tell ") + constant +
                             ": export it with this constant method");
  }
  const auto value = module_.get(constant);
  check(value.error(), constant);
  return value->toScalar().to<std::int64_t>();
}

Stats Generator::stats() const {
  const auto stats = module_.stats(kPrefill);
  check(stats.error(), "stats");
  return *stats;
}

void Generator::check_prompt(const std::vector<std::int64_t>& prompt, std::int64_t more) const {
  // The last token is not read again.
  const std::int64_t places = static_cast<std::int64_t>(prompt.size()) + more - 1;
  if (places > context_) {
    throw std::runtime_error("a prompt of " + counted(prompt.size(), "token") + " and " + std::to_string(more) +
                             " more need " + std::to_string(places) + " places in the cache, which has " +
                             std::to_string(context_) + " (get_max_context_len)");
  }
  for (const std::int64_t token : prompt) {
    if (token >= words_) {
      throw std::runtime_error("token " + std::to_string(token) + " is not in the vocabulary of " +
                               std::to_string(words_) + " words");
    }
  }
}

std::vector<float> Generator::read(const std::vector<std::int64_t>& text) {
  const auto both = static_cast<std::ptrdiff_t>(std::min(held_.size(), text.size()));
  const auto differs = std::mismatch(text.begin(), text.begin() + both, held_.begin()).first;
  auto at = std::min(differs, text.end() - 1);
  std::vector<float> logits;
  while (at != text.end()) {
    const auto end = at + std::min<std::ptrdiff_t>(text.end() - at, chunk_);
    // A pass that fails leaves the cache as the pass left it.
    held_.assign(text.begin(), at);
    logits = pass(end - at == 1 ? kDecode : kPrefill, {at, end}, at - text.begin());
    at = end;
  }
  held_ = text;
  return logits;
}

std::vector<float> Generator::pass(const char* method, std::vector<std::int64_t> tokens, std::int64_t start) {
  // As in ExecuTorch's runners: a method takes one position, or those of all tokens.
  const auto second = module_.method_meta(method)->input_tensor_meta(1);
  check(second.error(), method);
  std::vector<std::int64_t> positions(second->sizes()[0] > 1 ? tokens.size() : 1);
  for (std::size_t at = 0; at < positions.size(); ++at) {
    positions[at] = start + static_cast<std::int64_t>(at);
  }
  const auto given = from_blob(tokens.data(), {1, static_cast<SizesType>(tokens.size())}, ScalarType::Long);
  const auto places = from_blob(positions.data(), {static_cast<SizesType>(positions.size())}, ScalarType::Long);
  const auto outputs = module_.execute(method, {given, places});
  check(outputs.error(), method);
  const auto& logits = outputs->front().toTensor();
  switch (logits.scalar_type()) {
    case ScalarType::Float:
      return last_row<float>(logits);
    case ScalarType::Half:
      return last_row<executorch::aten::Half>(logits);
    case ScalarType::BFloat16:
      return last_row<executorch::aten::BFloat16>(logits);
    default:
      throw std::runtime_error(std::string(method) + " gives logits of dtype " + dtype_name(logits.scalar_type()) +
                               "; expected float32, float16 or bfloat16");
  }
}

}  // namespace weightstream::tool
