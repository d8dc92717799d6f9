// weightstream-run: runs a program under a budget and prints what it took.

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "inputs.h"
#include "weightstream/module.h"

namespace weightstream::tool {

namespace {

using executorch::runtime::EValue;

struct Arguments {
  Files files;
  std::string method;  // empty: the program's only one
  Options options;
  int passes = 1;
  std::uint64_t seed = 0;
  bool json = false;
  std::vector<std::string> inputs;  // files with the raw bytes of inputs, in order
  std::string output;               // prefix for the raw bytes of outputs; empty: none are written
};

Command command(Arguments& arguments) {
  std::vector<Flag> flags = {
      {"method", "NAME", "method to run; it can be left out where the program has one", text(arguments.method)}};
  for (Flag& flag : load_flags(arguments.options)) {
    flags.push_back(std::move(flag));
  }
  const auto input = [&](const char* path) {
    arguments.inputs.push_back(path);
    return true;
  };
  flags.insert(flags.end(),
               {{"passes", "K", "number of passes (1)", number([&](int passes) { arguments.passes = passes; }, 1)},
                {"seed", "S", "seed of the random inputs (0)", number(arguments.seed)},
                {"input", "FILE",
                 "raw bytes of an input, once for each input in order, instead of random ones; at the largest\n"
                 "sizes that the method takes, or a smaller one where one size only is dynamic",
                 input, true},
                {"output", "PREFIX", "write the raw bytes of the last pass's outputs to PREFIX0.bin, PREFIX1.bin, ...",
                 text(arguments.output)},
                {"json", nullptr, "print one JSON object", present(arguments.json)}});
  return {"weightstream-run", "Runs a method of a program with its weights inside a budget, and prints what it took.",
          std::move(flags), [&] { return check_options(arguments.options); }};
}

// The method that is meant where none was given: the only one, or the one that ExecuTorch runs where none is named.
std::string chosen(const Module& module, const std::string& given) {
  if (!given.empty()) {
    return given;
  }
  const auto methods = module.methods();
  check(methods.error(), "load");
  if (std::find(methods->begin(), methods->end(), "forward") != methods->end() || methods->empty()) {
    return "forward";
  }
  if (methods->size() == 1) {
    return methods->front();
  }
  throw std::runtime_error("the program has the methods " + own_methods(module) + ": choose one with --method");
}

// FNV-1a over the bytes of all outputs.
std::uint64_t checksum(const std::vector<EValue>& outputs) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const EValue& output : outputs) {
    if (!output.isTensor()) {
      continue;
    }
    const auto& tensor = output.toTensor();
    const auto* bytes = static_cast<const std::uint8_t*>(tensor.const_data_ptr());
    for (std::size_t at = 0; at < tensor.nbytes(); ++at) {
      hash = (hash ^ bytes[at]) * 0x100000001b3;
    }
  }
  return hash;
}

void write(const std::string& prefix, const std::vector<EValue>& outputs) {
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    if (!outputs[index].isTensor()) {
      continue;
    }
    const auto& tensor = outputs[index].toTensor();
    const std::string path = prefix + std::to_string(index) + ".bin";
    std::ofstream file(path, std::ios::binary);
    file.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
    if (!file.flush()) {
      throw std::runtime_error(path + ": cannot write it");
    }
  }
}

struct Result {
  double ms_per_pass = 0;
  std::uint64_t checksum = 0;  // of the last pass
  Stats stats;
};

Result run(const Arguments& arguments) {
  Module module(arguments.files.program, arguments.files.weights, arguments.options);
  const std::string name = chosen(module, arguments.method);
  check(module.load_method(name), "load");
  const auto meta = module.method_meta(name);
  check(meta.error(), "load");
  const auto tensors = make_inputs(module, name, *meta, arguments.inputs, arguments.seed);
  const auto method = module.method(name);
  check(method.error(), "load");
  std::vector<EValue> inputs;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    // Deprecated for MethodMeta, which tells no values.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    inputs.push_back(tensors[index] != nullptr ? EValue(tensors[index]) : (*method)->get_input(index));
#pragma GCC diagnostic pop
  }

  Result result;
  for (int pass = 0; pass < arguments.passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    const auto outputs = module.execute(name, inputs);
    result.ms_per_pass += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    check(outputs.error(), "execute");
    if (pass + 1 == arguments.passes) {
      result.checksum = checksum(*outputs);
      if (!arguments.output.empty()) {
        write(arguments.output, *outputs);
      }
    }
  }
  result.ms_per_pass /= arguments.passes;
  const auto stats = module.stats(name);
  check(stats.error(), "stats");
  result.stats = *stats;
  return result;
}

void print_json(const Result& result) {
  std::string json = to_json(result.stats);
  json.pop_back();
  std::printf("%s, \"ms_per_pass\": %.3f, \"checksum\": \"%016" PRIx64 "\"}\n", json.c_str(), result.ms_per_pass,
              result.checksum);
}

void print_text(const Result& result) {
  for (const auto& [name, value] : counters(result.stats)) {
    std::printf("%-24s %16" PRIu64 "\n", name.c_str(), value);
  }
  std::printf("%-24s %16.3f\n", "ms_per_pass", result.ms_per_pass);
  std::printf("%-24s %016" PRIx64 "\n", "checksum", result.checksum);
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
    const Result result = run(arguments);
    if (arguments.json) {
      print_json(result);
    } else {
      print_text(result);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", flags.name, error.what());
    return 1;
  }
}
