#include "arguments.h"

#include <getopt.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace weightstream::tool {

namespace {

constexpr const char* kHelp =
    "usage: weightstream-run MODEL.pte WEIGHTS.ptd [options]\n"
    "\n"
    "Runs a method of a program with its weights inside a budget, and prints what it took.\n"
    "\n"
    "  --method NAME        method to run (forward)\n"
    "  --budget-bytes N     memory that weights may occupy, in bytes; without a budget the least possible one\n"
    "  --budget-mb N        the same in MB of 1,048,576 bytes\n"
    "  --budget auto        what is free on the device, less what the method takes beside its weights\n"
    "  --host MODE          how the bytes to copy are held on the host: auto, mapped, pinned or staged\n"
    "  --staging-mb N       size of the ring of 'staged', in MB of 1,048,576 bytes\n"
    "  --gather MODE        tables of which only rows are read, in place: auto (default), on or off\n"
    "  --link-gbps X        what the link to the GPU carries, in GB/s, for plans; auto (default): timed at load\n"
    "  --kernel-times FILE  how long kernels run: read if FILE exists, otherwise written once they are timed (GPU)\n"
    "  --device N           index of the device\n"
    "  --policy NAME        planned (the default) or lru\n"
    "  --verify WHEN        off; load: compare each weight with its checksum at load; every_read: at load, and on the\n"
    "                       device before each read (slow)\n"
    "  --sync               wait for every kernel, so that a fault of one names what it had leased (GPU; slow)\n"
    "  --cuda-graph         replay passes as a CUDA graph, captured after two passes over the same shapes (GPU)\n"
    "  --pte-sha256 HEX     SHA-256 that MODEL.pte must have\n"
    "  --passes K           number of passes (1)\n"
    "  --seed S             seed of the random inputs (0)\n"
    "  --input FILE         raw bytes of an input, once for each input in order, instead of random ones\n"
    "  --output PREFIX      write the raw bytes of the last pass's outputs to PREFIX0.bin, PREFIX1.bin, ...\n"
    "  --json               print one JSON object\n"
    "  --help               this text\n"
    "\n"
    "Exit codes: 0 all passes ran, 1 something failed (its text is on standard error), 2 wrong arguments.\n";

enum Id {
  kMethod = 256,
  kBudget,
  kBudgetBytes,
  kBudgetMb,
  kHost,
  kStagingMb,
  kGather,
  kLinkGbps,
  kKernelTimes,
  kDevice,
  kPolicy,
  kVerify,
  kSync,
  kCudaGraph,
  kPteSha256,
  kPasses,
  kSeed,
  kInput,
  kOutput,
  kJson,
  kHelpId
};

const option kOptions[] = {
    {"method", required_argument, nullptr, kMethod},
    {"budget", required_argument, nullptr, kBudget},
    {"budget-bytes", required_argument, nullptr, kBudgetBytes},
    {"budget-mb", required_argument, nullptr, kBudgetMb},
    {"host", required_argument, nullptr, kHost},
    {"staging-mb", required_argument, nullptr, kStagingMb},
    {"gather", required_argument, nullptr, kGather},
    {"link-gbps", required_argument, nullptr, kLinkGbps},
    {"kernel-times", required_argument, nullptr, kKernelTimes},
    {"device", required_argument, nullptr, kDevice},
    {"policy", required_argument, nullptr, kPolicy},
    {"verify", required_argument, nullptr, kVerify},
    {"sync", no_argument, nullptr, kSync},
    {"cuda-graph", no_argument, nullptr, kCudaGraph},
    {"pte-sha256", required_argument, nullptr, kPteSha256},
    {"passes", required_argument, nullptr, kPasses},
    {"seed", required_argument, nullptr, kSeed},
    {"input", required_argument, nullptr, kInput},
    {"output", required_argument, nullptr, kOutput},
    {"json", no_argument, nullptr, kJson},
    {"help", no_argument, nullptr, kHelpId},
    {nullptr, 0, nullptr, 0},
};

// A decimal number without sign, spaces or anything after it.
bool number(const char* text, std::uint64_t most, std::uint64_t& value) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long parsed = std::strtoull(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || parsed > most) {
    return false;
  }
  value = parsed;
  return true;
}

Parsed wrong(const std::string& what) {
  std::fprintf(stderr, "weightstream-run: %s\nTry --help.\n", what.c_str());
  Parsed parsed;
  parsed.exit_code = 2;
  return parsed;
}

bool take_int(std::uint64_t least, int& to) {
  std::uint64_t value = 0;
  if (!number(optarg, std::numeric_limits<int>::max(), value) || value < least) {
    return false;
  }
  to = static_cast<int>(value);
  return true;
}

// Takes one option; false if its value is wrong. What the backend checks itself is passed on as it is.
bool take(int id, Arguments& arguments) {
  std::uint64_t value = 0;
  int small = 0;
  switch (id) {
    case kMethod:
      arguments.method = optarg;
      return true;
    case kBudget:
      arguments.options.set("weight_offload_budget", std::string(optarg));
      return true;
    case kBudgetBytes:
      arguments.options.set("weight_offload_budget_bytes", std::string(optarg));
      return true;
    case kBudgetMb:
      if (!take_int(0, small)) {
        return false;
      }
      arguments.options.budget_mb(small);
      return true;
    case kHost:
      arguments.options.host(optarg);
      return true;
    case kStagingMb:
      if (!take_int(0, small)) {
        return false;
      }
      arguments.options.staging_mb(small);
      return true;
    case kGather:
      arguments.options.gather(optarg);
      return true;
    case kLinkGbps:
      arguments.options.set("weight_offload_link_gbps", std::string(optarg));
      return true;
    case kKernelTimes:
      arguments.options.kernel_times(optarg);
      return true;
    case kDevice:
      if (!take_int(0, small)) {
        return false;
      }
      arguments.options.device(small);
      return true;
    case kPolicy:
      arguments.options.policy(optarg);
      return true;
    case kVerify:
      arguments.options.verify(optarg);
      return true;
    case kSync:
      arguments.options.sync(true);
      return true;
    case kCudaGraph:
      arguments.options.cuda_graph(true);
      return true;
    case kPteSha256:
      arguments.options.pte_sha256(optarg);
      return true;
    case kPasses:
      return take_int(1, arguments.passes);
    case kSeed:
      if (!number(optarg, std::numeric_limits<std::uint64_t>::max(), value)) {
        return false;
      }
      arguments.seed = value;
      return true;
    case kInput:
      arguments.inputs.push_back(optarg);
      return true;
    case kOutput:
      arguments.output = optarg;
      return true;
    default:
      arguments.json = true;
      return true;
  }
}

}  // namespace

Parsed parse(int argc, char** argv) {
  Parsed parsed;
  int index = 0;
  for (int id = 0; (id = getopt_long(argc, argv, "", kOptions, &index)) != -1;) {
    if (id == '?') {
      return wrong("wrong arguments");
    }
    if (id == kHelpId) {
      std::fputs(kHelp, stdout);
      return parsed;
    }
    if (!take(id, parsed.arguments)) {
      return wrong(std::string("--") + kOptions[index].name + " does not take '" + optarg + "'");
    }
  }
  if (argc - optind != 2) {
    return wrong("expected MODEL.pte and WEIGHTS.ptd, found " + std::to_string(argc - optind) + " paths");
  }
  parsed.arguments.program = argv[optind];
  parsed.arguments.weights = argv[optind + 1];
  parsed.run = true;
  return parsed;
}

}  // namespace weightstream::tool
