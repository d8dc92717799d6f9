#include "python_api.h"

#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "errors.h"
#include "explain.h"
#include "loads.h"
#include "specs.h"
#include "weightstream/module.h"

namespace et = executorch::runtime;
namespace rs = weightstream_bridge;
using et::Error;
using executorch::aten::SizesType;
using executorch::aten::StridesType;
using executorch::extension::TensorPtr;

// One output of the last execution. Its sizes are widened: ExecuTorch counts in 32 bits.
struct KeptOutput {
  et::EValue value;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

struct wsm_module {
  explicit wsm_module(std::unique_ptr<weightstream::Module> held) : owned(std::move(held)), module(*owned) {}

  std::unique_ptr<weightstream::Module> owned;
  weightstream::Module& module;
  std::vector<KeptOutput> outputs;
  std::string stats_json;
};

namespace {

void require(const void* pointer, const char* name) {
  if (pointer == nullptr) {
    throw std::invalid_argument(std::string("argument '") + name + "' is NULL");
  }
}

// Runs `work`, which returns an error code; an exception becomes one, with its text kept.
template <typename Work>
int32_t guarded(Work work) {
  try {
    const Error error = work();
    if (error != Error::Ok && weightstream::last_error().empty()) {
      rs::set_error(et::to_string(error));
    }
    return static_cast<int32_t>(error);
  } catch (const std::exception& error) {
    rs::set_error(error.what());
    return static_cast<int32_t>(Error::InvalidArgument);
  }
}

weightstream::Options to_options(const ws_option* items, std::size_t count) {
  weightstream::Options options;
  for (std::size_t at = 0; at < count; ++at) {
    const ws_option& item = items[at];
    require(item.key, "key of an option");
    if (item.type == WS_OPTION_STRING) {
      require(item.text, item.key);
      options.set(item.key, std::string(item.text));
    } else if (item.type == WS_OPTION_BOOL) {
      options.set(item.key, item.number != 0);
    } else if (item.number < std::numeric_limits<int>::min() || item.number > std::numeric_limits<int>::max()) {
      throw std::invalid_argument(std::string("option '") + item.key + "': " + std::to_string(item.number) +
                                  " does not fit into ExecuTorch's int of 32 bits");
    } else {
      options.set(item.key, static_cast<int>(item.number));
    }
  }
  return options;
}

// ExecuTorch takes inputs that are missing from the call before.
void require_count(weightstream::Module& module, const char* method, std::size_t count) {
  const auto meta = module.method_meta(method);
  if (meta.ok() && meta->num_inputs() != count) {
    throw std::invalid_argument(weightstream::explain_count(meta->num_inputs(), count));
  }
}

// A tensor in any layout. ExecuTorch's own factories take dense ones only.
struct StridedTensor {
  StridedTensor(const ws_tensor& view, executorch::aten::Device device)
      : sizes(view.sizes, view.sizes + view.ndim),
        strides(view.strides, view.strides + view.ndim),
        order(sizes.size()),
        impl(static_cast<executorch::aten::ScalarType>(view.dtype), view.ndim, sizes.data(), view.data, order.data(),
             strides.data(), et::TensorShapeDynamism::DYNAMIC_BOUND, device.type(), device.index()),
        tensor(&impl) {
    std::iota(order.begin(), order.end(), 0);
  }
  StridedTensor(const StridedTensor&) = delete;
  StridedTensor& operator=(const StridedTensor&) = delete;

