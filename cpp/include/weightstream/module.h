// A Module of ExecuTorch whose weights stay inside a budget.
#pragma once

#include <executorch/extension/module/module.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "weightstream/backend.h"
#include "weightstream/weightstream.h"

namespace weightstream {

class DenseInputs;
class Loads;
struct SessionWeights;

// Options of a load: the runtime specs of the backend, by name. Nothing is checked here: an unknown key or
// a wrong value is refused at load, with the key and what is accepted.
class WEIGHTSTREAM_EXPORT Options {
 public:
  using Value = std::variant<bool, int, std::string>;

  // Device memory that weights may occupy, in bytes. Without a budget the least possible one is used.
  Options& budget_bytes(std::uint64_t bytes);
  // The same in MB of 1,048,576 bytes.
  Options& budget_mb(int mb);
  // What is free on the device at load, less what the method takes beside its weights. That is its activations and
  // inputs at their largest, as the export recorded them, and 256 MB for the driver and this library. At most what all
  // weights occupy; an error if that is less than the program needs. The arithmetic goes to the log. Give one of the
  // three.
  Options& budget_auto();
  // The model shares the memory of its device with others: its budget changes between passes. ws_set_device_budget says
  // what all of them may hold.
  Options& budget_shared();
  // Of a model with budget_shared(): the bytes that a model of higher priority wants come before those of a lower one.
  Options& priority(int priority);
  // "planned", the default: what stays and what streams is decided at load; or "lru".
  Options& policy(const std::string& name);
  // How the bytes to copy are held on the host: "auto", "mapped", "pinned" or "staged".
  Options& host(const std::string& mode);
  // Size of the ring of "staged", in MB of 1,048,576 bytes.
  Options& staging_mb(int mb);
  // Whether tables of which kernels only look rows up are read in place, in host memory: "auto", "on" or "off".
  Options& gather(const std::string& mode);
  // What the link to the GPU carries, in GB/s of 1,000,000,000 bytes. Plans depend on it; without it the link is timed
  // at load. An error for methods of the CPU, and under "lru".
  Options& link_gbps(double rate);
  // Times the link at load, as is done anyway where plans are made, and an error where none are.
  Options& link_auto();
  // A file of how long kernels run. If it exists, plans use it from the first pass on, and nothing is timed. If it does
  // not, it is written after the second pass. An error for methods of the CPU, and under "lru".
  Options& kernel_times(const std::string& path);
  // Index of the GPU, from 0. An error for methods of the CPU.
  Options& device(int index);
  // "off"; "load": compare each weight with its checksum at load; or "every_read": at load, and on the device before
  // each read, which is slow and meant for debugging.
  Options& verify(const std::string& when);
  // Waits for every kernel, so that the error of a fault names only what that kernel had leased. Slow; for methods of a
  // GPU, an error for methods of the CPU.
  Options& sync(bool on);
  // Captures the second pass over some shapes as a CUDA graph, copies included, and replays it; each set of shapes has
  // its own graph. For methods of a GPU; an error for methods of the CPU.
  Options& cuda_graph(bool on);
  // The most device memory that all graphs take beside their activations, in MB of 1,048,576 bytes. An error without
  // cuda_graph(true).
  Options& graph_mb(int mb);
  // Shapes whose graphs are captured at load: "tokens=1,2,4", or "decode:batch=1,2;prefill:tokens=128". An error
  // without cuda_graph(true).
  Options& graph_shapes(const std::string& shapes);
  // How often each method runs beside the others, for plans: "decode=0.98,prefill=0.02". Equal without it.
  Options& method_share(const std::string& shares);
  // Weights that always stay on the GPU: patterns of their names, "lm_head.*,layers.0.*". They count in the least
  // budget.
  Options& pin(const std::string& patterns);
  // Weights that never stay: each pass copies them, also where the budget covers them.
  Options& stream(const std::string& patterns);
  // What a call does while another method or session of the program runs: "turns", the default, or "refuse".
  Options& concurrent(const std::string& what);
  // SHA-256 of the whole `.pte`, 64 hexadecimal digits: a program that has another one is refused before ExecuTorch
  // opens it.
  Options& pte_sha256(const std::string& hex);
  // Any spec by name.
  Options& set(const std::string& key, Value value);

  // Whether keys and values are right by themselves, which every load checks. last_error() says what is wrong. Whether
  // an option can take effect, only a program tells.
  executorch::runtime::Error check() const;

  const std::vector<std::pair<std::string, Value>>& specs() const { return specs_; }

 private:
  std::vector<std::pair<std::string, Value>> specs_;
};

// Counters of a loaded method: those of ws_stats_data, whose comments explain them, by name.
struct Stats : ws_stats_data {
  Stats() : ws_stats_data{} {}

