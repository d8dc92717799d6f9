// How weightstream-generate draws tokens.
#include "../../cpp/tools/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace {

using weightstream::tool::Sampler;
using weightstream::tool::SamplingOptions;

const std::vector<float> kLogits = {2, 1, 0, -1, 1.5};

std::vector<double> shares(const SamplingOptions& options, int count) {
  Sampler sampler(options, 7);
  std::vector<double> found(kLogits.size());
  for (int at = 0; at < count; ++at) {
    found[static_cast<std::size_t>(sampler.next(kLogits, {}))] += 1;
  }
  for (double& share : found) {
    share /= count;
  }
  return found;
}

// The probabilities of these words alone.
std::vector<double> probabilities(float temperature, const std::vector<std::size_t>& words) {
  std::vector<double> found(kLogits.size());
  double sum = 0;
  for (const std::size_t word : words) {
    sum += found[word] = std::exp(kLogits[word] / temperature);
  }
  for (double& share : found) {
    share /= sum;
  }
  return found;
}

void expect_shares(const SamplingOptions& options, const std::vector<std::size_t>& words) {
  constexpr int kDrawn = 20000;
  const auto found = shares(options, kDrawn);
  const auto expected = probabilities(options.temperature, words);
  for (std::size_t word = 0; word < found.size(); ++word) {
    // Five standard deviations of a share.
    EXPECT_NEAR(found[word], expected[word], 5 * std::sqrt(expected[word] * (1 - expected[word]) / kDrawn)) << word;
  }
}

TEST(Sampling, TokensAreDrawnAsOftenAsTheyAreProbable) {
  expect_shares({0.7F, 0, 1, 1}, {0, 1, 2, 3, 4});
  expect_shares({1, 2, 1, 1}, {0, 4});
  // 0.45, 0.27, 0.17, 0.06, 0.02: the last two are at most what is left out.
  expect_shares({1, 0, 0.8F, 1}, {0, 4, 1});
  expect_shares({1, 4, 0.01F, 1}, {0});
}

TEST(Sampling, EquallyProbableTokensStayTogether) {
  Sampler sampler({1, 1, 1, 1}, 0);
  bool second = false;
  for (int at = 0; at < 100; ++at) {
    const auto token = sampler.next({3, 3, 1}, {});
    ASSERT_LE(token, 1);
    second = second || token == 1;
  }
  EXPECT_TRUE(second);
}

TEST(Sampling, WhatWasSaidIsSaidLessOften) {
  Sampler sampler({0, 0, 1, 1.5F}, 0);
  EXPECT_EQ(sampler.next({2, 1.9F, -1}, {0, 2, 0}), 1);
  EXPECT_EQ(sampler.next({2, 1.9F, -1}, {1}), 0);
  EXPECT_EQ(Sampler({}, 0).next({1, 2, 2}, {}), 1);
}

TEST(Sampling, OneSeedGivesTheSameTokens) {
  const auto drawn = [](std::uint64_t seed) {
    Sampler sampler({1, 0, 1, 1}, seed);
    std::vector<std::int64_t> tokens;
    for (int at = 0; at < 20; ++at) {
      tokens.push_back(sampler.next(kLogits, {}));
    }
    return tokens;
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

TEST(Sampling, NumbersThatAreNoneAreRefused) {
  EXPECT_EQ((SamplingOptions{-1, 0, 1, 1}).problem(), "--temperature is a number from 0");
  EXPECT_EQ((SamplingOptions{1, 0, 0, 1}).problem(), "--top-p is a share above 0 and up to 1");
  EXPECT_EQ((SamplingOptions{1, 0, 1, 0}).problem(), "--repetition-penalty is a number above 0");
  EXPECT_EQ(SamplingOptions().problem(), "");
}

}  // namespace
