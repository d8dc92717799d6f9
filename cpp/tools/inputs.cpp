#include "inputs.h"

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "arguments.h"
#include "words.h"

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
      throw std::runtime_error(std::string("no random values for dtype ") + dtype_name(dtype) +
                               "; give the inputs with --input");
  }
}

using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// The one dimension whose size may differ; none if there are several.
std::optional<std::size_t> dynamic_dimension(const Ranges& ranges) {
  std::optional<std::size_t> found;
  for (std::size_t dim = 0; dim < ranges.size(); ++dim) {
    if (ranges[dim].first != ranges[dim].second) {
      if (found) {
        return std::nullopt;
      }
      found = dim;
    }
  }
  return found;
}

// `float32 of [1..512, 96]`.
std::string wanted(executorch::aten::ScalarType dtype, const Ranges& ranges, const std::vector<SizesType>& sizes) {
  std::string text;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    const bool fixed = dim >= ranges.size() || ranges[dim].first == sizes[dim];
    text +=
        (dim == 0 ? "" : ", ") + (fixed ? "" : std::to_string(ranges[dim].first) + "..") + std::to_string(sizes[dim]);
  }
  return std::string(dtype_name(dtype)) + " of [" + text + "]";
}

// The bytes of a file. Where they are not those of a tensor of the largest sizes, and one size only is dynamic, that
// size follows from them. `range` tells what sizes may be.
std::vector<std::uint8_t> read(std::size_t index, const std::string& path, const executorch::runtime::TensorInfo& info,
                               const std::function<Ranges()>& range, std::vector<SizesType>& sizes) {
  const std::string name = "input " + std::to_string(index) + ": " + path;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(name + ": cannot open it");
  }
  std::vector<std::uint8_t> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t most = info.nbytes();
  if (bytes.size() == most) {
    return bytes;
  }
  const Ranges ranges = range();
  const auto dim = dynamic_dimension(ranges);
  const std::size_t one = dim ? most / static_cast<std::size_t>(sizes[*dim]) : 0;
  if (one != 0 && bytes.size() < most && bytes.size() % one == 0 &&
      static_cast<std::int64_t>(bytes.size() / one) >= ranges[*dim].first) {
    sizes[*dim] = static_cast<SizesType>(bytes.size() / one);
    return bytes;
  }
  throw std::runtime_error(name + ": found " + std::to_string(bytes.size()) + " bytes, expected " +
                           (dim ? std::to_string(one) + " for each of the dynamic size, at most " : "") +
                           std::to_string(most) + ": " + wanted(info.scalar_type(), ranges, sizes) +
                           (dim ? "" : ", at its largest sizes; --help says which files --input takes"));
}

bool is_tensor(const executorch::runtime::MethodMeta& meta, std::size_t index) {
  const auto tag = meta.input_tag(index);
  return tag.ok() && *tag == executorch::runtime::Tag::Tensor;
}

}  // namespace

std::vector<TensorPtr> make_inputs(const Module& module, const std::string& method,
                                   const executorch::runtime::MethodMeta& meta, const std::vector<std::string>& files,
                                   std::uint64_t seed) {
  std::size_t count = 0;
  for (std::size_t index = 0; index < meta.num_inputs(); ++index) {
    count += is_tensor(meta, index) ? 1 : 0;
  }
  if (!files.empty() && files.size() != count) {
    throw std::runtime_error("the method takes " + counted(count, "tensor") + ", " + given(files.size()) +
                             " with --input");
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
    std::vector<SizesType> sizes(info->sizes().begin(), info->sizes().end());
    std::vector<std::uint8_t> bytes;
    if (files.empty()) {
      bytes.resize(info->nbytes());
      fill_random(info->scalar_type(), bytes, random);
    } else {
      const std::size_t file = next_file++;
      const auto range = [&] {
        // Of a method that other backends run nothing is recorded.
        const auto ranges = module.input_range(method, file);
        return ranges.ok() ? *ranges : Ranges();
      };
      bytes = read(index, files[file], *info, range, sizes);
    }
    inputs.push_back(executorch::extension::make_tensor_ptr(std::move(sizes), std::move(bytes), info->scalar_type()));
  }
  return inputs;
}

}  // namespace weightstream::tool