  // The options that hold for this load, as a JSON object: {"weight_offload_policy": {"value": "lru", "from":
  // "environment"}}; "from" is load, set_option, environment, program or default.
  std::string options_json;
};

// All counters by name, in the order of ws_stats_data.
WEIGHTSTREAM_EXPORT std::vector<std::pair<std::string, std::uint64_t>> counters(const Stats& stats);

// The counters as a JSON object.
WEIGHTSTREAM_EXPORT std::string to_json(const Stats& stats);

// The least budget with which `method` of a program can be loaded, in bytes; that of the program if it is empty. The
// methods of a program have one budget. On a GPU packed weights need memory in which they are decoded: it counts if
// `ptd_path` is given. Loads nothing.
WEIGHTSTREAM_EXPORT executorch::runtime::Result<std::uint64_t> required_budget(const std::string& pte_path,
                                                                               const std::string& method = "",
                                                                               const std::string& ptd_path = "");

// ExecuTorch's Module over a program and its weights. It maps both files, hands the options to the backend,
// and otherwise is the Module it derives from. What failed is told by weightstream::last_error().
//
// Like ExecuTorch's, a Module is for one thread at a time; here a second execute while one runs is
// refused with Error::InvalidState. ExecuTorch's own does not check that, and crashes.
//
// Inputs lie where the program was saved to take them: on the CPU, or with device_io on the GPU. Inputs on the GPU must
// be ready: the call waits for work on the default stream, and the caller waits for work on other streams. Outputs are
// there when execute() returns. Tensors may have any strides: a tensor that is not row-major is copied first, and
// counted.
//
// None, numbers and strings among the inputs are part of the program: each call gives what the export was given.
class WEIGHTSTREAM_EXPORT Module : public executorch::extension::Module {
 public:
  using Base = executorch::extension::Module;
  using Verification = executorch::runtime::Program::Verification;

  Module(const std::string& pte_path, const std::string& ptd_path, Options options = {});

  // Checks both files, then loads the program with this Module's options. ExecuTorch's verification is raised to
  // InternalConsistency.
  executorch::runtime::Error load(Verification verification = Verification::Minimal) override;

  // The same with options for other backends besides. Options for this one belong to the constructor.
  executorch::runtime::Error load(const executorch::runtime::LoadBackendOptionsMap& backend_options,
                                  Verification verification = Verification::Minimal) override;

  // Loads a method, as ExecuTorch's does. Of a method that is not there last_error() says which ones are.
  executorch::runtime::Error load_method(const std::string& method_name,
                                         executorch::runtime::HierarchicalAllocator* planned_memory = nullptr,
                                         executorch::runtime::EventTracer* event_tracer = nullptr,
                                         const executorch::runtime::LoadBackendOptionsMap* backend_options = nullptr,
                                         std::vector<executorch::runtime::Kernel> kernel_registry = {});

  using Base::execute;
  executorch::runtime::Result<std::vector<executorch::runtime::EValue>> execute(
      const std::string& method_name, const std::vector<executorch::runtime::EValue>& input_values) override;

  // The methods of the program that run here, in the order of their names. They share weights, budget and state. Loads
  // nothing.
  executorch::runtime::Result<std::vector<std::string>> methods() const;

  // The least and the largest size of each dimension of an input, by its place among the tensors that the method takes;
  // nothing of one that is not read. Loads nothing.
  executorch::runtime::Result<std::vector<std::pair<std::int64_t, std::int64_t>>> input_range(
      const std::string& method_name, std::size_t input) const;

  // A session: a Module over the same weights and budget, with mutable buffers (KV caches) of its own. They lie outside
  // of the budget: `session_bytes` of the counters. This Module may end before it. Loads a method if none is loaded.
  executorch::runtime::Result<std::unique_ptr<Module>> new_session();

  // The buffers that the program's methods write get their initial bytes back: those of this session.
  executorch::runtime::Error reset_state();

  // Another budget for all methods and sessions of the program, in bytes, from the next pass on. Loads a method if none
  // is loaded. After an error (a budget below the least one, which the error names) the budget is what it was.
  executorch::runtime::Error set_budget(std::uint64_t bytes);

  // The program's place in the order of its device, where the budget is shared: memory of a lower place goes first. A
  // number, the first place of that number, or the last one. It counts from the next pass of any model on. Loads a
  // method if none is loaded; Error::InvalidArgument for a budget of its own.
  executorch::runtime::Error set_priority(std::int64_t priority);
  executorch::runtime::Error prioritize();
  executorch::runtime::Error deprioritize();

  // Counters of a loaded method; Error::NotFound if it is not loaded.
  executorch::runtime::Result<Stats> stats(const std::string& method_name = "forward") const;

  // The least budget with which the program can be loaded, in bytes. Loads nothing.
  executorch::runtime::Result<std::uint64_t> required_budget(const std::string& method_name = "") const;

 private:
  // A session of the program that `first` has loaded.
  Module(const Module& first, SessionWeights&& weights);

  executorch::runtime::Error reorder(std::int32_t to, std::int64_t priority);

  // What every constructor does.
  void begin();

  // A loaded method; one is loaded if none is. Null, with the error kept, if that fails.
  executorch::runtime::Error load_any();

  // Whether this machine can load the methods of the program; asked again until it can. ExecuTorch keeps a program that
  // it has loaded.
  executorch::runtime::Error check_program();

  // What is wrong with an input that is no tensor on the CPU; empty if nothing is.
  std::string unlike_program(const std::string& method_name, const std::vector<executorch::runtime::EValue>& inputs);

  std::string pte_path_;
  std::string ptd_path_;
  Options options_;
  std::shared_ptr<Loads> loads_;
  std::shared_ptr<DenseInputs> dense_;
  std::vector<executorch::runtime::BackendOption> specs_;
  std::atomic<bool> executing_{false};
  bool has_options_ = false;
  bool checked_ = false;
  bool asked_for_inputs_ = false;
};

}  // namespace weightstream
