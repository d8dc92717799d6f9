// Weights of a module that its owner runs call by call, through the C interface, on the CPU.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support.h"
#include "weightstream/weightstream.h"

namespace {

constexpr std::uint64_t kBytes = 3 * 4096 + 64;
constexpr std::uint32_t kLayers = 6;
constexpr std::int32_t kBfloat16 = 15;  // ScalarType

std::string last_error() { return ws_last_error(); }

// Layers that read one weight each, and what is recorded of a pass.
class Offload : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      bytes_.emplace_back(kBytes, static_cast<char>('a' + layer));
      reads_.push_back(layer);
      events_.push_back({WS_OFFLOAD_READ, layer});
      events_.push_back({WS_OFFLOAD_KERNEL, layer});
      events_.push_back({WS_OFFLOAD_READ_END, layer});
    }
    for (const std::string& bytes : bytes_) weights_.push_back({"w", bytes.data(), kBytes, nullptr});
  }

  ws_offload_entry entry() const { return {reads_.data(), reads_.size(), events_.data(), events_.size(), nullptr, 0}; }

  ws_offload_recorded recorded(std::uint64_t budget) const {
    return {"cpu", "module", nullptr, weights_.data(), kLayers, entry(), budget, 0, 0, nullptr, 0, nullptr};
  }

  // One pass of an entry, which reads all layers in turn, that compares all bytes.
  void pass(ws_offload* offload, bool resident, std::uint32_t entry = 0) {
    ws_offload_pass begun{};
    ASSERT_EQ(ws_offload_begin(offload, entry, nullptr, &begun), WS_OK) << last_error();
    EXPECT_EQ(begun.resident != 0, resident);
    std::vector<std::uint64_t> at(kLayers);
    if (resident) ASSERT_EQ(ws_offload_addresses(offload, entry, at.data(), kLayers), WS_OK) << last_error();
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      std::int32_t moved = 0;
      if (!resident) ASSERT_EQ(ws_offload_read(offload, layer, 1, &at[layer], &moved), WS_OK) << last_error();
      EXPECT_EQ(moved != 0, !resident);
      EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(at[layer]), bytes_[layer].data(), kBytes), 0);
      if (!resident) ASSERT_EQ(ws_offload_release(offload, layer, 1), WS_OK) << last_error();
    }
    ASSERT_EQ(ws_offload_end(offload, 1), WS_OK) << last_error();
  }

  std::vector<std::string> bytes_;
  std::vector<ws_offload_weight> weights_;
  std::vector<std::uint32_t> reads_;
  std::vector<ws_offload_event> events_;
};

TEST_F(Offload, PassesReadTheRightBytes) {
  ws_offload* offload = nullptr;
  const ws_offload_recorded recorded = this->recorded(WS_OFFLOAD_FLOOR);
  ASSERT_EQ(ws_offload_create(&recorded, &offload), WS_OK) << last_error();
  for (int round = 0; round < 3; ++round) pass(offload, false);
  ASSERT_EQ(ws_offload_set_budget(offload, 10 * kBytes), WS_OK) << last_error();
  for (int round = 0; round < 3; ++round) pass(offload, true);
  const char* json = nullptr;
  ASSERT_EQ(ws_offload_stats(offload, &json), WS_OK) << last_error();
  EXPECT_NE(std::string(json).find("\"bytes_copied\""), std::string::npos) << json;
  ws_offload_destroy(offload);
  ws_offload_destroy(nullptr);
}

