// Words for failures that ExecuTorch reports as a bare code, before the backend is asked.
#pragma once

#include <executorch/extension/module/module.h>
#include <executorch/runtime/core/evalue.h>

#include <string>
#include <vector>

namespace weightstream {

// Why these inputs were refused: the first one that the method cannot take, or all that it may not take.
std::string explain_inputs(executorch::extension::Module& module, const std::string& pte_path,
                           const std::string& method, const std::vector<executorch::runtime::EValue>& inputs,
                           executorch::runtime::Error error);

// Why a method was not loaded.
std::string explain_method(executorch::extension::Module& module, const std::string& pte_path,
                           const std::string& method, executorch::runtime::Error error);

// A call has too few inputs, or too many.
std::string explain_count(std::size_t expected, std::size_t found);

// Why a program was not loaded.
std::string explain_files(const std::string& pte_path, executorch::runtime::Error error);

// Which number, string or None among a call's inputs differs from the one that is part of the program; an empty text if
// none does. `expected` are the method's own inputs.
std::string explain_values(const std::vector<executorch::runtime::EValue>& expected,
                           const std::vector<executorch::runtime::EValue>& inputs);

// What is wrong with the devices that a call's inputs lie on, or an empty text; `expected` are the method's own inputs.
std::string explain_devices(const std::vector<executorch::runtime::EValue>& expected,
                            const std::vector<executorch::runtime::EValue>& inputs);

}  // namespace weightstream
