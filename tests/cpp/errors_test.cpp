// Statuses as ExecuTorch errors.

#include "errors.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "words.h"

namespace {

using executorch::runtime::Error;
using weightstream::take_line;
using weightstream::to_error;

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  do {
    lines.emplace_back(take_line(text));
  } while (!text.empty());
  return lines;
}

TEST(Errors, EveryStatusHasAnErrorCode) {
  EXPECT_EQ(to_error(WS_OK), Error::Ok);
  for (int status = WS_INVALID_ARGUMENT; status <= WS_INTERNAL; ++status) {
    EXPECT_NE(to_error(static_cast<ws_status>(status)), Error::Ok) << status;
  }
}

TEST(Errors, TheCloseOnesAreTold) {
  EXPECT_EQ(to_error(WS_INVALID_OPTION), Error::InvalidArgument);
  EXPECT_EQ(to_error(WS_BUDGET_TOO_SMALL), Error::OutOfResources);
  EXPECT_EQ(to_error(WS_MISSING), Error::NotFound);
  EXPECT_EQ(to_error(WS_BUSY), Error::InvalidState);
  EXPECT_EQ(to_error(WS_OUT_OF_MEMORY), Error::MemoryAllocationFailed);
  EXPECT_EQ(to_error(static_cast<ws_status>(9999)), Error::Internal);
}

TEST(Errors, OneThingIsNotSeveral) {
  using weightstream::counted;
  using weightstream::given;
  EXPECT_EQ(counted(0, "input") + counted(1, "input") + counted(2, "input"), "0 inputs1 input2 inputs");
  EXPECT_EQ(given(1) + given(2), "1 was given2 were given");
  EXPECT_EQ(weightstream::sizes_text(std::vector<int>{2, 3}), "[2, 3]");
  EXPECT_EQ(weightstream::sizes_text(std::vector<int>{}), "[]");
}

// In the words of PyTorch, which the program's author knows.
TEST(Errors, TypesHaveNames) {
  using executorch::aten::ScalarType;
  const std::vector<std::pair<ScalarType, std::string>> names = {{ScalarType::Float, "float32"},
                                                                 {ScalarType::Long, "int64"},
                                                                 {ScalarType::ComplexFloat, "complex64"},
                                                                 {ScalarType::UInt16, "uint16"}};
  for (const auto& [dtype, name] : names) {
    EXPECT_EQ(weightstream::dtype_name(dtype), name);
  }
}

TEST(Errors, LogLinesHoldWholeWords) {
  EXPECT_EQ(lines_of(""), std::vector<std::string>{""});
  EXPECT_EQ(lines_of("short"), std::vector<std::string>{"short"});
  // Words of every length, so that each of them once lies across the end of a line.
  for (std::size_t shift = 0; shift < 300; ++shift) {
    std::string text(shift, 'x');
    for (int number = 1000; number < 1200; ++number) {
      text += " " + std::to_string(number * 7919);
    }
    std::string joined;
    for (const std::string& line : lines_of(text)) {
      EXPECT_LE(line.size(), 250u);
      joined += (joined.empty() ? "" : " ") + line;
    }
    // Only the first word may be too long for a line.
    if (shift <= 250) {
      EXPECT_EQ(joined, text) << shift;
    }
  }
  // A word that no line holds is cut between two characters.
  std::string wide;
  for (int at = 0; at < 200; ++at) {
    wide += "\xe2\x82\xac";
  }
  const auto lines = lines_of("a" + wide);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0] + lines[1] + lines[2], "a" + wide);
  EXPECT_EQ(lines[0].size() % 3, 1u);
  EXPECT_EQ(lines[1].size() % 3, 0u);
}

}  // namespace
