// The backend as ExecuTorch sees it: glue between its types and the Rust delegate. No policy here.

#include "weightstream/backend.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "guarded.h"
#include "loads.h"
#include "specs.h"
#include "tensors.h"

namespace weightstream {

namespace et = executorch::runtime;
namespace rs = weightstream_bridge;

namespace {

// Keeps the buffers of named data alive: until the delegate is loaded, or for as long as its program lives.
class NamedBuffers final : public rs::NamedData {
 public:
  // `weights`: where to look for what `map` does not have; may be null.
  NamedBuffers(const et::NamedDataMap* map, const et::NamedDataMap* weights) : map_(map), weights_(weights) {}

  rust::Slice<const std::uint8_t> bytes(rust::Str key) const override {
    // A string, not a view: ExecuTorch reads keys up to their NUL.
    const std::string name(key);
    auto found = buffers_.find(name);
    if (found == buffers_.end()) {
      ask([&](const et::NamedDataMap& map) {
        auto buffer = map.get_data(name);
        if (buffer.ok()) {
          found = buffers_.emplace(name, std::move(buffer.get())).first;
        }
        return buffer.error();
      });
    }
    const et::FreeableBuffer& kept = found->second;
    return {static_cast<const std::uint8_t*>(kept.data()), kept.size()};
  }

  void layout(rust::Str key, rust::Vec<std::int64_t>& into) const override {
    const std::string name(key);
    ask([&](const et::NamedDataMap& map) {
      const auto layout = map.get_tensor_layout(name);
      if (layout.ok()) {
        into.push_back(static_cast<std::int64_t>(layout->scalar_type()));
        for (const std::int32_t size : layout->sizes()) {
          into.push_back(size);
        }
        for (const std::uint8_t dim : layout->dim_order()) {
          into.push_back(dim);
        }
      }
      return layout.error();
    });
  }

 private:
  template <typename Question>
  void ask(Question question) const {
    if (map_ == nullptr) {
      throw std::runtime_error("the program was loaded without named data");
    }
    et::Error error = question(*map_);
    if (error != et::Error::Ok && weights_ != nullptr) {
      error = question(*weights_);
    }
    if (error != et::Error::Ok) {
      throw std::runtime_error(et::to_string(error));
    }
  }

  const et::NamedDataMap* map_;
  const et::NamedDataMap* weights_;
  // Nodes of their own: what a buffer holds stays in place when others are added.
  mutable std::unordered_map<std::string, et::FreeableBuffer> buffers_;
};

// Addresses in the tables of the program: they tell which loaded program a method belongs to.
std::vector<std::size_t> addresses_of(const char* method, et::ArrayRef<et::CompileSpec> specs) {
  std::vector<std::size_t> addresses{reinterpret_cast<std::size_t>(method)};
  for (const et::CompileSpec& spec : specs) {
    addresses.push_back(reinterpret_cast<std::size_t>(spec.key));
  }
  return addresses;
}

// A switch is told as a bool, and as an int to a caller that asks with one.
void set_value(et::BackendOption& option, const rs::RuntimeSpec& spec) {
  if (spec.kind == rs::SpecKind::Bool && !std::holds_alternative<int>(option.value)) {
    option.value = spec.number != 0;
  } else if (spec.kind != rs::SpecKind::Text) {
    option.value = static_cast<int>(spec.number);
  } else {
    // Shorter than the field: what is as long as that is refused when it is set.
    std::array<char, et::kMaxOptionValueLength> text{};
    std::copy(spec.text.begin(), spec.text.end(), text.begin());
    option.value = text;
  }
}

// The Module that loads, if it is one of ours; its spec is taken out of `specs`.
std::shared_ptr<Loads> take_module(rust::Vec<rs::RuntimeSpec>& specs, et::Span<const et::BackendOption> options) {
  std::shared_ptr<Loads> loads;
  for (const et::BackendOption& option : options) {
    const int* number = std::get_if<int>(&option.value);
    if (std::string_view(option.key) == kModuleKey && number != nullptr) {
      loads = loads_of(*number);
    } else {
      specs.push_back(to_spec(option.key, option.value));
    }
  }
  return loads;
}

// Defaults that the program holds for our options, as texts.
rust::Vec<rs::RuntimeSpec> program_defaults(et::ArrayRef<et::CompileSpec> specs) {
  rust::Vec<rs::RuntimeSpec> defaults;
  for (const et::CompileSpec& spec : specs) {
    if (std::string_view(spec.key).rfind("weight_offload", 0) == 0) {
      const std::string text(static_cast<const char*>(spec.value.buffer), spec.value.nbytes);
      defaults.push_back({spec.key, rs::SpecKind::Text, 0, text});
    }
  }
  return defaults;
}

LoadedPtr load(const et::BackendInitContext& context, const et::FreeableBuffer& processed,
               et::ArrayRef<et::CompileSpec> compile_specs) {
  rust::Vec<rs::RuntimeSpec> specs;
  const std::shared_ptr<Loads> loads = take_module(specs, context.runtime_specs());
  const rust::Slice<const std::uint8_t> payload(static_cast<const std::uint8_t*>(processed.data()), processed.size());
  const char* method = context.get_method_name();
  const std::vector<std::size_t> addresses = addresses_of(method, compile_specs);
  // A Module of ours knows its program; others are told apart by where their programs lie.
  const LoadedPtr own = loads == nullptr ? nullptr : loads->any();
  const LoadedPtr first = loads == nullptr || own != nullptr ? nullptr : loads->first();
  std::vector<rs::Beside> beside;
  if (const LoadedPtr& before = own != nullptr ? own : first) {
    beside.push_back({**before, first != nullptr});
  }
  const auto loaded = std::make_shared<rust::Box<rs::Loaded>>(rs::load(
      payload, method == nullptr ? "" : method, {addresses.data(), addresses.size()}, std::move(specs),
      program_defaults(compile_specs),
      std::make_shared<NamedBuffers>(context.get_named_data_map(), loads == nullptr ? nullptr : loads->weights()),
      {beside.data(), beside.size()}));
  if (loads != nullptr) {
    loads->add(loaded);
  }
  return loaded;
}

class WeightStreamBackend final : public et::BackendInterface {
 public:
  bool is_available() const override { return true; }

