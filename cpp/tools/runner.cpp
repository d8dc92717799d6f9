// weightstream-run: runs a program under a budget and prints what it took.

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>

#include "arguments.h"
#include "inputs.h"
#include "weightstream/module.h"

namespace weightstream::tool {

namespace {

using executorch::runtime::Error;
using executorch::runtime::EValue;

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

void check(Error error, const char* doing) {
  if (error != Error::Ok) {
    const std::string text = last_error();
    throw std::runtime_error(std::string(doing) + ": " + (text.empty() ? executorch::runtime::to_string(error) : text));
  }
}

struct Result {
  double ms_per_pass = 0;
  std::uint64_t checksum = 0;  // of the last pass
  Stats stats;
};

Result run(const Arguments& arguments) {
  Module module(arguments.program, arguments.weights, arguments.options);
  check(module.load_method(arguments.method), "load");
  const auto meta = module.method_meta(arguments.method);
  check(meta.error(), "load");
  const auto tensors = make_inputs(*meta, arguments.inputs, arguments.seed);
  const auto method = module.method(arguments.method);
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
    const auto outputs = module.execute(arguments.method, inputs);
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
  const auto stats = module.stats(arguments.method);
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
  const Parsed parsed = parse(argc, argv);
  if (!parsed.run) {
    return parsed.exit_code;
  }
  try {
    const Result result = run(parsed.arguments);
    if (parsed.arguments.json) {
      print_json(result);
    } else {
      print_text(result);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weightstream-run: %s\n", error.what());
    return 1;
  }
}
