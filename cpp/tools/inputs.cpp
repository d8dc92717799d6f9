#include "inputs.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace weightstream::tool {

namespace {

using executorch::aten::BFloat16;
using executorch::aten::Half;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::TensorPtr;

template <typename T, typename Make>
void fill(std::vector<std::uint8_t>& bytes, Make make) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    const T value = static_cast<T>(make());
    std::memcpy(bytes.data() + at, &value, sizeof(T));
  }
}

void fill_random(ScalarType dtype, std::vector<std::uint8_t>& bytes, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  const auto number = [&] { return normal(random); };
  const auto index = [&] { return static_cast<int>(random() % 8); };
  switch (dtype) {
    case ScalarType::Float:
      return fill<float>(bytes, number);
    case ScalarType::Double:
      return fill<double>(bytes, number);
    case ScalarType::Half:
      return fill<Half>(bytes, number);
    case ScalarType::BFloat16:
      return fill<BFloat16>(bytes, number);
    case ScalarType::Long:
      return fill<std::int64_t>(bytes, index);
    case ScalarType::Int:
      return fill<std::int32_t>(bytes, index);
    case ScalarType::Short:
      return fill<std::int16_t>(bytes, index);
    case ScalarType::Char:
    case ScalarType::Byte:
      return fill<std::uint8_t>(bytes, index);
    case ScalarType::Bool:
      return fill<std::uint8_t>(bytes, [&] { return random() % 2; });
    default:
      throw std::runtime_error(std::string("no random values for dtype ") + executorch::runtime::toString(dtype) +
                               "; give the inputs with --input");
  }
}

std::vector<std::uint8_t> read(std::size_t index, const std::string& path, std::size_t expected) {
  const std::string name = "input " + std::to_string(index) + ": " + path;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(name + ": cannot open it");
  }
  std::vector<std::uint8_t> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.size() != expected) {
    throw std::runtime_error(name + ": expected " + std::to_string(expected) + " bytes, found " +
                             std::to_string(bytes.size()));
  }
  return bytes;
}

bool is_tensor(const executorch::runtime::MethodMeta& meta, std::size_t index) {
  const auto tag = meta.input_tag(index);
  return tag.ok() && *tag == executorch::runtime::Tag::Tensor;
}

}  // namespace

std::vector<TensorPtr> make_inputs(const executorch::runtime::MethodMeta& meta, const std::vector<std::string>& files,
                                   std::uint64_t seed) {
  std::size_t count = 0;
  for (std::size_t index = 0; index < meta.num_inputs(); ++index) {
    count += is_tensor(meta, index) ? 1 : 0;
  }
  if (!files.empty() && files.size() != count) {
    throw std::runtime_error("the method takes " + std::to_string(count) + " tensors, " + std::to_string(files.size()) +
                             " were given with --input");
  }
  std::mt19937_64 random(seed);
  std::vector<TensorPtr> inputs;
  std::size_t next_file = 0;
  for (std::size_t index = 0; index < meta.num_inputs(); ++index) {
    const auto info = meta.input_tensor_meta(index);
    if (!info.ok()) {
      inputs.push_back(nullptr);
      continue;
    }
    std::vector<std::uint8_t> bytes(info->nbytes());
    if (files.empty()) {
      fill_random(info->scalar_type(), bytes, random);
    } else {
      bytes = read(index, files[next_file++], bytes.size());
    }
    std::vector<SizesType> sizes(info->sizes().begin(), info->sizes().end());
    inputs.push_back(executorch::extension::make_tensor_ptr(std::move(sizes), std::move(bytes), info->scalar_type()));
  }
  return inputs;
}

}  // namespace weightstream::tool
