#include "explain.h"

#include <executorch/runtime/core/tag.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>
#include <string_view>

#include "weightstream/weightstream.h"
#include "words.h"

namespace weightstream {

namespace et = executorch::runtime;
using et::Error;
using et::EValue;

namespace {

// A value as Python writes it.
std::string value_text(const EValue& value) {
  std::ostringstream text;
  if (value.isNone()) {
    text << "None";
  } else if (value.isBool()) {
    text << (value.toBool() ? "True" : "False");
  } else if (value.isInt()) {
    text << value.toInt();
  } else if (value.isDouble()) {
    // The shortest text that is this number.
    char digits[32];
    const auto end = std::to_chars(std::begin(digits), std::end(digits), value.toDouble()).ptr;
    text << std::string_view(digits, end - digits) << " (a float)";
  } else if (value.isString()) {
    text << "'" << value.toString() << "'";
  } else {
    text << (value.isTensor() ? "a tensor" : et::tag_to_string(value.tag));
  }
  return text.str();
}

// Whether two values are the same; any two tensors are.
bool same_value(const EValue& one, const EValue& other) {
  if (one.tag != other.tag) {
    return false;
  }
  if (one.isDouble()) {
    const double left = one.toDouble();
    const double right = other.toDouble();
    return left == right || (left != left && right != right);
  }
  return (!one.isInt() || one.toInt() == other.toInt()) && (!one.isBool() || one.toBool() == other.toBool()) &&
         (!one.isString() || one.toString() == other.toString());
}

// Whether an input is refused whatever the method's sizes are: only the largest of dynamic ones are known here.
enum class Verdict { Right, Smaller, Wrong };

struct Explained {
  Verdict verdict;
  std::string what;
};

// What is wrong with one input. `expected` holds the largest sizes of a dynamic input.
Explained explain_tensor(const et::TensorInfo& expected, const EValue& value) {
  if (!value.isTensor()) {
    return {Verdict::Wrong, "expected a tensor"};
  }
  const auto& tensor = value.toTensor();
  std::ostringstream text;
  if (tensor.scalar_type() != expected.scalar_type()) {
    text << "expected dtype " << dtype_name(expected.scalar_type()) << ", found " << dtype_name(tensor.scalar_type());
    return {Verdict::Wrong, text.str()};
  }
  const auto sizes = expected.sizes();
  bool fits = sizes.size() == static_cast<std::size_t>(tensor.dim());
  bool equal = fits;
  for (std::size_t dim = 0; fits && dim < sizes.size(); ++dim) {
    fits = tensor.size(dim) <= sizes[dim];
    equal = equal && tensor.size(dim) == sizes[dim];
  }
  if (equal) {
    return {Verdict::Right, ""};
  }
  text << "expected " << sizes.size() << " dimensions of at most " << sizes_text(sizes) << ", found sizes "
       << sizes_text(tensor.sizes());
  return {fits ? Verdict::Smaller : Verdict::Wrong, text.str()};
}

std::string device_name(const executorch::aten::Tensor& tensor) {
  return tensor.device().is_cpu() ? "the cpu" : "cuda:" + std::to_string(static_cast<int>(tensor.device_index()));
}

std::string plain(const std::string& what, Error error) { return what + ": " + et::to_string(error); }

}  // namespace

std::string explain_count(std::size_t expected, std::size_t found) {
  return "invalid input: the program takes " + counted(expected, "input") + ", " + given(found);
}

std::string explain_method(executorch::extension::Module& module, const std::string& pte_path,
                           const std::string& method, Error error) {
  const auto names = module.method_names();
  std::uint64_t bytes = 0;
  if (names.ok() && names->count(method) == 0 &&
      ws_required_budget(pte_path.c_str(), method.c_str(), &bytes) == WS_MISSING) {
    return ws_last_error();
  }
  return plain("method '" + method + "'", error);
}

std::string explain_inputs(executorch::extension::Module& module, const std::string& pte_path,
                           const std::string& method, const std::vector<EValue>& inputs, Error error) {
  const auto names = module.method_names();
  if (names.ok() && names->count(method) == 0) {
    return explain_method(module, pte_path, method, error);
  }
  const auto meta = module.method_meta(method);
  if (!meta.ok()) {
    return plain("method '" + method + "'", error);
  }
  if (meta->num_inputs() != inputs.size()) {
    return explain_count(meta->num_inputs(), inputs.size());
  }
  std::string smaller;
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    const auto expected = meta->input_tensor_meta(index);
    const auto tag = meta->input_tag(index);
    if (tag.ok() && *tag != et::Tag::Tensor && *tag != inputs[index].tag) {
      return "invalid input: input " + std::to_string(index) + ": the program was exported with a value of type " +
             et::tag_to_string(*tag) + " there, found " + value_text(inputs[index]);
    }
    if (!expected.ok()) {
      continue;
    }
    const Explained explained = explain_tensor(*expected, inputs[index]);
    const std::string what = "input " + std::to_string(index) + ": " + explained.what;
    if (explained.verdict == Verdict::Wrong) {
      return "invalid input: " + what;
    }
    if (explained.verdict == Verdict::Smaller) {
      smaller += (smaller.empty() ? "" : "; or ") + what;
    }
  }
  if (!smaller.empty()) {
    return "invalid input: " + smaller;
  }
  return plain("method '" + method + "'", error);
}

std::string explain_values(const std::vector<EValue>& expected, const std::vector<EValue>& inputs) {
  for (std::size_t index = 0; index < std::min(expected.size(), inputs.size()); ++index) {
    if (!same_value(expected[index], inputs[index])) {
      return "invalid input: input " + std::to_string(index) + ": expected " + value_text(expected[index]) +
             ", as at export, found " + value_text(inputs[index]);
    }
  }
  return "";
}

std::string explain_devices(const std::vector<EValue>& expected, const std::vector<EValue>& inputs) {
  for (std::size_t index = 0; index < std::min(expected.size(), inputs.size()); ++index) {
    if (!expected[index].isTensor() || !inputs[index].isTensor()) {
      continue;
    }
    const auto& there = expected[index].toTensor();
    const auto& here = inputs[index].toTensor();
    if (there.device() == here.device()) {
      continue;
    }
    const std::string text = "invalid input: input " + std::to_string(index) + ": expected a tensor on " +
                             device_name(there) + ", found it on " + device_name(here);
    return there.device().is_cpu() ? text + "; copy it to the cpu, or save the program with device_io" : text;
  }
  return "";
}

std::string explain_files(const std::string& pte_path, Error error) {
  // The parser of the C interface names what is wrong with a program, and where.
  std::uint64_t bytes = 0;
  const ws_status status = ws_required_budget(pte_path.c_str(), "forward", &bytes);
  if (status == WS_IO || status == WS_MALFORMED) {
    return ws_last_error();
  }
  return plain(pte_path + " or its .ptd was refused by ExecuTorch", error);
}

}  // namespace weightstream
