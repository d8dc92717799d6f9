// Inputs of weightstream-run: from files, or random.
#pragma once

#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/executor/method_meta.h>

#include <cstdint>
#include <string>
#include <vector>

#include "weightstream/module.h"

namespace weightstream::tool {

// Tensors for a method of a program, of the largest sizes it takes; a file may be smaller where one size only is
// dynamic. Throws std::runtime_error with a text for the user. Null in the place of an input that is no tensor, and has
// no file: it is part of the program. Random ones are normal numbers for floating types, 0 or 1 for bool, and 0 to 7
// for integers, which are indices as a rule.
std::vector<executorch::extension::TensorPtr> make_inputs(const Module& module, const std::string& method,
                                                          const executorch::runtime::MethodMeta& meta,
                                                          const std::vector<std::string>& files, std::uint64_t seed);

}  // namespace weightstream::tool
