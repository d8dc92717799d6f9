// Ranges through the C interface, on the CPU: the source text's loop of fault, fill, use and unpin.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support.h"
#include "weightstream/weightstream.h"

// As dlpack.h has it.
struct DLManagedTensor {
  struct {
    void* data;
    struct {
      std::int32_t device_type;
      std::int32_t device_id;
    } device;
    std::int32_t ndim;
    struct {
      std::uint8_t code;
      std::uint8_t bits;
      std::uint16_t lanes;
    } dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
  } dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

namespace {

constexpr std::uint64_t kMb = 1 << 20;

std::string last_error() { return ws_last_error(); }

// A range with allocations of one MB each, and the budget of the device.
class Ranges : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(ws_set_device_budget("cpu", 4 * kMb), WS_OK) << last_error(); }

  void TearDown() override {
    for (ws_range* range : ranges_) {
      EXPECT_EQ(ws_range_destroy(range), WS_OK) << last_error();
    }
    EXPECT_EQ(ws_set_device_budget("cpu", WS_DEVICE_BUDGET_AUTO), WS_OK);
  }

  ws_range* make(const char* name, std::uint32_t allocs) {
    ws_range* range = nullptr;
    EXPECT_EQ(ws_range_create("cpu", name, allocs * kMb, &range), WS_OK) << last_error();
    ranges_.push_back(range);
    for (std::uint32_t at = 0; at < allocs; ++at) {
      std::uint32_t alloc = 0;
      EXPECT_EQ(ws_range_alloc(range, kMb, &alloc), WS_OK) << last_error();
      EXPECT_EQ(alloc, at);
    }
    return range;
  }

  std::vector<ws_range*> ranges_;
};

// One layer of a pass. The letter of what the fault came to.
char layer(const ws_range* range, std::uint32_t alloc, std::vector<std::uint64_t>& signatures) {
  ws_fault fault{};
  EXPECT_EQ(ws_range_fault(range, alloc, nullptr, &fault), WS_OK) << last_error();
  if (fault.outcome == WS_FAULT_REFUSED) {
    EXPECT_EQ(fault.data, nullptr);
    return '-';
  }
  auto* bytes = static_cast<unsigned char*>(fault.data);
  const bool known = signatures[alloc] == fault.generation;
  EXPECT_EQ(known, fault.outcome == WS_FAULT_HIT);
  if (fault.outcome == WS_FAULT_FILL) {
    std::memset(bytes, static_cast<int>(alloc + 1), fault.nbytes);
    signatures[alloc] = fault.generation;
  }
  EXPECT_EQ(bytes[0], alloc + 1);
  EXPECT_EQ(bytes[fault.nbytes - 1], alloc + 1);
  EXPECT_EQ(ws_range_unpin(range, &alloc, 1, nullptr), WS_OK) << last_error();
  return known ? 'h' : 'f';
}

std::string pass(const ws_range* range, std::uint32_t allocs, std::vector<std::uint64_t>& signatures) {
  std::string found;
  for (std::uint32_t alloc = 0; alloc < allocs; ++alloc) {
    found += layer(range, alloc, signatures);
  }
  return found;
}

TEST_F(Ranges, ModelsTakeMemoryFromEachOther) {
  std::vector<std::uint64_t> of_a(6);
  std::vector<std::uint64_t> of_b(3);
  const ws_range* a = make("a", 6);
  EXPECT_EQ(pass(a, 6, of_a), "ffff--");
  EXPECT_EQ(pass(a, 6, of_a), "hhhh--");
  const ws_range* b = make("b", 3);
  EXPECT_EQ(pass(b, 3, of_b), "fff");
  EXPECT_EQ(pass(a, 6, of_a), "h-----");
  std::uint64_t watermark = 0;
  const char* why = nullptr;
  ASSERT_EQ(ws_range_watermark(a, &watermark, &why), WS_OK) << last_error();
  EXPECT_EQ(watermark, kMb);
  EXPECT_NE(std::string(why).find("range 'b'"), std::string::npos) << why;
  ASSERT_EQ(ws_range_prioritize(a), WS_OK);
  EXPECT_EQ(pass(a, 6, of_a), "hfff--");
  ASSERT_EQ(ws_range_deprioritize(a), WS_OK);
  ASSERT_EQ(ws_range_prioritize(b), WS_OK);
  EXPECT_EQ(pass(b, 3, of_b), "fff");
  const char* json = nullptr;
  ASSERT_EQ(ws_range_residency(b, &json), WS_OK) << last_error();
  EXPECT_NE(std::string(json).find("\"resident_bytes\": 3145728"), std::string::npos) << json;
  ASSERT_EQ(ws_device_report("cpu", &json), WS_OK) << last_error();
  EXPECT_NE(std::string(json).find("\"range_bytes\": 4194304"), std::string::npos) << json;
}

