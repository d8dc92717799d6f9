// Options as the Rust side takes them.
#pragma once

#include <string>
#include <type_traits>
#include <variant>

#include "weightstream/src/ffi/bridge.rs.h"

namespace weightstream {

// `value` is a variant of a bool, an int and a text: a string, or ExecuTorch's array of characters.
template <typename Value>
weightstream_bridge::RuntimeSpec to_spec(const std::string& key, const Value& value) {
  using weightstream_bridge::SpecKind;
  weightstream_bridge::RuntimeSpec spec{key, SpecKind::Text, 0, {}};
  if (const bool* flag = std::get_if<bool>(&value)) {
    spec.kind = SpecKind::Bool;
    spec.number = *flag ? 1 : 0;
  } else if (const int* number = std::get_if<int>(&value)) {
    spec.kind = SpecKind::Int;
    spec.number = *number;
  } else if constexpr (std::is_same_v<std::variant_alternative_t<2, Value>, std::string>) {
    spec.text = std::get<2>(value);
  } else {
    spec.text = std::string(std::get<2>(value).data());
  }
  return spec;
}

// Options with their keys.
template <typename Options>
rust::Vec<weightstream_bridge::RuntimeSpec> to_specs(const Options& options) {
  rust::Vec<weightstream_bridge::RuntimeSpec> specs;
  for (const auto& [key, value] : options) {
    specs.push_back(to_spec(key, value));
  }
  return specs;
}

}  // namespace weightstream