  std::vector<SizesType> sizes;
  std::vector<StridesType> strides;
  std::vector<executorch::aten::DimOrderType> order;
  et::etensor::TensorImpl impl;
  et::etensor::Tensor tensor;
};

bool is_empty(const ws_tensor& view) {
  return std::find(view.sizes, view.sizes + view.ndim, 0) != view.sizes + view.ndim;
}

// Refuses a tensor whose sizes and strides reach beyond its bytes.
void check_reach(const std::string& name, const ws_tensor& view) {
  const bool empty = is_empty(view);
  std::int64_t reach = empty ? 0 : 1;
  std::int64_t dense = 1;
  for (std::int32_t dim = view.ndim - 1; dim >= 0; --dim) {
    const std::int64_t size = view.sizes[dim];
    const std::int64_t stride = view.strides == nullptr ? dense : view.strides[dim];
    constexpr std::int64_t most = std::numeric_limits<SizesType>::max();
    if (size < 0 || size > most || stride < 0 || stride > most || dense > most * most) {
      throw std::invalid_argument(name + ": a size or a stride does not fit into 31 bits");
    }
    if (empty) {
      continue;
    }
    dense *= size;
    reach += (size - 1) * stride;
    if (reach > static_cast<std::int64_t>(view.nbytes)) {
      break;
    }
  }
  const auto dtype = static_cast<executorch::aten::ScalarType>(view.dtype);
  if (!et::isValid(dtype)) {
    throw std::invalid_argument(name + ": dtype number " + std::to_string(view.dtype) + " is unknown");
  }
  if (static_cast<std::size_t>(reach) > view.nbytes / et::elementSize(dtype)) {
    throw std::invalid_argument(name + ": its sizes and strides reach beyond its " + std::to_string(view.nbytes) +
                                " bytes");
  }
}

TensorPtr to_tensor(const std::string& name, const ws_tensor& view) {
  if (view.device_type != WS_DEVICE_CPU && view.device_type != WS_DEVICE_CUDA) {
    throw std::invalid_argument(name + ": it has device type " + std::to_string(view.device_type));
  }
  if (view.device_index < 0 || view.device_index > std::numeric_limits<et::etensor::DeviceIndex>::max()) {
    throw std::invalid_argument(name + ": it has device index " + std::to_string(view.device_index));
  }
  check_reach(name, view);
  const executorch::aten::Device device(static_cast<executorch::aten::DeviceType>(view.device_type),
                                        static_cast<et::etensor::DeviceIndex>(view.device_index));
  if (view.strides != nullptr && !is_empty(view)) {
    const auto strided = std::make_shared<StridedTensor>(view, device);
    return TensorPtr(strided, &strided->tensor);
  }
  const std::vector<SizesType> sizes(view.sizes, view.sizes + view.ndim);
  // ExecuTorch takes an input that it uses in place for one that is not set if its address is null, even if it has no
  // bytes.
  static char nothing;
  void* const data = view.data == nullptr && is_empty(view) ? &nothing : view.data;
  return executorch::extension::from_blob(data, sizes, static_cast<executorch::aten::ScalarType>(view.dtype), device);
}

// The inputs of a call as ExecuTorch takes them, and what they point into.
struct Inputs {
  Inputs(const wsm_value* given, std::size_t count) {
    texts.reserve(count);
    for (std::size_t at = 0; at < count; ++at) {
      values.push_back(to_value("invalid input: input " + std::to_string(at), given[at]));
    }
  }

  et::EValue to_value(const std::string& name, const wsm_value& given) {
    switch (given.kind) {
      case WSM_TENSOR:
        tensors.push_back(to_tensor(name, given.tensor));
        return tensors.back();
      case WSM_NONE:
        return et::EValue();
      case WSM_INT:
        return et::EValue(given.integer);
      case WSM_DOUBLE:
        return et::EValue(given.number);
      case WSM_BOOL:
        return et::EValue(given.integer != 0);
      case WSM_STRING:
        require(given.text, name.c_str());
        // Never written through, although ExecuTorch's type could be.
        texts.emplace_back(const_cast<char*>(given.text), given.length);
        return et::EValue(&texts.back());
      default:
        throw std::invalid_argument(name + ": it has the kind " + std::to_string(given.kind));
    }
  }

  std::vector<TensorPtr> tensors;
  std::vector<executorch::aten::ArrayRef<char>> texts;
  std::vector<et::EValue> values;
};

KeptOutput keep(const et::EValue& value) {
  KeptOutput output{value, {}, {}};
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    output.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    output.strides.assign(tensor.strides().begin(), tensor.strides().end());
  }
  return output;
}

wsm_value to_output(std::size_t index, const KeptOutput& kept) {
  const et::EValue& value = kept.value;
  wsm_value output{};
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    output.kind = WSM_TENSOR;
    output.tensor.data = tensor.mutable_data_ptr();
    output.tensor.nbytes = tensor.nbytes();
    output.tensor.dtype = static_cast<int32_t>(tensor.scalar_type());
    output.tensor.device_type = static_cast<int32_t>(tensor.device_type());
    output.tensor.device_index = tensor.device_index();
    output.tensor.ndim = static_cast<int32_t>(kept.sizes.size());
    output.tensor.sizes = kept.sizes.data();
    output.tensor.strides = kept.strides.data();
  } else if (value.isNone()) {
    output.kind = WSM_NONE;
  } else if (value.isInt()) {
    output.kind = WSM_INT;
    output.integer = value.toInt();
  } else if (value.isDouble()) {
    output.kind = WSM_DOUBLE;
    output.number = value.toDouble();
  } else if (value.isBool()) {
    output.kind = WSM_BOOL;
    output.integer = value.toBool() ? 1 : 0;
  } else if (value.isString()) {
    output.kind = WSM_STRING;
    output.text = value.toString().data();
    output.length = value.toString().size();
  } else {
    throw std::invalid_argument("output " + std::to_string(index) + " is a list, which has no place here");
  }
  return output;
}

}  // namespace

wsm_module* wsm_open(const char* pte_path, const char* ptd_path, const ws_option* options, size_t num_options) {
  wsm_module* module = nullptr;
  rs::clear_error();
  guarded([&] {
    require(pte_path, "pte_path");
    require(ptd_path, "ptd_path");
    if (num_options != 0) {
      require(options, "options");
    }
    auto held = std::make_unique<weightstream::Module>(pte_path, ptd_path, to_options(options, num_options));
    module = new wsm_module(std::move(held));
    return Error::Ok;
  });
  return module;
}

