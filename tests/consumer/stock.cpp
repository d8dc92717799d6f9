// Runs a program through ExecuTorch's own Module: nothing here names WeightStream but a backend's options.
#include <executorch/extension/module/module.h>

#include <cstdio>

#include "inputs.h"

int main(int argc, char** argv) {
  using namespace executorch;
  if (argc != 3) {
    return 2;
  }
  runtime::BackendOptions<1> options;
  options.set_option("weight_offload_budget_mb", 1024);
  runtime::LoadBackendOptionsMap map;
  if (map.set_options("WeightStreamBackend", options.view()) != runtime::Error::Ok) {
    return 1;
  }
  extension::Module module(argv[1], argv[2], extension::Module::LoadMode::Mmap);
  if (module.load(map) != runtime::Error::Ok) {
    return 1;
  }
  const auto meta = module.method_meta("forward");
  if (!meta.ok()) {
    return 1;
  }
  const auto tensors = zeros(*meta);
  const std::vector<runtime::EValue> inputs(tensors.begin(), tensors.end());
  const auto outputs = module.forward(inputs);
  std::printf("%s\n", runtime::to_string(outputs.error()));
  return outputs.ok() ? 0 : 1;
}
