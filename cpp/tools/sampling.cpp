#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace weightstream::tool {

namespace {

std::int64_t largest(const std::vector<float>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// What was said becomes less probable.
void penalize(std::vector<float>& logits, const std::vector<std::int64_t>& text, float penalty) {
  for (const std::int64_t token : std::set<std::int64_t>(text.begin(), text.end())) {
    float& logit = logits[static_cast<std::size_t>(token)];
    logit = logit < 0 ? logit * penalty : logit / penalty;
  }
}

}  // namespace

std::string SamplingOptions::problem() const {
  if (!(temperature >= 0)) {
    return "--temperature is a number from 0";
  }
  if (!(top_p > 0 && top_p <= 1)) {
    return "--top-p is a share above 0 and up to 1";
  }
  return repetition_penalty > 0 ? "" : "--repetition-penalty is a number above 0";
}

std::int64_t Sampler::next(std::vector<float> logits, const std::vector<std::int64_t>& text) {
  if (options_.repetition_penalty != 1) {
    penalize(logits, text, options_.repetition_penalty);
  }
  if (options_.temperature == 0) {
    return largest(logits);
  }
  // Words by their logits, the most probable one first.
  std::vector<std::int64_t> words(logits.size());
  std::iota(words.begin(), words.end(), 0);
  const auto of = [&](std::int64_t word) { return logits[static_cast<std::size_t>(word)]; };
  std::stable_sort(words.begin(), words.end(), [&](std::int64_t a, std::int64_t b) { return of(a) > of(b); });
  if (options_.top_k != 0 && options_.top_k < words.size()) {
    // Those as probable as the last one stay too.
    const float least = of(words[options_.top_k - 1]);
    words.erase(std::find_if(words.begin(), words.end(), [&](std::int64_t word) { return of(word) < least; }),
                words.end());
  }
  std::vector<double> weights;
  for (const std::int64_t word : words) {
    weights.push_back(std::exp((static_cast<double>(of(word)) - of(words[0])) / options_.temperature));
  }
  if (options_.top_p < 1) {
    // The least probable ones go whose sum is at most what is left out; the most probable one stays.
    const double out = (1 - static_cast<double>(options_.top_p)) * std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double sum = 0; weights.size() > 1 && (sum += weights.back()) <= out;) {
      weights.pop_back();
    }
  }
  // By hand: a seed gives the same text whatever the standard library.
  const double whole = std::accumulate(weights.begin(), weights.end(), 0.0);
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * whole;
  for (std::size_t at = 0; at + 1 < weights.size(); ++at) {
    if ((left -= weights[at]) < 0) {
      return words[at];
    }
  }
  return words[weights.size() - 1];
}

}  // namespace weightstream::tool
