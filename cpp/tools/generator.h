// A language model as a program: the methods `prefill` and `decode`, called as ExecuTorch's LLM runners call them.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "arguments.h"
#include "weightstream/module.h"

namespace weightstream::tool {

class Clock {
 public:
  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Generator {
 public:
  Generator(const Files& files, const Options& options);

  // What `get_llm_settings` says; empty if the program does not.
  const std::string& settings() const { return settings_; }
  // Places in the cache.
  std::int64_t context() const { return context_; }
  // Whether a token ends a text.
  bool ends(std::int64_t token) const { return ends_.count(token) != 0; }
  double load_ms() const { return load_ms_; }
  Stats stats() const;

  // Throws unless the tokens are words, and fit with `more` after them.
  void check_prompt(const std::vector<std::int64_t>& prompt, std::int64_t more) const;
  // The logits of the token after `text`. What the cache has of it already is not read again, but for its last token.
  std::vector<float> read(const std::vector<std::int64_t>& text);

 private:
  void find_constants();
  void load_methods();
  std::int64_t number_of(const char* constant);
  std::vector<float> pass(const char* method, std::vector<std::int64_t> tokens, std::int64_t start);

  Module module_;
  std::set<std::string> names_;
  std::string settings_;
  std::unordered_set<std::int64_t> ends_;
  std::int64_t chunk_ = 0;
  std::int64_t context_ = 0;
  std::int64_t words_ = 0;
  double load_ms_ = 0;
  // The tokens that the cache has.
  std::vector<std::int64_t> held_;
};

}  // namespace weightstream::tool
