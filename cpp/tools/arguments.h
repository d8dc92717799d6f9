// Command line of weightstream-run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weightstream/module.h"

namespace weightstream::tool {

struct Arguments {
  std::string program;
  std::string weights;
  std::string method = "forward";
  Options options;
  int passes = 1;
  std::uint64_t seed = 0;
  bool json = false;
  std::vector<std::string> inputs;  // files with the raw bytes of inputs, in order
  std::string output;               // prefix for the raw bytes of outputs; empty: none are written
};

// What parsing came to: go on, or end the process with this code (help was shown, or an error).
struct Parsed {
  bool run = false;
  int exit_code = 0;
  Arguments arguments;
};

Parsed parse(int argc, char** argv);

}  // namespace weightstream::tool