const char* wsm_command(const char* const* arguments, size_t count, int32_t* status) {
  static thread_local std::string text;
  rs::clear_error();
  const int32_t failed = guarded([&] {
    require(arguments, "arguments");
    require(status, "status");
    std::vector<rust::String> given;
    for (std::size_t at = 0; at < count; ++at) {
      require(arguments[at], "an argument");
      given.emplace_back(arguments[at]);
    }
    std::uint8_t code = 0;
    text = std::string(rs::command({given.data(), given.size()}, code));
    *status = code;
    return Error::Ok;
  });
  return failed == 0 ? text.c_str() : nullptr;
}

int32_t wsm_check_defaults(const ws_option* options, size_t num_options) {
  rs::clear_error();
  return guarded([&] {
    if (num_options != 0) {
      require(options, "options");
    }
    rs::check_defaults(weightstream::to_specs(to_options(options, num_options).specs()));
    return Error::Ok;
  });
}

int32_t wsm_load_method(wsm_module* module, const char* method) {
  rs::clear_error();
  return guarded([&] {
    require(module, "module");
    require(method, "method");
    const Error loaded = module->module.load();
    return loaded != Error::Ok ? loaded : module->module.load_method(method);
  });
}

int32_t wsm_call_inputs(const char* pte_path, const char* method, const wsm_call_input** inputs, size_t* count) {
  static thread_local std::vector<std::pair<std::string, std::string>> texts;
  static thread_local std::vector<wsm_call_input> views;
  rs::clear_error();
  return guarded([&] {
    require(pte_path, "pte_path");
    require(method, "method");
    require(inputs, "inputs");
    require(count, "count");
    const auto found = rs::call_inputs(pte_path, method);
    texts.clear();
    views.clear();
    for (const rs::CallInput& input : found) {
      texts.emplace_back(std::string(input.name), std::string(input.constant));
    }
    for (std::size_t at = 0; at < texts.size(); ++at) {
      views.push_back({texts[at].first.c_str(), found[at].place, texts[at].second.c_str()});
    }
    *inputs = views.data();
    *count = views.size();
    return Error::Ok;
  });
}

int32_t wsm_execute(wsm_module* module, const char* method, const wsm_value* inputs, size_t num_inputs) {
  rs::clear_error();
  return guarded([&] {
    require(module, "module");
    require(method, "method");
    if (num_inputs != 0) {
      require(inputs, "inputs");
    }
    require_count(module->module, method, num_inputs);
    const Inputs given(inputs, num_inputs);
    const auto outputs = module->module.execute(method, given.values);
    if (!outputs.ok()) {
      return outputs.error();
    }
    module->outputs.clear();
    for (const et::EValue& output : *outputs) {
      module->outputs.push_back(keep(output));
    }
    return Error::Ok;
  });
}

size_t wsm_num_outputs(const wsm_module* module) { return module == nullptr ? 0 : module->outputs.size(); }

int32_t wsm_output(const wsm_module* module, size_t index, wsm_value* output) {
  rs::clear_error();
  return guarded([&] {
    require(module, "module");
    require(output, "output");
    if (index >= module->outputs.size()) {
      throw std::invalid_argument("output " + std::to_string(index) + " is none of the last execution");
    }
    *output = to_output(index, module->outputs[index]);
    return Error::Ok;
  });
}

const char* wsm_stats_json(wsm_module* module, const char* method) {
  rs::clear_error();
  const int32_t failed = guarded([&] {
    require(module, "module");
    require(method, "method");
    const auto stats = module->module.stats(method);
    if (stats.ok()) {
      module->stats_json = weightstream::to_json(*stats);
    }
    return stats.error();
  });
  return failed == 0 ? module->stats_json.c_str() : nullptr;
}

wsm_module* wsm_new_session(wsm_module* module) {
  wsm_module* session = nullptr;
  rs::clear_error();
  guarded([&] {
    require(module, "module");
    auto held = module->module.new_session();
    if (held.ok()) {
      session = new wsm_module(std::move(*held));
    }
    return held.error();
  });
  return session;
}

int32_t wsm_reset_state(wsm_module* module) {
  rs::clear_error();
  return guarded([&] {
    require(module, "module");
    return module->module.reset_state();
  });
}

int32_t wsm_set_budget(wsm_module* module, uint64_t bytes) {
  rs::clear_error();
  return guarded([&] {
    require(module, "module");
    return module->module.set_budget(bytes);
  });
}

int32_t wsm_reorder(wsm_module* module, int32_t to, int64_t priority) {
  rs::clear_error();
  return guarded([&] {
    require(module, "module");
    auto& one = module->module;
    return to == 0 ? one.set_priority(priority) : to == 1 ? one.prioritize() : one.deprioritize();
  });
}

void wsm_close(wsm_module* module) { delete module; }