  et::Result<et::DelegateHandle*> init(et::BackendInitContext& context, et::FreeableBuffer* processed,
                                       et::ArrayRef<et::CompileSpec> compile_specs) const override {
    LoadedPtr loaded;
    const et::Error error = guarded("load failed", [&] { loaded = load(context, *processed, compile_specs); });
    if (error != et::Error::Ok) {
      return error;
    }
    processed->Free();
    if ((*loaded)->device() == "cuda") {
      // So that inputs can be put there with what ExecuTorch has for it.
      register_cuda_allocator();
    }
    return new LoadedPtr(std::move(loaded));
  }

  et::Error execute(et::BackendExecutionContext&, et::DelegateHandle* handle,
                    et::Span<et::EValue*> args) const override {
    return guarded("execute failed", [&] {
      const rs::Loaded& loaded = **static_cast<LoadedPtr*>(handle)->get();
      CallArguments call(args, loaded);
      loaded.execute(call.inputs(), call);
    });
  }

  // Defaults of this process, for loads that come later.
  et::Error set_option(et::BackendOptionContext&, const et::Span<et::BackendOption>& options) override {
    return guarded("set_option", [&] {
      rust::Vec<rs::RuntimeSpec> specs;
      for (const et::BackendOption& option : options) {
        specs.push_back(to_spec(option.key, option.value));
      }
      rs::set_defaults(std::move(specs));
    });
  }

  et::Error get_option(et::BackendOptionContext&, et::Span<et::BackendOption>& options) override {
    return guarded("get_option", [&] {
      for (et::BackendOption& option : options) {
        set_value(option, rs::get_default(option.key));
      }
    });
  }

  void destroy(et::DelegateHandle* handle) const override { delete static_cast<LoadedPtr*>(handle); }
};

void log_line(ws_log_level level, const char* text) {
  const et::LogLevel levels[] = {et::LogLevel::Debug, et::LogLevel::Info, et::LogLevel::Info, et::LogLevel::Error};
  log_text(levels[level], std::string("WeightStream: ") + text);
}

}  // namespace

et::Error register_backend() {
  // Never destroyed: ExecuTorch keeps the pointer until the process ends.
  static WeightStreamBackend* const backend = new WeightStreamBackend();
  if (et::get_backend_class(kBackendId) == backend) {
    return et::Error::Ok;
  }
  ws_set_log(log_line);
  return et::register_backend({kBackendId, backend});
}

std::string last_error() { return ws_last_error(); }

namespace {
[[maybe_unused]] const et::Error kRegistered = register_backend();
}  // namespace

}  // namespace weightstream