// Weights of equal bytes pack well. They are brought packed, and read as they were.
TEST_F(Offload, PackedCopiesBecomeTheBytes) {
  std::vector<ws_packed*> copies;
  for (ws_offload_weight& weight : weights_) {
    ws_packed* packed = nullptr;
    ASSERT_EQ(ws_packed_create("w", kBfloat16, weight.data, weight.nbytes, &packed), WS_OK) << last_error();
    ASSERT_NE(packed, nullptr);
    EXPECT_LT(ws_packed_stored_bytes(packed), kBytes);
    weight.packed = packed;
    copies.push_back(packed);
  }
  const ws_offload_recorded recorded = this->recorded(WS_OFFLOAD_FLOOR);
  ws_offload* offload = nullptr;
  ASSERT_EQ(ws_offload_create(&recorded, &offload), WS_OK) << last_error();
  for (int round = 0; round < 3; ++round) pass(offload, false);
  ASSERT_EQ(ws_offload_set_budget(offload, 10 * kBytes), WS_OK) << last_error();
  pass(offload, true);
  const std::uint32_t changed = 1;
  EXPECT_EQ(ws_offload_copy_again(offload, &changed, 1), WS_INVALID_INPUT) << last_error();
  ws_offload_destroy(offload);

  weights_[0].nbytes -= 2;
  EXPECT_EQ(ws_offload_create(&recorded, &offload), WS_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("packed of 'w'"), std::string::npos) << last_error();

  // What is kept of a copy becomes one again, of the same bytes only.
  const void* stored = nullptr;
  std::uint8_t exponents[13];
  ASSERT_EQ(ws_packed_parts(copies[1], &stored, exponents), WS_OK) << last_error();
  const std::uint64_t bytes = ws_packed_stored_bytes(copies[1]);
  ws_packed* again = nullptr;
  const ws_offload_weight& one = weights_[1];
  ASSERT_EQ(ws_packed_read("w", kBfloat16, one.data, one.nbytes, stored, bytes, exponents, &again), WS_OK)
      << last_error();
  EXPECT_EQ(ws_packed_stored_bytes(again), bytes);
  ws_packed_destroy(again);
  EXPECT_EQ(ws_packed_read("w", kBfloat16, weights_[2].data, one.nbytes, stored, bytes, exponents, &again),
            WS_MISMATCH);
  EXPECT_NE(last_error().find("from byte 0 on"), std::string::npos) << last_error();
  EXPECT_EQ(ws_packed_read("w", kBfloat16, one.data, one.nbytes, stored, bytes - 4, exponents, &again), WS_MISMATCH);
  EXPECT_EQ(ws_packed_read("w", 1, one.data, one.nbytes, stored, bytes, exponents, &again), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_packed_read("w", kBfloat16, one.data, one.nbytes, stored, bytes, nullptr, &again), WS_INVALID_ARGUMENT);
  for (ws_packed* packed : copies) ws_packed_destroy(packed);
  ws_packed_destroy(nullptr);
  EXPECT_EQ(ws_packed_stored_bytes(nullptr), 0U);
  ws_packed* none = nullptr;
  const std::vector<std::uint8_t> zeros(65536);
  EXPECT_EQ(ws_packed_create("w", 1, zeros.data(), zeros.size(), &none), WS_OK) << "int8 " << last_error();
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(ws_packed_create("w", 99, zeros.data(), zeros.size(), &none), WS_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("'dtype' is 99"), std::string::npos) << last_error();
  EXPECT_EQ(ws_packed_create("w", kBfloat16, nullptr, 8, &none), WS_INVALID_ARGUMENT) << last_error();
}

