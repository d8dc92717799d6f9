// What else could bring weights to the GPU than one copy engine, and what a copy costs beyond its bytes.
//
// Passes through a ring of two slots behind kernels, as plans on pages have them: by the copy engine alone, with a
// share of each piece brought by a kernel that reads host memory itself, by such a kernel alone, in two copies on two
// streams; from sources that follow each other in memory, and from sources that lie apart as weights do. Which copies
// share an engine: queues.cu. Prints one line of JSON for each; times are ratios to one copy of all bytes, medians of
// passes that take turns.
//
//     nvcc -std=c++17 -O2 -arch=native benches/gpu/engines.cu -o engines && ./engines
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr int kPieces = 113;
constexpr size_t kApart = size_t{60} << 20;     // from one weight to the next
constexpr size_t kResident = size_t{58} << 20;  // what a kernel reads beside its piece
constexpr double kSeconds = 20;                 // of passes per size of pieces

void check(cudaError_t code, int line) {
  if (code != cudaSuccess) {
    std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(code));
    std::exit(1);
  }
}

#define CHECK(call) check((call), __LINE__)

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Copies host memory that the device sees; eight loads of each thread are on their way at a time.
__global__ void pull(uint4* to, const uint4* from, size_t words) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  size_t at = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; at + 7 * step < words; at += 8 * step) {
    uint4 held[8];
#pragma unroll
    for (int i = 0; i < 8; i++) held[i] = __ldcs(from + at + i * step);
#pragma unroll
    for (int i = 0; i < 8; i++) to[at + i * step] = held[i];
  }
  for (; at < words; at += step) to[at] = from[at];
}

__global__ void read(const uint4* from, size_t words, unsigned* out) {
  unsigned sum = 0;
  for (size_t at = size_t{blockIdx.x} * blockDim.x + threadIdx.x; at < words; at += size_t{gridDim.x} * blockDim.x) {
    const uint4 word = from[at];
    sum += word.x ^ word.y ^ word.z ^ word.w;
  }
  if (sum == 0x12345) *out = sum;
}

struct Machine {
  char *host, *seen, *device, *resident;
  unsigned* out;
  cudaStream_t compute, copy, other;
};

Machine open(size_t bytes) {
  Machine m{};
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::exit(1);
  m.host = static_cast<char*>(memory);
  std::memset(m.host, 7, bytes);
  CHECK(cudaHostRegister(m.host, bytes, cudaHostRegisterMapped | cudaHostRegisterReadOnly));
  CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&m.seen), m.host, 0));
  CHECK(cudaMalloc(&m.device, size_t{2} << 30));
  CHECK(cudaMalloc(&m.resident, kResident));
  CHECK(cudaMalloc(&m.out, sizeof(unsigned)));
  for (auto* stream : {&m.compute, &m.copy, &m.other}) CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  return m;
}

// Brings a piece to its slot: what goes through the first stream, and what through the second.
using Bring = std::function<void(char* to, const char* from)>;

void pass(const Machine& m, size_t piece, size_t apart, cudaEvent_t (&events)[3][2], bool both, const Bring& bring) {
  auto& [freed, first, second] = events;
  for (int at = 0; at < kPieces + 2; at++) {
    const int slot = at % 2;
    if (at >= 2) {
      CHECK(cudaStreamWaitEvent(m.compute, first[slot]));
      if (both) CHECK(cudaStreamWaitEvent(m.compute, second[slot]));
      read<<<264, 512, 0, m.compute>>>(reinterpret_cast<const uint4*>(m.resident), kResident / 16, m.out);
      CHECK(cudaEventRecord(freed[slot], m.compute));
    }
    if (at < kPieces) {
      CHECK(cudaStreamWaitEvent(m.copy, freed[slot]));
      if (both) CHECK(cudaStreamWaitEvent(m.other, freed[slot]));
      bring(m.device + slot * piece, m.seen + at * apart);
      CHECK(cudaEventRecord(first[slot], m.copy));
      if (both) CHECK(cudaEventRecord(second[slot], m.other));
    }
  }
  CHECK(cudaDeviceSynchronize());
}

struct Variant {
  std::string name;
  std::function<void()> run;
  std::vector<double> times;
};

void rings(const Machine& m, size_t piece) {
  cudaEvent_t events[3][2];
  for (auto& pair : events)
    for (auto& event : pair) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const auto engine = [&](cudaStream_t stream, char* to, const char* from, size_t bytes) {
    CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  };
  const auto kernel = [&](cudaStream_t stream, int blocks, char* to, const char* from, size_t bytes) {
    pull<<<blocks, 512, 0, stream>>>(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), bytes / 16);
  };
  std::vector<Variant> all;
  all.push_back({"one copy of everything",
                 [&] {
                   engine(m.copy, m.device, m.seen, piece * kPieces);
                   CHECK(cudaDeviceSynchronize());
                 },
                 {}});
  for (size_t apart : {piece, kApart}) {
    const std::string where = apart == piece ? ", sources in a row" : ", sources apart";
    all.push_back({"engine" + where,
                   [&, apart] {
                     pass(m, piece, apart, events, false,
                          [&](char* to, const char* from) { engine(m.copy, to, from, piece); });
                   },
                   {}});
  }
  all.push_back({"kernel",
                 [&] {
                   pass(m, piece, piece, events, false,
                        [&](char* to, const char* from) { kernel(m.copy, 8, to, from, piece); });
                 },
                 {}});
  for (double share : {0.02, 0.08, 0.5}) {
    const size_t rest = static_cast<size_t>(piece * share) / 4096 * 4096, most = piece - rest;
    const std::string part = " for " + std::to_string(share).substr(0, 4);
    all.push_back({"engine, kernel" + part,
                   [&, rest, most] {
                     pass(m, piece, piece, events, true, [&](char* to, const char* from) {
                       engine(m.copy, to, from, most);
                       kernel(m.other, 4, to + most, from + most, rest);
                     });
                   },
                   {}});
    all.push_back({"engine, a second stream" + part,
                   [&, rest, most] {
                     pass(m, piece, piece, events, true, [&](char* to, const char* from) {
                       engine(m.copy, to, from, most);
                       engine(m.other, to + most, from + most, rest);
                     });
                   },
                   {}});
  }
  const double begun = now();
  for (int turn = 0; turn < 5 || now() - begun < kSeconds; turn++) {
    for (auto& one : all) {
      const double start = now();
      one.run();
      if (turn >= 2) one.times.push_back(now() - start);
    }
  }
  double bare = 0;
  for (auto& one : all) {
    std::sort(one.times.begin(), one.times.end());
    const double median = one.times[one.times.size() / 2];
    if (bare == 0) bare = median;
    std::printf("{\"piece\": %zu, \"variant\": \"%s\", \"ratio\": %.4f, \"each_us\": %.2f}\n", piece, one.name.c_str(),
                median / bare, (median - bare) / kPieces * 1e6);
  }
  for (auto& pair : events)
    for (auto& event : pair) CHECK(cudaEventDestroy(event));
}

}  // namespace

int main() {
  const Machine m = open(kApart * kPieces);
  for (size_t piece : {size_t{6} << 20, size_t{15} << 20}) rings(m, piece);
}
