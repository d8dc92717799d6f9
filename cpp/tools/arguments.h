// Command lines of the tools: tables of flags, the help that is written from them, and the flags of a load, which all
// tools have.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weightstream/module.h"

namespace weightstream::tool {

struct Flag {
  const char* name;   // without its dashes
  const char* value;  // what the help calls its value; null if it takes none
  const char* help;   // lines of at most 97 columns
  // Takes a value, null if the flag has none; false if it is wrong.
  std::function<bool(const char*)> take;
  bool repeats = false;  // may be given several times
};

struct Command {
  const char* name;
  const char* purpose;
  std::vector<Flag> flags;  // in the order of the help
  // What is wrong with the flags together; empty if nothing is.
  std::function<std::string()> check;
};

// What each tool is given first.
struct Files {
  std::string program;
  std::string weights;
};

// Gives each flag its value, and finds both files. Returns the code to end the process with, if it is to end: help was
// shown, or an argument is wrong and standard error says which.
std::optional<int> parse(const Command& command, int argc, char** argv, Files& files);

// The flags of a load. What the backend checks itself is passed on as it is.
std::vector<Flag> load_flags(Options& options);

// What is wrong with the options of a load by themselves, whatever the program; empty if nothing is.
std::string check_options(const Options& options);

// How flags take their values.
std::function<bool(const char*)> text(std::string& to);
std::function<bool(const char*)> number(std::uint64_t& to);
std::function<bool(const char*)> number(std::function<void(int)> to, int least = 0);
std::function<bool(const char*)> present(bool& to);
// A number of MB, which may have a fraction.
std::function<bool(const char*)> megabytes(Options& options, const char* key);

// A decimal number without sign, spaces or anything after it, at most `most`.
std::optional<std::uint64_t> parse_number(const char* text, std::uint64_t most);

// The names of the program's methods that run here.
std::string own_methods(const Module& module);

// Ends the tool with the text of the last failure, if there was one.
void check(executorch::runtime::Error error, const std::string& doing);

}  // namespace weightstream::tool
