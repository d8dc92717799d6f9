// The backend as ExecuTorch sees it: glue between its types and the Rust delegate. No policy here.

#include "weightstream/backend.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/runtime.h>

#include <exception>
#include <optional>
#include <stdexcept>
#include <variant>

#include "guarded.h"
#include "loads.h"
#include "tensors.h"

namespace weightstream {

namespace et = executorch::runtime;
namespace rs = weightstream_bridge;

namespace {

// Keeps the buffers of named data alive until the delegate is loaded.
class NamedBuffers final : public rs::NamedData {
 public:
  explicit NamedBuffers(const et::NamedDataMap* map) : map_(map) {}

  rust::Slice<const std::uint8_t> bytes(rust::Str key) const override {
    if (map_ == nullptr) {
      throw std::runtime_error("the program was loaded without named data");
    }
    // A string, not a view: ExecuTorch reads keys up to their NUL.
    auto buffer = map_->get_data(std::string(key));
    if (!buffer.ok()) {
      throw std::runtime_error(et::to_string(buffer.error()));
    }
    buffers_.push_back(std::move(buffer.get()));
    const et::FreeableBuffer& kept = buffers_.back();
    return {static_cast<const std::uint8_t*>(kept.data()), kept.size()};
  }

 private:
  const et::NamedDataMap* map_;
  // A vector of non-assignable buffers: they can be moved when it grows, and their data stays in place.
  mutable std::vector<et::FreeableBuffer> buffers_;
};

rs::RuntimeSpec to_spec(const et::BackendOption& option) {
  rs::RuntimeSpec spec;
  spec.key = option.key;
  spec.number = 0;
  if (const bool* flag = std::get_if<bool>(&option.value)) {
    spec.kind = rs::SpecKind::Bool;
    spec.number = *flag ? 1 : 0;
  } else if (const int* number = std::get_if<int>(&option.value)) {
    spec.kind = rs::SpecKind::Int;
    spec.number = *number;
  } else {
    spec.kind = rs::SpecKind::Text;
    spec.text = std::get<2>(option.value).data();
  }
  return spec;
}

// The Module that loads, if it is one of ours; its spec is taken out of `specs`.
std::shared_ptr<Loads> take_module(rust::Vec<rs::RuntimeSpec>& specs, et::Span<const et::BackendOption> options) {
  std::shared_ptr<Loads> loads;
  for (const et::BackendOption& option : options) {
    const int* number = std::get_if<int>(&option.value);
    if (std::string_view(option.key) == kModuleKey && number != nullptr) {
      loads = loads_of(*number);
    } else {
      specs.push_back(to_spec(option));
    }
  }
  return loads;
}

LoadedPtr load(const et::BackendInitContext& context, const et::FreeableBuffer& processed) {
  rust::Vec<rs::RuntimeSpec> specs;
  const std::shared_ptr<Loads> loads = take_module(specs, context.runtime_specs());
  const NamedBuffers named(context.get_named_data_map());
  const rust::Slice<const std::uint8_t> payload(static_cast<const std::uint8_t*>(processed.data()), processed.size());
  const char* method = context.get_method_name();
  auto loaded = std::make_shared<rust::Box<rs::Loaded>>(
      rs::load(payload, method == nullptr ? "" : method, std::move(specs), named));
  if (loads != nullptr) {
    loads->add(loaded);
  }
  return loaded;
}

class WeightStreamBackend final : public et::BackendInterface {
 public:
  bool is_available() const override { return true; }

  et::Result<et::DelegateHandle*> init(et::BackendInitContext& context, et::FreeableBuffer* processed,
                                       et::ArrayRef<et::CompileSpec>) const override {
    LoadedPtr loaded;
    const et::Error error = guarded("load failed", [&] { loaded = load(context, *processed); });
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
