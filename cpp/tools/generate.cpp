// weightstream-generate: the most probable tokens after a prompt, by a program with the methods `prefill` and `decode`,
// called as ExecuTorch's LLM runners call them. Tokens are numbers: a tokenizer is the caller's.

#include <executorch/extension/tensor/tensor.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "arguments.h"
#include "weightstream/module.h"
#include "words.h"

namespace weightstream::tool {

namespace {

using executorch::aten::ScalarType;
using executorch::extension::from_blob;
using executorch::runtime::EValue;

constexpr const char* kPrefill = "prefill";
constexpr const char* kDecode = "decode";

struct Arguments {
  Files files;
  std::vector<std::int64_t> prompt;
  int count = 32;
  bool ignore_eos = false;
  bool json = false;
  Options options;
};

std::function<bool(const char*)> tokens(std::vector<std::int64_t>& to) {
  return [&to](const char* value) {
    to.clear();
    const std::string given = value;
    for (std::size_t at = 0; at <= given.size();) {
      const std::size_t end = std::min(given.find(',', at), given.size());
      const auto token = parse_number(given.substr(at, end - at).c_str(), std::numeric_limits<std::int64_t>::max());
      if (!token) {
        return false;
      }
      to.push_back(static_cast<std::int64_t>(*token));
      at = end + 1;
    }
    return true;
  };
}

Command command(Arguments& arguments) {
  std::vector<Flag> flags = {
      {"tokens", "N,N,...", "the prompt; it has to be given", tokens(arguments.prompt)},
      {"count", "N", "how many tokens to generate (32)", number([&](int count) { arguments.count = count; }, 1)},
      {"ignore-eos", nullptr, "go on after a token that ends a text", present(arguments.ignore_eos)},
  };
  for (Flag& flag : load_flags(arguments.options)) {
    flags.push_back(std::move(flag));
  }
  flags.push_back({"json", nullptr, "print one JSON object instead of tokens as they come", present(arguments.json)});
  return {
      "weightstream-generate",
      "Prints the most probable tokens after a prompt, by a program with the methods prefill and decode. Times and\n"
      "copied bytes go to standard error.",
      std::move(flags), [&] {
        const std::string missing = "no prompt: give it with --tokens 1,2,3";
        return arguments.prompt.empty() ? missing : check_options(arguments.options);
      }};
}

struct Result {
  std::vector<std::int64_t> tokens;
  double load_ms = 0;
  double prefill_ms = 0;
  double decode_ms = 0;  // of all tokens but the first one
  std::uint64_t decode_bytes = 0;
  Stats stats;

  double decoded() const { return static_cast<double>(tokens.size() - 1); }
  double tokens_per_second() const { return decode_ms > 0 ? 1000 * decoded() / decode_ms : 0; }
  double bytes_per_token() const { return decoded() > 0 ? static_cast<double>(decode_bytes) / decoded() : 0; }
};

class Clock {
 public:
  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The place of the largest number of the last row.
template <typename T>
std::int64_t largest(const executorch::aten::Tensor& logits) {
  const auto words = static_cast<std::size_t>(logits.size(logits.dim() - 1));
  const T* row = logits.const_data_ptr<T>() + (static_cast<std::size_t>(logits.numel()) - words);
  std::size_t best = 0;
  for (std::size_t word = 1; word < words; ++word) {
    best = static_cast<float>(row[word]) > static_cast<float>(row[best]) ? word : best;
  }
  return static_cast<std::int64_t>(best);
}

class Generator {
 public:
  Generator(const Files& files, const Options& options) : module_(files.program, files.weights, options) {
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
    longest_prompt_ = number_of("get_max_seq_len");
    context_ = names_.count("get_max_context_len") == 0 ? longest_prompt_ : number_of("get_max_context_len");
    if (names_.count("get_eos_ids") != 0) {
      const auto ends = module_.execute("get_eos_ids");
      check(ends.error(), "get_eos_ids");
      for (const EValue& end : *ends) {
        ends_.insert(end.toScalar().to<std::int64_t>());
      }
    }
    for (const char* name : {kPrefill, kDecode}) {
      check(module_.load_method(name), "load");
      const auto meta = module_.method_meta(name);
      check(meta.error(), "load");
      if (meta->num_inputs() != 2 || meta->num_outputs() != 1 || !meta->input_tensor_meta(1).ok()) {
        throw std::runtime_error(std::string("method '") + name + "' has " + counted(meta->num_inputs(), "input") +
                                 " and " + counted(meta->num_outputs(), "output") +
                                 "; expected tokens and a position, and logits");
      }
    }
    const auto words = module_.method_meta(kDecode)->output_tensor_meta(0);
    check(words.error(), "load");
    words_ = words->sizes()[words->sizes().size() - 1];
    load_ms_ = clock.ms();
  }

  // What fits into the program; an error tells what does not.
  void check_lengths(const std::vector<std::int64_t>& prompt, int count) const {
    const auto length = static_cast<std::int64_t>(prompt.size());
    if (length > longest_prompt_) {
      throw std::runtime_error("the prompt has " + counted(prompt.size(), "token") + ", and prefill takes at most " +
                               std::to_string(longest_prompt_) + " (get_max_seq_len)");
    }
    // The last token is not read again.
    if (length + count - 1 > context_) {
      throw std::runtime_error("a prompt of " + counted(prompt.size(), "token") + " and " + std::to_string(count) +
                               " more need " + std::to_string(length + count - 1) + " places in the cache, which has " +
                               std::to_string(context_) + " (get_max_context_len)");
    }
    for (const std::int64_t token : prompt) {
      if (token >= words_) {
        throw std::runtime_error("token " + std::to_string(token) + " is not in the vocabulary of " +
                                 std::to_string(words_) + " words");
      }
    }
  }

