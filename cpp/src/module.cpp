#include "weightstream/module.h"

#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>

#include <algorithm>
#include <cstring>

#include "dense.h"
#include "errors.h"
#include "explain.h"
#include "guarded.h"
#include "loads.h"
#include "specs.h"

namespace weightstream {

namespace et = executorch::runtime;
namespace rs = weightstream_bridge;
using executorch::runtime::Error;

namespace {

// The backend is not given the program, and refuses this key: it is for the check before ExecuTorch's load.
constexpr const char* kPteSha256 = "weight_offload_pte_sha256";

// ExecuTorch's options are fixed-size fields that cut what is longer. The backend refuses a value as long
// as the field, so nothing that was cut here is ever used.
template <std::size_t N>
void copy_cut(char (&to)[N], const std::string& from) {
  const std::size_t length = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

et::BackendOption to_option(const std::string& key, const Options::Value& value) {
  et::BackendOption option;
  copy_cut(option.key, key);
  if (const auto* flag = std::get_if<bool>(&value)) {
    option.value = *flag;
  } else if (const auto* number = std::get_if<int>(&value)) {
    option.value = *number;
  } else {
    char text[et::kMaxOptionValueLength];
    copy_cut(text, std::get<std::string>(value));
    std::array<char, et::kMaxOptionValueLength> field{};
    std::copy(std::begin(text), std::end(text), field.begin());
    option.value = field;
  }
  return option;
}

Error fail(Error error, const std::string& text) {
  rs::set_error(text);
  log_text(et::LogLevel::Error, "WeightStream: " + text);
  return error;
}

// Logs what the Rust side refused.
Error refused(const rust::Error& error) {
  log_text(et::LogLevel::Error, std::string("WeightStream: ") + error.what());
  return to_error(static_cast<ws_status>(rs::last_status()));
}

// Asks something of a loaded method.
template <typename Action>
Error tell(const LoadedPtr& loaded, const Action& action) {
  try {
    action(**loaded);
    return Error::Ok;
  } catch (const rust::Error& error) {
    return refused(error);
  }
}

// Checks the options and both files before ExecuTorch opens them: its own errors name neither the file nor the place.
Error check_files(const std::string& pte, const std::string& ptd, const Options& options) {
  try {
    rs::check_files(pte, ptd, to_specs(options.specs()));
    return Error::Ok;
  } catch (const rust::Error& error) {
    return refused(error);
  } catch (const std::exception& error) {  // a text that is not UTF-8
    return fail(Error::InvalidArgument, std::string("an option or a path: ") + error.what());
  }
}

// Whether ExecuTorch needs memory of a GPU to load one of the program's methods.
bool plans_device_memory(const et::Program& program) {
  for (std::size_t at = 0; at < program.num_methods(); ++at) {
    const auto name = program.get_method_name(at);
    if (!name.ok()) {
      continue;
    }
    const auto meta = program.method_meta(*name);
    for (std::size_t buffer = 0; meta.ok() && buffer < meta->num_memory_planned_buffers(); ++buffer) {
      const auto device = meta->memory_planned_buffer_device(buffer);
      if (device.ok() && !device->is_cpu()) {
        return true;
      }
    }
  }
  return false;
}

// Whether this machine has the memory that ExecuTorch takes on the host for each of the program's methods.
Error check_plans(const et::Program& program) {
  for (std::size_t at = 0; at < program.num_methods(); ++at) {
    const auto name = program.get_method_name(at);
    if (!name.ok()) {
      continue;
    }
    std::uint64_t bytes = 0;
    const auto meta = program.method_meta(*name);
    for (std::size_t buffer = 0; meta.ok() && buffer < meta->num_memory_planned_buffers(); ++buffer) {
      const auto device = meta->memory_planned_buffer_device(buffer);
      const auto size = meta->memory_planned_buffer_size(buffer);
      if (size.ok() && (!device.ok() || device->is_cpu())) {
        bytes += static_cast<std::uint64_t>(*size);
      }
    }
    try {
      rs::check_plan(*name, bytes);
    } catch (const rust::Error& error) {
      return refused(error);
    }
  }
  return Error::Ok;
}

// Whether this is the process in which a method was loaded; one that is not loaded yet can be loaded in any.
Error check_process(const LoadedPtr& loaded) {
  try {
    if (loaded != nullptr) {
      (*loaded)->check_process();
    }
    return Error::Ok;
  } catch (const rust::Error& error) {
    return refused(error);
  }
}

// Marks a Module as executing while it lives.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& executing) : executing_(executing), mine_(!executing.exchange(true)) {}
  ~Turn() {
    if (mine_) {
      executing_ = false;
    }
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool mine() const { return mine_; }

 private:
  std::atomic<bool>& executing_;
  const bool mine_;
};

}  // namespace

et::Result<std::uint64_t> required_budget(const std::string& pte_path, const std::string& method,
                                          const std::string& ptd_path) {
  std::uint64_t bytes = 0;
  const char* name = method.empty() ? nullptr : method.c_str();
  const ws_status status = ptd_path.empty()
                               ? ws_required_budget(pte_path.c_str(), name, &bytes)
                               : ws_required_budget_with_data(pte_path.c_str(), ptd_path.c_str(), name, &bytes);
  if (status != WS_OK) {
    return to_error(status);
  }
  return bytes;
}

Module::Module(const std::string& pte_path, const std::string& ptd_path, Options options)
    : Base(pte_path, ptd_path, Base::LoadMode::Mmap),
      pte_path_(pte_path),
      ptd_path_(ptd_path),
      options_(std::move(options)),
      dense_(std::make_shared<DenseInputs>()) {
  begin();
}

Module::Module(const Module& first, SessionWeights&& weights)
    : Base(first.program()),
      pte_path_(first.pte_path_),
      ptd_path_(first.ptd_path_),
      options_(first.options_),
      dense_(std::make_shared<DenseInputs>()) {
  begin();
  loads_->begin_session(first.loads_->any(), std::move(weights));
}

void Module::begin() {
  auto [number, loads] = open_loads();
  loads_ = std::move(loads);
  for (const auto& [key, value] : options_.specs()) {
    if (key != kPteSha256) {
      specs_.push_back(to_option(key, value));
    }
  }
  specs_.push_back(to_option(kModuleKey, number));
}

Error Module::load(Verification verification) { return load(et::LoadBackendOptionsMap(), verification); }

Error Module::load(const et::LoadBackendOptionsMap& backend_options, Verification verification) {
  // Not is_loaded(): a session has its program from the start, and no options before its first load.
  if (has_options_) {
    const Error here = check_process(loads_->any());
    return here != Error::Ok ? here : check_program();
  }
  if (backend_options.has_options(kBackendId)) {
    return fail(Error::InvalidArgument, std::string("options of ") + kBackendId +
                                            " are given to weightstream::Module's constructor, not to load()");
  }
  et::LoadBackendOptionsMap all = backend_options;
  const Error error = all.set_options(kBackendId, {specs_.data(), specs_.size()});
  if (error != Error::Ok) {
    return fail(error, "too many backends have options");
  }
  rs::clear_error();
  const Error checked = check_files(pte_path_, ptd_path_, options_);
  if (checked != Error::Ok) {
    return checked;
  }
  // ExecuTorch reads what its minimal verification lets through without further checks, and may crash on it.
  const Error loaded =
      Base::load(all, verification == Verification::Minimal ? Verification::InternalConsistency : verification);
  if (loaded != Error::Ok && last_error().empty()) {
    rs::set_error(explain_files(pte_path_, loaded));
  }
  has_options_ = loaded == Error::Ok;
  return has_options_ ? check_program() : loaded;
}

Error Module::check_program() {
  if (!checked_) {
    const Error fits = check_plans(*program());
    if (fits != Error::Ok) {
      return fits;
    }
    if (plans_device_memory(*program())) {
      register_cuda_allocator();
    }
    checked_ = true;
  }
  return Error::Ok;
}

et::Result<std::vector<et::EValue>> Module::execute(const std::string& method_name,
                                                    const std::vector<et::EValue>& input_values) {
  // Before the turn, which another thread may have had at a fork.
  const Error here = check_process(loads_->find(method_name));
  if (here != Error::Ok) {
    return here;
  }
  const Turn turn(executing_);
  if (!turn.mine()) {
    return fail(Error::InvalidState,
                "this module is executing already: one execute at a time; load a second one for a second thread");
  }
  rs::clear_error();
  const std::string unlike = unlike_program(method_name, input_values);
  if (!unlike.empty()) {
    return fail(Error::InvalidArgument, unlike);
  }
  const std::vector<et::EValue>* inputs = nullptr;
  const Error copied = guarded("copying an input", [&] { inputs = &dense_->of(input_values); });
  if (copied != Error::Ok) {
    return copied;
  }
  auto outputs = Base::execute(method_name, *inputs);
  if (const LoadedPtr loaded = dense_->copied() == 0 ? nullptr : loads_->find(method_name)) {
    (*loaded)->count_inputs_copied(dense_->copied());
  }
  if (!outputs.ok() && last_error().empty()) {
    rs::set_error(explain_inputs(*this, pte_path_, method_name, input_values, outputs.error()));
  }
  return outputs;
}

std::string Module::unlike_program(const std::string& method_name, const std::vector<et::EValue>& inputs) {
  const bool unusual = std::any_of(inputs.begin(), inputs.end(), [](const et::EValue& input) {
    return !input.isTensor() || !input.toTensor().device().is_cpu();
  });
  if ((!unusual && !asked_for_inputs_) || load_method(method_name) != Error::Ok) {
    return "";
  }
  const et::Method& method = *methods_.at(method_name).method;
  if (inputs.size() != method.inputs_size()) {
    return explain_count(method.inputs_size(), inputs.size());
  }
  // ExecuTorch counts an input that was asked for as set, so from here on no call may leave one out.
  asked_for_inputs_ = true;
  std::vector<et::EValue> expected;
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    // Deprecated for MethodMeta, which does not tell the device of an input.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    expected.push_back(method.get_input(index));
#pragma GCC diagnostic pop
  }
  const std::string value = explain_values(expected, inputs);
  return value.empty() ? explain_devices(expected, inputs) : value;
}

Error Module::load_method(const std::string& method_name, et::HierarchicalAllocator* planned_memory,
                          et::EventTracer* event_tracer, const et::LoadBackendOptionsMap* backend_options,
                          std::vector<et::Kernel> kernel_registry) {
  rs::clear_error();
  const Error loaded =
      Base::load_method(method_name, planned_memory, event_tracer, backend_options, std::move(kernel_registry));
  if (loaded != Error::Ok && last_error().empty()) {
    rs::set_error(explain_method(*this, pte_path_, method_name, loaded));
  }
  return loaded;
}

et::Result<std::vector<std::pair<std::int64_t, std::int64_t>>> Module::input_range(const std::string& method_name,
                                                                                   std::size_t input) const {
  try {
    const rust::Vec<std::int64_t> sizes = rs::input_range(pte_path_, method_name, input);
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    for (std::size_t at = 0; at + 1 < sizes.size(); at += 2) {
      ranges.emplace_back(sizes[at], sizes[at + 1]);
    }
    return ranges;
  } catch (const rust::Error& error) {
    return refused(error);
  }
}

et::Result<std::vector<std::string>> Module::methods() const {
  try {
    std::vector<std::string> names;
    for (const rust::String& name : rs::methods(pte_path_)) {
      names.emplace_back(name);
    }
    return names;
  } catch (const rust::Error& error) {
    return refused(error);
  }
}

Error Module::load_any() {
  if (loads_->any() != nullptr) {
    return Error::Ok;
  }
  const Error loaded = load();
  if (loaded != Error::Ok) {
    return loaded;
  }
  const auto names = methods();
  if (!names.ok()) {
    return names.error();
  }
  return names->empty() ? fail(Error::NotFound, pte_path_ + " has no method that runs here")
                        : load_method(names->front());
}

et::Result<std::unique_ptr<Module>> Module::new_session() {
  const Error loaded = load_any();
  if (loaded != Error::Ok) {
    return loaded;
  }
  auto weights = executorch::extension::MmapDataLoader::from(ptd_path_.c_str());
  if (!weights.ok()) {
    return fail(weights.error(), "mapping " + ptd_path_ + " for a session failed");
  }
  auto loader = std::make_unique<executorch::extension::MmapDataLoader>(std::move(*weights));
  auto map = executorch::extension::FlatTensorDataMap::load(loader.get());
  if (!map.ok()) {
    return fail(map.error(), "reading " + ptd_path_ + " for a session failed");
  }
  using Map = executorch::extension::FlatTensorDataMap;
  return std::unique_ptr<Module>(new Module(*this, {std::move(loader), std::make_unique<Map>(std::move(*map))}));
}

Error Module::reset_state() {
  const Error loaded = load_any();
  return loaded != Error::Ok ? loaded : tell(loads_->any(), [](const rs::Loaded& one) { one.reset_state(); });
}

Error Module::set_budget(std::uint64_t bytes) {
  const Error loaded = load_any();
  return loaded != Error::Ok ? loaded : tell(loads_->any(), [bytes](const rs::Loaded& one) { one.set_budget(bytes); });
}

Error Module::reorder(std::int32_t to, std::int64_t priority) {
  const Error loaded = load_any();
  return loaded != Error::Ok ? loaded : tell(loads_->any(), [=](const rs::Loaded& one) { one.reorder(to, priority); });
}

Error Module::set_priority(std::int64_t priority) { return reorder(0, priority); }

Error Module::prioritize() { return reorder(1, 0); }

Error Module::deprioritize() { return reorder(2, 0); }

et::Result<Stats> Module::stats(const std::string& method_name) const {
  const LoadedPtr loaded = loads_->find(method_name);
  if (loaded == nullptr) {
    return fail(Error::NotFound, "method '" + method_name + "' is not loaded");
  }
  const Error here = check_process(loaded);
  if (here != Error::Ok) {
    return here;
  }
  Stats stats;
  static_cast<ws_stats_data&>(stats) = (*loaded)->stats();
  const rust::Str options = (*loaded)->options();
  stats.options_json.assign(options.data(), options.size());
  return stats;
}

et::Result<std::uint64_t> Module::required_budget(const std::string& method_name) const {
  return weightstream::required_budget(pte_path_, method_name, ptd_path_);
}

std::vector<std::pair<std::string, std::uint64_t>> counters(const Stats& stats) {
  std::vector<std::pair<std::string, std::uint64_t>> named;
  for (const rs::Counter& counter : rs::counters(stats)) {
    named.emplace_back(std::string(counter.name), counter.value);
  }
  return named;
}

std::string to_json(const Stats& stats) {
  return std::string(rs::stats_json(stats, stats.options_json.empty() ? "{}" : stats.options_json));
}

}  // namespace weightstream
