// Files for the tests: made up ones, and exported programs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace weightstream::test {

// A directory that lasts as long as this object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const;
  std::string path(const std::string& name) const { return dir_ + "/" + name; }

 private:
  std::string dir_;
};

std::string read_file(const std::string& path);

// Paths of an exported program.
struct Model {
  std::string pte;
  std::string ptd;
};

// The program `name`, or the first one of the directory if `name` is empty; both paths are empty if there
// is none.
Model model(const std::string& name = "");

// Whether the exported programs are for a GPU: WEIGHTSTREAM_TEST_DEVICE is "cuda".
bool models_are_for_cuda();

}  // namespace weightstream::test

// Ends a test that needs an exported program when there is none.
#define REQUIRE_MODEL(variable, ...)                                                                           \
  const weightstream::test::Model variable = weightstream::test::model(__VA_ARGS__);                           \
  if (variable.pte.empty()) {                                                                                  \
    GTEST_SKIP() << "SKIPPED: needs the program '" #__VA_ARGS__ "' in the directory WEIGHTSTREAM_TEST_MODELS"; \
  }