  // Calls `each` with every token as it comes.
  template <typename Each>
  Result run(std::vector<std::int64_t> prompt, int count, bool ignore_eos, Each each) {
    Result result;
    result.load_ms = load_ms_;
    auto position = static_cast<std::int64_t>(prompt.size());
    const auto take = [&](std::int64_t token) {
      result.tokens.push_back(token);
      each(token);
      return static_cast<int>(result.tokens.size()) == count || (!ignore_eos && ends_.count(token) != 0);
    };
    const Clock prefilling;
    bool done = take(next(kPrefill, prompt, 0));
    result.prefill_ms = prefilling.ms();
    const std::uint64_t before = stats().bytes_copied;
    const Clock decoding;
    while (!done) {
      std::vector<std::int64_t> last = {result.tokens.back()};
      done = take(next(kDecode, last, position++));
    }
    result.decode_ms = decoding.ms();
    result.stats = stats();
    result.decode_bytes = result.stats.bytes_copied - before;
    return result;
  }

 private:
  std::int64_t number_of(const char* constant) {
    if (names_.count(constant) == 0) {
      throw std::runtime_error(std::string("the program does not tell ") + constant +
                               ": export it with this constant method");
    }
    const auto value = module_.get(constant);
    check(value.error(), constant);
    return value->toScalar().to<std::int64_t>();
  }

  Stats stats() const {
    const auto stats = module_.stats(kPrefill);
    check(stats.error(), "stats");
    return *stats;
  }

  // The most probable token after these, the first of which is at `start`.
  std::int64_t next(const char* method, std::vector<std::int64_t>& tokens, std::int64_t start) {
    const auto length = static_cast<executorch::aten::SizesType>(tokens.size());
    // As in ExecuTorch's runners: a method takes one position, or those of all tokens.
    const auto second = module_.method_meta(method)->input_tensor_meta(1);
    check(second.error(), method);
    std::vector<std::int64_t> positions(second->sizes()[0] > 1 ? tokens.size() : 1);
    for (std::size_t at = 0; at < positions.size(); ++at) {
      positions[at] = start + static_cast<std::int64_t>(at);
    }
    const auto given = from_blob(tokens.data(), {1, length}, ScalarType::Long);
    const auto places =
        from_blob(positions.data(), {static_cast<executorch::aten::SizesType>(positions.size())}, ScalarType::Long);
    const auto outputs = module_.execute(method, {given, places});
    check(outputs.error(), method);
    const auto& logits = outputs->front().toTensor();
    switch (logits.scalar_type()) {
      case ScalarType::Float:
        return largest<float>(logits);
      case ScalarType::Half:
        return largest<executorch::aten::Half>(logits);
      case ScalarType::BFloat16:
        return largest<executorch::aten::BFloat16>(logits);
      default:
        throw std::runtime_error(std::string(method) + " gives logits of dtype " + dtype_name(logits.scalar_type()) +
                                 "; expected float32, float16 or bfloat16");
    }
  }

  Module module_;
  std::set<std::string> names_;
  std::unordered_set<std::int64_t> ends_;
  std::int64_t longest_prompt_ = 0;
  std::int64_t context_ = 0;
  std::int64_t words_ = 0;
  double load_ms_ = 0;
};

void print_json(const Result& result, std::size_t prompt) {
  std::printf("{\"tokens\": [");
  for (std::size_t at = 0; at < result.tokens.size(); ++at) {
    std::printf("%s%" PRId64, at == 0 ? "" : ", ", result.tokens[at]);
  }
  std::printf("], \"prompt_tokens\": %zu, \"load_ms\": %.3f, \"prefill_ms\": %.3f, \"decode_ms\": %.3f, ", prompt,
              result.load_ms, result.prefill_ms, result.decode_ms);
  std::printf("\"tokens_per_second\": %.3f, \"bytes_per_token\": %.0f, \"stats\": %s}\n", result.tokens_per_second(),
              result.bytes_per_token(), to_json(result.stats).c_str());
}

void print_figures(const Result& result, std::size_t prompt) {
  std::fprintf(stderr, "%-24s %16.3f\n", "load_ms", result.load_ms);
  std::fprintf(stderr, "%-24s %16.3f\n", ("prefill_ms, " + counted(prompt, "token")).c_str(), result.prefill_ms);
  std::fprintf(stderr, "%-24s %16.3f\n", "tokens_per_second", result.tokens_per_second());
  std::fprintf(stderr, "%-24s %16.0f\n", "bytes_per_token", result.bytes_per_token());
  std::fprintf(stderr, "%-24s %16" PRIu64 "\n", "peak_bytes", result.stats.peak_bytes);
  std::fprintf(stderr, "%-24s %16" PRIu64 "\n", "budget_bytes", result.stats.budget_bytes);
}

void run(const Arguments& arguments) {
  Generator generator(arguments.files, arguments.options);
  generator.check_lengths(arguments.prompt, arguments.count);
  const Result result =
      generator.run(arguments.prompt, arguments.count, arguments.ignore_eos, [&, first = true](auto token) mutable {
        if (!arguments.json) {
          std::printf("%s%" PRId64, first ? "" : " ", token);
          std::fflush(stdout);
          first = false;
        }
      });
  if (arguments.json) {
    print_json(result, arguments.prompt.size());
  } else {
    std::printf("\n");
    std::fflush(stdout);
    print_figures(result, arguments.prompt.size());
  }
}

}  // namespace

}  // namespace weightstream::tool

int main(int argc, char** argv) {
  using namespace weightstream::tool;
  Arguments arguments;
  const Command flags = command(arguments);
  if (const auto code = parse(flags, argc, argv, arguments.files)) {
    return *code;
  }
  try {
    run(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", flags.name, error.what());
    return 1;
  }
}