TEST_F(Ranges, ARefusalSaysWhoHoldsTheMemory) {
  std::vector<std::uint64_t> of_a(6);
  const ws_range* a = make("a", 6);
  EXPECT_EQ(pass(a, 6, of_a), "ffff--");
  const char* why = nullptr;
  ASSERT_EQ(ws_range_why(a, WS_REFUSED_NOTHING_LOWER, &why), WS_OK) << last_error();
  const std::string text = why;
  for (const char* words : {"nothing of lower priority", "of the 4194304 bytes", "range 'a' holds 4194304 bytes"}) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }
  EXPECT_EQ(ws_range_why(a, 6, &why), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_range_why(a, -1, &why), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_range_why(nullptr, 0, &why), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_range_why(a, 0, nullptr), WS_INVALID_ARGUMENT);
}

TEST_F(Ranges, ATensorThatDoesNotFitIsNamedByItsType) {
  const ws_range* range = make("typed", 1);
  std::vector<std::uint64_t> signatures(1);
  EXPECT_EQ(pass(range, 1, signatures), "f");
  const std::int64_t sizes[] = {kMb, 2};
  DLManagedTensor* tensor = nullptr;
  EXPECT_EQ(ws_range_tensor(range, 0, 6, sizes, 2, nullptr, &tensor), WS_INVALID_INPUT);
  EXPECT_NE(std::string(last_error()).find("a tensor of dtype float32 and sizes"), std::string::npos) << last_error();
  EXPECT_EQ(ws_range_tensor(range, 0, 24, sizes, 2, nullptr, &tensor), WS_INVALID_INPUT);
  EXPECT_NE(std::string(last_error()).find("no type for dtype float8_e4m3fn"), std::string::npos) << last_error();
}

TEST_F(Ranges, ABatchIsFaultedAndUnpinnedByOneCall) {
  const ws_range* range = make("batch", 5);
  const std::vector<std::uint32_t> allocs{0, 1, 2, 3, 4};
  std::vector<ws_fault> faults(allocs.size());
  ASSERT_EQ(ws_range_fault_many(range, allocs.data(), allocs.size(), nullptr, faults.data()), WS_OK) << last_error();
  for (std::size_t at = 0; at < allocs.size(); ++at) {
    EXPECT_EQ(faults[at].outcome, at < 4 ? WS_FAULT_FILL : WS_FAULT_REFUSED);
  }
  EXPECT_EQ(faults[4].reason, WS_REFUSED_NOTHING_LOWER);
  ASSERT_EQ(ws_range_unpin(range, allocs.data(), 4, nullptr), WS_OK) << last_error();
  const std::vector<std::uint32_t> wrong{0, 9, 1};
  EXPECT_EQ(ws_range_fault_many(range, wrong.data(), wrong.size(), nullptr, faults.data()), WS_INVALID_INPUT);
  EXPECT_EQ(faults[0].outcome, WS_FAULT_HIT);
  EXPECT_EQ(faults[2].outcome, WS_FAULT_REFUSED);
  ASSERT_EQ(ws_range_unpin(range, wrong.data(), 1, nullptr), WS_OK) << last_error();
  EXPECT_EQ(ws_range_unpin(range, allocs.data(), 1, nullptr), WS_INVALID_INPUT);
  EXPECT_NE(last_error().find("more often than it was faulted"), std::string::npos) << last_error();
}

TEST_F(Ranges, FreedLimitedAndInvalidatedMemoryIsFilledAgain) {
  std::vector<std::uint64_t> signatures(4);
  const ws_range* range = make("one", 4);
  EXPECT_EQ(pass(range, 4, signatures), "ffff");
  ASSERT_EQ(ws_range_invalidate(range, 1), WS_OK);
  EXPECT_EQ(pass(range, 4, signatures), "hfhh");
  ws_freed freed{};
  ASSERT_EQ(ws_range_free_bytes(range, 2 * kMb, 1, &freed), WS_OK) << last_error();
  EXPECT_EQ(freed.freed, 2 * kMb);
  EXPECT_EQ(freed.pinned + freed.pending, 0);
  EXPECT_EQ(pass(range, 4, signatures), "hh--");
  ASSERT_EQ(ws_range_prioritize(range), WS_OK);
  ASSERT_EQ(ws_range_set_limit(range, 3 * kMb), WS_OK);
  EXPECT_EQ(pass(range, 4, signatures), "hhf-");
  ASSERT_EQ(ws_range_set_limit(range, WS_RANGE_NO_LIMIT), WS_OK);
  ASSERT_EQ(ws_range_invalidate(range, WS_RANGE_ALL), WS_OK);
  EXPECT_EQ(pass(range, 4, signatures), "ffff");
}