TEST_F(Offload, EntriesShareWeights) {
  ws_offload* offload = nullptr;
  const ws_offload_recorded recorded = this->recorded(WS_OFFLOAD_FLOOR);
  ASSERT_EQ(ws_offload_create(&recorded, &offload), WS_OK) << last_error();
  pass(offload, false);
  std::uint32_t index = 0;
  ws_offload_entry second = entry();
  // The first layer is a table of which rows are taken.
  const std::uint32_t rows = 0;
  second.rows = &rows;
  second.num_rows = 1;
  ASSERT_EQ(ws_offload_add_entry(offload, &second, &index), WS_OK) << last_error();
  EXPECT_EQ(index, 1U);
  for (int round = 0; round < 3; ++round) {
    pass(offload, false, 1);
    pass(offload, false, 0);
  }
  ASSERT_EQ(ws_offload_set_budget(offload, 10 * kBytes), WS_OK) << last_error();
  pass(offload, true, 1);
  ASSERT_EQ(ws_offload_replace_entry(offload, 1, &recorded.entry), WS_OK) << last_error();
  pass(offload, true, 1);
  const char* json = nullptr;
  ASSERT_EQ(ws_offload_stats(offload, &json), WS_OK) << last_error();
  EXPECT_NE(std::string(json).find("\"entries\": [{\"passes\": 4, "), std::string::npos) << json;

  second.num_events = 4;
  EXPECT_EQ(ws_offload_add_entry(offload, &second, &index), WS_MALFORMED) << last_error();
  second = entry();
  second.reads = nullptr;
  EXPECT_EQ(ws_offload_add_entry(offload, &second, &index), WS_INVALID_ARGUMENT) << last_error();
  EXPECT_EQ(ws_offload_add_entry(offload, nullptr, &index), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_offload_add_entry(offload, &recorded.entry, nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_offload_replace_entry(offload, 2, &recorded.entry), WS_INVALID_INPUT) << last_error();
  ws_offload_pass begun{};
  EXPECT_EQ(ws_offload_begin(offload, 2, nullptr, &begun), WS_INVALID_INPUT) << last_error();
  ASSERT_EQ(ws_offload_begin(offload, 0, nullptr, &begun), WS_OK);
  EXPECT_EQ(ws_offload_add_entry(offload, &recorded.entry, &index), WS_BUSY);
  EXPECT_EQ(index, 1U);
  EXPECT_EQ(ws_offload_end(offload, 0), WS_OK);
  ws_offload_destroy(offload);
}

TEST_F(Offload, MistakesAreNamed) {
  ws_offload* offload = nullptr;
  ws_offload_recorded wrong = recorded(1);
  EXPECT_EQ(ws_offload_create(&wrong, &offload), WS_BUDGET_TOO_SMALL) << last_error();
  wrong = recorded(WS_OFFLOAD_FLOOR);
  wrong.device = "tpu";
  EXPECT_EQ(ws_offload_create(&wrong, &offload), WS_INVALID_INPUT) << last_error();
  EXPECT_NE(last_error().find("'tpu'"), std::string::npos) << last_error();
  wrong = recorded(WS_OFFLOAD_FLOOR);
  wrong.entry.num_events = 4;
  EXPECT_EQ(ws_offload_create(&wrong, &offload), WS_MALFORMED) << last_error();
  wrong.entry.events = nullptr;
  EXPECT_EQ(ws_offload_create(&wrong, &offload), WS_INVALID_ARGUMENT) << last_error();
  EXPECT_EQ(ws_offload_create(nullptr, &offload), WS_INVALID_ARGUMENT);
  EXPECT_EQ(ws_offload_begin(nullptr, 0, nullptr, nullptr), WS_INVALID_ARGUMENT);
  EXPECT_EQ(offload, nullptr);

  const ws_offload_recorded right = recorded(WS_OFFLOAD_FLOOR);
  ASSERT_EQ(ws_offload_create(&right, &offload), WS_OK) << last_error();
  ws_offload_pass begun{};
  std::uint64_t at = 0;
  std::int32_t moved = 0;
  EXPECT_EQ(ws_offload_read(offload, 0, 1, &at, &moved), WS_INVALID_INPUT);
  EXPECT_EQ(ws_offload_addresses(offload, 0, &at, 1), WS_INVALID_INPUT);
  ASSERT_EQ(ws_offload_begin(offload, 0, nullptr, &begun), WS_OK);
  EXPECT_EQ(ws_offload_begin(offload, 0, nullptr, &begun), WS_BUSY);
  EXPECT_EQ(ws_offload_read(offload, 2, 1, &at, &moved), WS_DIVERGENCE) << last_error();
  EXPECT_EQ(ws_offload_end(offload, 0), WS_OK) << last_error();
  pass(offload, false);
  ws_offload_destroy(offload);
}

TEST_F(Offload, AChildCannotUseThem) {
  ws_offload* offload = nullptr;
  const ws_offload_recorded recorded = this->recorded(WS_OFFLOAD_FLOOR);
  ASSERT_EQ(ws_offload_create(&recorded, &offload), WS_OK) << last_error();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    ws_offload_pass begun{};
    const bool refused = ws_offload_begin(offload, 0, nullptr, &begun) == WS_POISONED;
    ws_offload_destroy(offload);
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  pass(offload, false);
  ws_offload_destroy(offload);
}

}  // namespace
