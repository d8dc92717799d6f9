// The next token from logits, in the order in which transformers does it.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace weightstream::tool {

// A temperature of 0 takes the most probable token.
struct SamplingOptions {
  float temperature = 0;
  std::uint32_t top_k = 0;  // of so many tokens; 0: of all
  float top_p = 1;          // of the most probable ones with so much of the probability
  float repetition_penalty = 1;

  // What is wrong with a number; empty if nothing is.
  std::string problem() const;
};

class Sampler {
 public:
  Sampler(const SamplingOptions& options, std::uint64_t seed) : options_(options), random_(seed) {}

  // `logits`: one for each word; `text`: the tokens so far.
  std::int64_t next(std::vector<float> logits, const std::vector<std::int64_t>& text);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

}  // namespace weightstream::tool