TEST_F(Ranges, ATensorKeepsItsMemoryUntilItIsDeletedOnAnyThread) {
  std::vector<std::uint64_t> signatures(1);
  ws_range* range = make("tensor", 1);
  DLManagedTensor* tensor = nullptr;
  const std::int64_t sizes[] = {64, 1024};
  EXPECT_EQ(ws_range_tensor(range, 0, 6, sizes, 2, nullptr, &tensor), WS_INVALID_INPUT);
  EXPECT_EQ(pass(range, 1, signatures), "f");
  EXPECT_EQ(ws_range_tensor(range, 0, 7, sizes, 2, nullptr, &tensor), WS_OK) << last_error();
  tensor->deleter(tensor);
  const std::int64_t too_large[] = {64, 1024, 8};
  EXPECT_EQ(ws_range_tensor(range, 0, 7, too_large, 3, nullptr, &tensor), WS_INVALID_INPUT);
  ASSERT_EQ(ws_range_tensor(range, 0, 6, sizes, 2, nullptr, &tensor), WS_OK) << last_error();
  EXPECT_EQ(tensor->dl_tensor.device.device_type, 1);
  EXPECT_EQ(tensor->dl_tensor.shape[1], 1024);
  EXPECT_EQ(*static_cast<unsigned char*>(tensor->dl_tensor.data), 1);
  ws_freed freed{};
  ASSERT_EQ(ws_range_free_bytes(range, kMb, 1, &freed), WS_OK);
  EXPECT_EQ(freed.pinned, kMb);
  EXPECT_EQ(ws_range_destroy(range), WS_INVALID_INPUT);
  EXPECT_NE(last_error().find("'tensor' cannot end"), std::string::npos) << last_error();
  EXPECT_EQ(ws_range_used_on(range, 0, nullptr), WS_OK) << last_error();
  std::thread([tensor] { tensor->deleter(tensor); }).join();
  ASSERT_EQ(ws_range_free_bytes(range, kMb, 0, &freed), WS_OK);
  EXPECT_EQ(freed.freed, kMb);
}

TEST_F(Ranges, AChildOfThisProcessHasNone) {
  std::vector<std::uint64_t> signatures(1);
  ws_range* range = make("parent", 1);
  EXPECT_EQ(pass(range, 1, signatures), "f");
  const pid_t child = fork();
  if (child == 0) {
    ws_fault fault{};
    const bool refused = ws_range_fault(range, 0, nullptr, &fault) == WS_POISONED;
    _exit(refused && ws_range_destroy(range) == WS_OK ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pass(range, 1, signatures), "h");
}

TEST_F(Ranges, WrongArgumentsAreNamed) {
  ws_range* range = nullptr;
  EXPECT_EQ(ws_range_create("gpu", "x", kMb, &range), WS_INVALID_INPUT);
  EXPECT_NE(last_error().find("no device 'gpu'"), std::string::npos) << last_error();
  EXPECT_EQ(ws_range_create("cpu", nullptr, kMb, &range), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_range_create("cpu", "x", 0, &range), WS_INVALID_INPUT);
  EXPECT_EQ(ws_range_create("cpu", "x", UINT64_MAX, &range), WS_OUT_OF_MEMORY);
  EXPECT_EQ(range, nullptr);
  range = make("x", 1);
  std::uint32_t alloc = 7;
  EXPECT_EQ(ws_range_alloc(range, kMb, &alloc), WS_OUT_OF_MEMORY);
  EXPECT_NE(last_error().find("range 'x'"), std::string::npos) << last_error();
  EXPECT_EQ(alloc, 7);
  ws_fault fault{};
  EXPECT_EQ(ws_range_fault(range, 1, nullptr, &fault), WS_INVALID_INPUT);
  EXPECT_EQ(ws_range_fault(range, 0, nullptr, nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_range_fault(nullptr, 0, nullptr, &fault), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_range_fault_many(range, &alloc, 1, nullptr, nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_range_unpin(range, nullptr, 1, nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_range_unpin(range, nullptr, 0, nullptr), WS_OK);
  EXPECT_EQ(ws_range_destroy(nullptr), WS_OK);
}

}  // namespace
