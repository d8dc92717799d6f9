// weightstream-generate: the text or the tokens after a prompt, or a chat.

#include <unistd.h>

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "generator.h"
#include "sampling.h"
#include "weightstream-text/src/lib.rs.h"
#include "words.h"

namespace weightstream::tool {

namespace {

using Tokens = std::vector<std::int64_t>;

constexpr int kCount = 256;

struct Arguments {
  Files files;
  std::optional<std::string> prompt;
  std::string system;
  Tokens tokens;
  bool chat = false;
  bool show_prompt = false;
  std::optional<int> count;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> repetition_penalty;
  std::optional<int> top_k;
  std::uint64_t seed = 0;
  std::vector<std::string> stops;
  std::string tokenizer;
  bool ignore_eos = false;
  bool json = false;
  Options options;
};

std::function<bool(const char*)> tokens(Tokens& to) {
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

std::function<bool(const char*)> decimal(std::optional<float>& to) {
  return [&to](const char* value) {
    char* end = nullptr;
    to = std::strtof(value, &end);
    return end != value && *end == '\0' && std::isfinite(*to);
  };
}

std::string problem(const Arguments& arguments) {
  const int prompts = (arguments.chat || arguments.prompt ? 1 : 0) + (arguments.tokens.empty() ? 0 : 1);
  if (prompts != 1) {
    return prompts == 0 ? "no prompt: give it with --prompt TEXT, --chat or --tokens 1,2,3"
                        : "--tokens is a prompt, as --prompt and --chat are: give one of them";
  }
  if (!arguments.system.empty() && !arguments.chat) {
    return "--system is for a chat: give --chat too";
  }
  if (arguments.chat && arguments.json) {
    return "--json is for one answer, and --chat has several";
  }
  if (!arguments.tokens.empty() && (!arguments.stops.empty() || arguments.show_prompt)) {
    return std::string(arguments.show_prompt ? "--show-prompt" : "--stop") + " is for text, and --tokens gives tokens";
  }
  SamplingOptions sampling;
  sampling.temperature = arguments.temperature.value_or(sampling.temperature);
  sampling.top_p = arguments.top_p.value_or(sampling.top_p);
  sampling.repetition_penalty = arguments.repetition_penalty.value_or(sampling.repetition_penalty);
  const std::string wrong = sampling.problem();
  return wrong.empty() ? check_options(arguments.options) : wrong;
}

Command command(Arguments& arguments) {
  const auto given_text = [&](const char* value) {
    arguments.prompt = value;
    return true;
  };
  const auto stop = [&](const char* value) {
    arguments.stops.emplace_back(value);
    return *value != '\0';
  };
  std::vector<Flag> flags = {
      {"prompt", "TEXT", "the text to go on with; with --chat the first message", given_text},
      {"chat", nullptr, "answer messages, by the model's chat template; they come from --prompt and standard input",
       present(arguments.chat)},
      {"system", "TEXT", "what the chat begins with: a message of the role 'system'", text(arguments.system)},
      {"tokens", "N,N,...", "the prompt as tokens; tokens are printed then", tokens(arguments.tokens)},
      {"count", "N", "how many tokens to generate at most (256)",
       number([&](int count) { arguments.count = count; }, 1)},
      {"temperature", "X", "0 takes the most probable token; without it the model's default",
       decimal(arguments.temperature)},
      {"top-k", "N", "of the N most probable tokens; 0: of all", number([&](int most) { arguments.top_k = most; })},
      {"top-p", "X", "of the most probable tokens that have this share of the probability", decimal(arguments.top_p)},
      {"repetition-penalty", "X", "above 1 what was said is said less often", decimal(arguments.repetition_penalty)},
      {"seed", "N", "of the tokens that are drawn (0): one seed gives one text", number(arguments.seed)},
      {"stop", "TEXT", "end before this text; may be given several times", stop, true},
      {"tokenizer", "FILE", "its tokenizer; without it tokenizer.json beside MODEL.pte", text(arguments.tokenizer)},
      {"show-prompt", nullptr, "print the prompt as the model gets it, and its tokens, and generate nothing",
       present(arguments.show_prompt)},
      {"ignore-eos", nullptr, "go on after a token that ends a text", present(arguments.ignore_eos)},
  };
  for (Flag& flag : load_flags(arguments.options)) {
    flags.push_back(std::move(flag));
  }
  flags.push_back({"json", nullptr, "print one JSON object instead of text as it comes", present(arguments.json)});
  return {
      "weightstream-generate",
      "Generates text by a program that `weightstream llm export` wrote, or tokens by any program with the methods\n"
      "prefill and decode. Times and copied bytes go to standard error.",
      std::move(flags), [&] { return problem(arguments); }};
}

SamplingOptions sampling(const Arguments& arguments, const std::string& settings) {
  const Sampling defaults = defaults_of(settings);
  SamplingOptions found;
  found.temperature = arguments.temperature.value_or(defaults.temperature);
  found.top_k = arguments.top_k ? static_cast<std::uint32_t>(*arguments.top_k) : defaults.top_k;
  found.top_p = arguments.top_p.value_or(defaults.top_p);
  found.repetition_penalty = arguments.repetition_penalty.value_or(defaults.repetition_penalty);
  return found;
}

// What was generated after a prompt.
struct Answer {
  std::size_t prompt = 0;  // tokens
  Tokens tokens;
  std::string text;
  double load_ms = 0;
  double prefill_ms = 0;
  double decode_ms = 0;  // of all tokens but the first one
  std::uint64_t decode_bytes = 0;
  Stats stats;

  double decoded() const { return static_cast<double>(tokens.size() - 1); }
  double tokens_per_second() const { return decode_ms > 0 ? 1000 * decoded() / decode_ms : 0; }
  double bytes_per_token() const { return decoded() > 0 ? static_cast<double>(decode_bytes) / decoded() : 0; }
};

// Calls `each` with every token as it comes; it says whether to go on.
template <typename Each>
Answer generate(Generator& model, Sampler& sampler, const Tokens& prompt, const Arguments& arguments, Each each) {
  // Without a number a text ends where the context does.
  const auto room = model.context() - static_cast<std::int64_t>(prompt.size()) + 1;
  const auto count =
      arguments.count ? *arguments.count : std::min<std::int64_t>(kCount, std::max<std::int64_t>(room, 1));
  model.check_prompt(prompt, count);
  Answer answer;
  answer.prompt = prompt.size();
  Tokens all = prompt;
  const auto next = [&] {
    const std::int64_t token = sampler.next(model.read(all), all);
    all.push_back(token);
    answer.tokens.push_back(token);
    const bool ends = !arguments.ignore_eos && model.ends(token);
    return each(token, ends) && !ends && static_cast<std::int64_t>(answer.tokens.size()) < count;
  };
  const Clock prefilling;
  bool more = next();
  answer.prefill_ms = prefilling.ms();
  const std::uint64_t before = model.stats().bytes_copied;
  const Clock decoding;
  while (more) {
    more = next();
  }
  answer.decode_ms = decoding.ms();
  answer.load_ms = model.load_ms();
  answer.stats = model.stats();
  answer.decode_bytes = answer.stats.bytes_copied - before;
  return answer;
}

void print_json(const Answer& answer, bool with_text) {
  std::printf("{");
  if (with_text) {
    std::printf("\"text\": %s, ", std::string(json_text(answer.text)).c_str());
  }
  std::printf("\"tokens\": [");
  for (std::size_t at = 0; at < answer.tokens.size(); ++at) {
    std::printf("%s%" PRId64, at == 0 ? "" : ", ", answer.tokens[at]);
  }
  std::printf("], \"prompt_tokens\": %zu, \"load_ms\": %.3f, \"prefill_ms\": %.3f, \"decode_ms\": %.3f, ",
              answer.prompt, answer.load_ms, answer.prefill_ms, answer.decode_ms);
  std::printf("\"tokens_per_second\": %.3f, \"bytes_per_token\": %.0f, \"stats\": %s}\n", answer.tokens_per_second(),
              answer.bytes_per_token(), to_json(answer.stats).c_str());
}

void print_figures(const Answer& answer) {
  std::fprintf(stderr, "%-24s %16.3f\n", "load_ms", answer.load_ms);
  std::fprintf(stderr, "%-24s %16.3f\n", ("prefill_ms, " + counted(answer.prompt, "token")).c_str(), answer.prefill_ms);
  std::fprintf(stderr, "%-24s %16zu\n", "tokens", answer.tokens.size());
  std::fprintf(stderr, "%-24s %16.3f\n", "tokens_per_second", answer.tokens_per_second());
  std::fprintf(stderr, "%-24s %16.0f\n", "bytes_per_token", answer.bytes_per_token());
  std::fprintf(stderr, "%-24s %16" PRIu64 "\n", "peak_bytes", answer.stats.peak_bytes);
  std::fprintf(stderr, "%-24s %16" PRIu64 "\n", "budget_bytes", answer.stats.budget_bytes);
}

void show(const std::string& piece) {
  std::fwrite(piece.data(), 1, piece.size(), stdout);
  std::fflush(stdout);
}

Answer answer_tokens(Generator& model, Sampler& sampler, const Arguments& arguments) {
  return generate(model, sampler, arguments.tokens, arguments, [&, first = true](std::int64_t token, bool) mutable {
    if (!arguments.json) {
      show((first ? "" : " ") + std::to_string(token));
      first = false;
    }
    return true;
  });
}

Answer answer_text(Generator& model, Sampler& sampler, const Text& text, const Tokens& prompt,
                   const Arguments& arguments) {
  rust::Vec<rust::String> stops;
  for (const std::string& stop : arguments.stops) {
    stops.push_back(stop);
  }
  auto pieces = tool::pieces(std::move(stops));
  std::string whole;
  const auto add = [&](const std::string& piece) {
    whole += piece;
    if (!arguments.json) {
      show(piece);
    }
  };
  Answer answer = generate(model, sampler, prompt, arguments, [&](std::int64_t token, bool ends) {
    if (!ends) {
      add(std::string(pieces->take(text, static_cast<std::uint32_t>(token))));
    }
    return !pieces->stopped();
  });
  add(std::string(pieces->rest()));
  answer.text = std::move(whole);
  return answer;
}

// For the tokenizer.
rust::String utf8(const std::string& text) {
  try {
    return rust::String(text);
  } catch (const std::invalid_argument&) {
    throw std::runtime_error("text is UTF-8, and this is not: '" + text + "'");
  }
}

Tokens from(const rust::Vec<std::uint32_t>& given) { return Tokens(given.begin(), given.end()); }

void show_prompt(const std::string& text, const Tokens& tokens) {
  std::printf("%s\n", text.c_str());
  std::string list;
  for (const std::int64_t token : tokens) {
    list += (list.empty() ? "" : ",") + std::to_string(token);
  }
  std::printf("%s\n", list.c_str());
}

// The next message of a chat; none where standard input ends.
std::optional<std::string> next_message(Arguments& arguments) {
  if (arguments.prompt) {
    return std::exchange(arguments.prompt, std::nullopt);
  }
  const bool asks = isatty(STDIN_FILENO) != 0;
  std::string line;
  do {
    if (asks) {
      std::fprintf(stderr, "> ");
    }
    if (!std::getline(std::cin, line)) {
      return std::nullopt;
    }
  } while (line.empty());
  return line;
}

void chat(Generator& model, Sampler& sampler, const Text& text, Arguments& arguments) {
  std::vector<Message> messages;
  if (!arguments.system.empty()) {
    messages.push_back({"system", utf8(arguments.system)});
  }
  while (const auto message = next_message(arguments)) {
    messages.push_back({"user", utf8(*message)});
    const auto rendered = std::string(text.render({messages.data(), messages.size()}));
    const Tokens prompt = from(text.encode_rendered(rendered));
    if (arguments.show_prompt) {
      show_prompt(rendered, prompt);
      return;
    }
    const Answer answer = answer_text(model, sampler, text, prompt, arguments);
    show("\n");
    print_figures(answer);
    messages.push_back({"assistant", answer.text});
  }
}

std::string tokenizer_of(const Arguments& arguments) {
  if (!arguments.tokenizer.empty()) {
    return arguments.tokenizer;
  }
  const auto beside = std::filesystem::path(arguments.files.program).replace_filename("tokenizer.json");
  if (!std::filesystem::exists(beside)) {
    throw std::runtime_error("text needs a tokenizer, and there is no " + beside.string() +
                             ": give it with --tokenizer, or give tokens with --tokens");
  }
  return beside;
}

void run(Arguments& arguments) {
  Generator model(arguments.files, arguments.options);
  Sampler sampler(sampling(arguments, model.settings()), arguments.seed);
  const bool with_text = arguments.tokens.empty();
  Answer answer;
  if (!with_text) {
    answer = answer_tokens(model, sampler, arguments);
  } else {
    const auto text = open_text(tokenizer_of(arguments), model.settings());
    if (arguments.chat) {
      return chat(model, sampler, *text, arguments);
    }
    const Tokens prompt = from(text->encode(utf8(*arguments.prompt)));
    if (prompt.empty()) {
      throw std::runtime_error("the prompt has no tokens");
    }
    if (arguments.show_prompt) {
      return show_prompt(*arguments.prompt, prompt);
    }
    answer = answer_text(model, sampler, *text, prompt, arguments);
  }
  if (arguments.json) {
    return print_json(answer, with_text);
  }
  show("\n");
  print_figures(answer);
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
