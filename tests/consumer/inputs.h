// Inputs of zeros for a method.
#pragma once

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <vector>

inline std::vector<executorch::extension::TensorPtr> zeros(const executorch::runtime::MethodMeta& meta) {
  std::vector<executorch::extension::TensorPtr> tensors;
  for (size_t index = 0; index < meta.num_inputs(); ++index) {
    const auto info = meta.input_tensor_meta(index);
    tensors.push_back(executorch::extension::zeros({info->sizes().begin(), info->sizes().end()}, info->scalar_type()));
  }
  return tensors;
}
