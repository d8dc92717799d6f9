#include "support.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>

namespace weightstream::test {

namespace fs = std::filesystem;

TempDir::TempDir() {
  std::string name = (fs::temp_directory_path() / "weightstream-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error("cannot make a temporary directory");
  }
  dir_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(dir_, ignored);
}

std::string TempDir::write(const std::string& name, const std::string& bytes) const {
  std::ofstream file(path(name), std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path(name);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Model model(const std::string& name) {
  const char* dir = std::getenv("WEIGHTSTREAM_TEST_MODELS");
  if (dir == nullptr || *dir == '\0') {
    return {};
  }
  std::set<fs::path> programs;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".pte" && (name.empty() || path.stem() == name)) {
      programs.insert(path);
    }
  }
  if (programs.empty()) {
    return {};
  }
  fs::path ptd = *programs.begin();
  ptd.replace_extension(".ptd");
  return {programs.begin()->string(), ptd.string()};
}

bool models_are_for_cuda() {
  const char* device = std::getenv("WEIGHTSTREAM_TEST_DEVICE");
  return device != nullptr && std::string(device) == "cuda";
}

}  // namespace weightstream::test
