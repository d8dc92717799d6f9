// Runs a program through weightstream::Module at its least budget.
#include <weightstream/module.h>

#include <cstdio>

#include "inputs.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  const auto budget = weightstream::required_budget(argv[1]);
  if (!budget.ok()) {
    std::fprintf(stderr, "%s\n", weightstream::last_error().c_str());
    return 1;
  }
  weightstream::Module module(argv[1], argv[2], weightstream::Options().budget_bytes(*budget));
  const auto meta = module.method_meta("forward");
  if (!meta.ok()) {
    return 1;
  }
  const auto tensors = zeros(*meta);
  const std::vector<executorch::runtime::EValue> inputs(tensors.begin(), tensors.end());
  const auto outputs = module.forward(inputs);
  if (!outputs.ok()) {
    std::fprintf(stderr, "%s\n", weightstream::last_error().c_str());
    return 1;
  }
  const auto stats = module.stats();
  std::printf("%s\n", weightstream::to_json(*stats).c_str());
  return stats->passes == 1 && stats->budget_bytes == *budget && stats->peak_bytes <= *budget ? 0 : 1;
}
