#include "arguments.h"

#include <getopt.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "words.h"

namespace weightstream::tool {

namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 all went well, 1 something failed (its text is on standard error), 2 wrong arguments.";

// A flag and what it does, in two columns.
void print_row(const std::string& left, const std::string& help) {
  std::string indented;
  for (const char letter : help) {
    indented += letter;
    if (letter == '\n') {
      indented.append(23, ' ');
    }
  }
  std::printf("  %-19s  %s\n", left.c_str(), indented.c_str());
}

void print_help(const Command& command) {
  std::printf("usage: %s MODEL.pte WEIGHTS.ptd [options]\n\n%s\n\n", command.name, command.purpose);
  for (const Flag& flag : command.flags) {
    print_row(std::string("--") + flag.name + (flag.value == nullptr ? "" : std::string(" ") + flag.value), flag.help);
  }
  print_row("-h, --help", "this text");
  print_row("--version", "the version of WeightStream");
  std::printf("\n%s\n", kExitCodes);
}

int wrong(const Command& command, const std::string& what) {
  std::fprintf(stderr, "%s: %s\nTry --help.\n", command.name, what.c_str());
  return 2;
}

}  // namespace

std::optional<std::uint64_t> parse_number(const char* text, std::uint64_t most) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long parsed = std::strtoull(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || parsed > most) {
    return std::nullopt;
  }
  return parsed;
}

std::function<bool(const char*)> text(std::string& to) {
  return [&to](const char* value) {
    to = value;
    return true;
  };
}

std::function<bool(const char*)> number(std::uint64_t& to) {
  return [&to](const char* value) {
    const auto found = parse_number(value, std::numeric_limits<std::uint64_t>::max());
    to = found.value_or(to);
    return found.has_value();
  };
}

std::function<bool(const char*)> number(std::function<void(int)> to, int least) {
  return [to = std::move(to), least](const char* value) {
    const auto found = parse_number(value, std::numeric_limits<int>::max());
    if (!found || static_cast<int>(*found) < least) {
      return false;
    }
    to(static_cast<int>(*found));
    return true;
  };
}

std::function<bool(const char*)> present(bool& to) {
  return [&to](const char*) { return to = true; };
}

std::function<bool(const char*)> megabytes(Options& options, const char* key) {
  return [&options, key](const char* value) {
    const std::string number = value;
    const bool is_number = number.find_first_not_of("0123456789.") == std::string::npos;
    options.set(key, number);
    return is_number && !number.empty();
  };
}

std::string check_options(const Options& options) {
  return options.check() == executorch::runtime::Error::Ok ? "" : last_error();
}

std::vector<Flag> load_flags(Options& options) {
  const auto spec = [&options](const char* key) {
    return [&options, key](const char* value) {
      options.set(key, value == nullptr ? Options::Value(true) : Options::Value(std::string(value)));
      return true;
    };
  };
  return {
      {"budget-bytes", "N", "memory that weights may occupy, in bytes; without a budget the least possible one",
       spec("weight_offload_budget_bytes")},
      {"budget-mb", "N", "the same in MB of 1,048,576 bytes", megabytes(options, "weight_offload_budget_mb")},
      {"budget", "auto", "what is free on the device, less what the method takes beside its weights",
       spec("weight_offload_budget")},
      {"host", "MODE", "how the bytes to copy are held on the host: auto, mapped, pinned or staged",
       spec("weight_offload_host")},
      {"staging-mb", "N", "size of the ring of 'staged', in MB of 1,048,576 bytes",
       megabytes(options, "weight_offload_staging_mb")},
      {"gather", "MODE", "tables of which only rows are read, in place: auto (default), on or off",
       spec("weight_offload_gather")},
      {"link-gbps", "X", "what the link to the GPU carries, in GB/s, for plans; auto (default): timed at load",
       spec("weight_offload_link_gbps")},
      {"kernel-times", "FILE", "how long kernels run: read if FILE exists, otherwise written once they are timed (GPU)",
       spec("weight_offload_kernel_times")},
      {"device", "N", "index of the device", number([&](int index) { options.device(index); })},
      {"policy", "NAME", "planned (the default) or lru", spec("weight_offload_policy")},
      {"verify", "WHEN",
       "off; load: compare each weight with its checksum at load; every_read: at load, and on the\n"
       "device before each read (slow)",
       spec("weight_offload_verify")},
      {"sync", nullptr, "wait for every kernel, so that a fault of one names what it had leased (GPU; slow)",
       spec("weight_offload_sync")},
      {"cuda-graph", nullptr, "replay passes as CUDA graphs: the second one over some shapes is captured (GPU)",
       spec("weight_offload_cuda_graph")},
      {"graph-mb", "N", "the most memory that these graphs take, in MB of 1,048,576 bytes",
       megabytes(options, "weight_offload_graph_mb")},
      {"graph-shapes", "SHAPES", "shapes whose graphs are captured at load, such as tokens=1,2,4 (GPU)",
       spec("weight_offload_graph_shapes")},
      {"pte-sha256", "HEX", "SHA-256 that MODEL.pte must have", spec("weight_offload_pte_sha256")},
  };
}

std::optional<int> parse(const Command& command, int argc, char** argv, Files& files) {
  std::vector<option> options;
  for (const Flag& flag : command.flags) {
    options.push_back({flag.name, flag.value == nullptr ? no_argument : required_argument, nullptr, 0});
  }
  options.push_back({"help", no_argument, nullptr, 'h'});
  options.push_back({"version", no_argument, nullptr, 'v'});
  options.push_back({nullptr, 0, nullptr, 0});
  std::vector<bool> seen(command.flags.size());
  int index = 0;
  for (int found = 0; (found = getopt_long(argc, argv, "h", options.data(), &index)) != -1;) {
    switch (found) {
      case '?':
        return wrong(command, "wrong arguments");
      case 'h':
        print_help(command);
        return 0;
      case 'v':
        std::printf("%s %s\n", command.name, ws_version());
        return 0;
    }
    const auto at = static_cast<std::size_t>(index);
    const std::string name = std::string("--") + options[at].name;
    if (seen[at] && !command.flags[at].repeats) {
      return wrong(command, name + " is given twice");
    }
    seen[at] = true;
    if (!command.flags[at].take(optarg)) {
      return wrong(command, name + " does not take '" + optarg + "': expected " + command.flags[at].value);
    }
  }
  if (argc - optind != 2) {
    const auto paths = static_cast<std::size_t>(argc - optind);
    return wrong(command, "expected MODEL.pte and WEIGHTS.ptd, found " + counted(paths, "path"));
  }
  const std::string problem = command.check();
  if (!problem.empty()) {
    return wrong(command, problem);
  }
  files = {argv[optind], argv[optind + 1]};
  return std::nullopt;
}

std::string own_methods(const Module& module) {
  const auto methods = module.methods();
  check(methods.error(), "load");
  std::string names;
  for (const std::string& name : *methods) {
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

void check(executorch::runtime::Error error, const std::string& doing) {
  if (error != executorch::runtime::Error::Ok) {
    const std::string text = last_error();
    throw std::runtime_error(doing + ": " + (text.empty() ? executorch::runtime::to_string(error) : text));
  }
}

}  // namespace weightstream::tool
