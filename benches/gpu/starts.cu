// What the start of a copy costs, by where its bytes come from and where they go.
//
// Passes through a ring of two slots behind kernels, as plans on pages have them. Sources: in a row; apart, as weights
// are; in pairs, the end of one weight and the start of the next; apart, with a few bytes of the next source read ahead
// of its copy (by a small copy, by a kernel), so that its address is already translated. Slots: memory of one
// allocation; pages of 2 MiB that are mapped one by one; one handle per slot. Prints one line of JSON for each; times
// are ratios to one copy of all bytes, medians of passes that take turns.
//
//     nvcc -std=c++17 -O2 -arch=native benches/gpu/starts.cu -o starts -lcuda && ./starts [FILE]
//
// With FILE (which is made, 7 GB) the sources are a mapped file instead of anonymous memory.
#include <cuda.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr int kPieces = 112;
constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kApart = size_t{60} << 20;     // from one weight to the next
constexpr size_t kResident = size_t{58} << 20;  // what a kernel reads beside its piece
constexpr double kSeconds = 14;                 // of passes per size of pieces

void check(cudaError_t code, int line) {
  if (code != cudaSuccess) {
    std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(code));
    std::exit(1);
  }
}

void check(CUresult code, int line) {
  if (code != CUDA_SUCCESS) {
    const char* text = nullptr;
    cuGetErrorString(code, &text);
    std::fprintf(stderr, "line %d: %s\n", line, text);
    std::exit(1);
  }
}
#define CHECK(call) check((call), __LINE__)

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

__global__ void read(const uint4* from, size_t words, unsigned* out) {
  unsigned sum = 0;
  for (size_t at = size_t{blockIdx.x} * blockDim.x + threadIdx.x; at < words; at += size_t{gridDim.x} * blockDim.x) {
    const uint4 word = from[at];
    sum += word.x ^ word.y ^ word.z ^ word.w;
  }
  if (sum == 0x12345) *out = sum;
}

__global__ void touch(const volatile unsigned* from, unsigned* out) {
  if (*from == 0x12345) *out = 1;
}

struct Machine {
  char *host, *seen, *resident, *scratch;
  unsigned* out;
  cudaStream_t compute, copy, other;
};

char* sources(size_t bytes, const char* file) {
  if (file == nullptr) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::exit(1);
    std::memset(memory, 7, bytes);
    return static_cast<char*>(memory);
  }
  const int descriptor = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
  std::vector<char> block(kApart, 7);
  for (size_t at = 0; at < bytes; at += kApart)
    if (write(descriptor, block.data(), kApart) != static_cast<ssize_t>(kApart)) std::exit(1);
  void* memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) std::exit(1);
  return static_cast<char*>(memory);
}

Machine open_machine(size_t bytes, const char* file) {
  Machine m{};
  m.host = sources(bytes, file);
  CHECK(cudaHostRegister(m.host, bytes, cudaHostRegisterMapped | cudaHostRegisterReadOnly));
  CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&m.seen), m.host, 0));
  CHECK(cudaMalloc(&m.resident, kResident));
  CHECK(cudaMalloc(&m.scratch, 1 << 20));
  CHECK(cudaMalloc(&m.out, sizeof(unsigned)));
  for (auto* stream : {&m.compute, &m.copy, &m.other}) CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  return m;
}

// Memory of so many bytes, in handles of `unit` bytes, mapped behind each other.
char* mapped(size_t bytes, size_t unit) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUdeviceptr address;
  CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  for (size_t at = 0; at < bytes; at += unit) {
    CUmemGenericAllocationHandle handle;
    CHECK(cuMemCreate(&handle, unit, &prop, 0));
    CHECK(cuMemMap(address + at, unit, 0, handle, 0));
  }
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK(cuMemSetAccess(address, bytes, &access, 1));
  return reinterpret_cast<char*>(address);
}

enum class Touch { none, copy, kernel };

using From = std::function<const char*(int)>;

void pass(const Machine& m, char* ring, size_t piece, const From& from, Touch how, cudaEvent_t (&freed)[2],
          cudaEvent_t (&there)[2]) {
  for (int at = 0; at < kPieces + 2; at++) {
    const int slot = at % 2;
    if (at >= 2) {
      CHECK(cudaStreamWaitEvent(m.compute, there[slot]));
      read<<<264, 512, 0, m.compute>>>(reinterpret_cast<const uint4*>(m.resident), kResident / 16, m.out);
      CHECK(cudaEventRecord(freed[slot], m.compute));
    }
    if (at < kPieces) {
      CHECK(cudaStreamWaitEvent(m.copy, freed[slot]));
      CHECK(cudaMemcpyAsync(ring + slot * piece, from(at), piece, cudaMemcpyHostToDevice, m.copy));
      CHECK(cudaEventRecord(there[slot], m.copy));
      if (how != Touch::none && at >= 2) {
        // Behind the copy before the last: while the last one runs, in front of the next.
        CHECK(cudaStreamWaitEvent(m.other, there[1 - slot]));
        const char* next = from(std::min(at + 1, kPieces - 1));
        if (how == Touch::copy) CHECK(cudaMemcpyAsync(m.scratch, next, 64, cudaMemcpyHostToDevice, m.other));
        if (how == Touch::kernel) touch<<<1, 1, 0, m.other>>>(reinterpret_cast<const unsigned*>(next), m.out);
      }
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
  cudaEvent_t freed[2], there[2];
  for (auto* pair : {&freed, &there})
    for (auto& event : *pair) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  char* whole;
  CHECK(cudaMalloc(&whole, piece * kPieces));
  struct Slots {
    const char* name;
    char* memory;
  };
  const Slots slots[] = {
      {"one allocation", whole}, {"pages", mapped(2 * piece, kPage)}, {"a handle each", mapped(2 * piece, piece)}};
  const char* seen = m.seen;
  struct Source {
    const char* name;
    From from;
    Touch how;
  };
  const From apart = [seen](int at) { return seen + at * kApart; };
  const Source all_sources[] = {
      {"in a row", [=](int at) { return seen + at * piece; }, Touch::none},
      {"apart", apart, Touch::none},
      {"in pairs", [=](int at) { return seen + (at + 1) / 2 * 2 * kApart + (at % 2 == 0 ? 0 : -piece); }, Touch::none},
      {"apart, read ahead by a copy", apart, Touch::copy},
      {"apart, read ahead by a kernel", apart, Touch::kernel},
  };
  std::vector<Variant> all;
  all.push_back({"one copy of everything",
                 [&] {
                   CHECK(cudaMemcpyAsync(whole, seen, piece * kPieces, cudaMemcpyHostToDevice, m.copy));
                   CHECK(cudaDeviceSynchronize());
                 },
                 {}});
  for (const Slots& to : slots)
    for (const Source& of : all_sources)
      all.push_back({std::string(of.name) + " to " + to.name,
                     [&, to, of] { pass(m, to.memory, piece, of.from, of.how, freed, there); },
                     {}});
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
  CHECK(cudaFree(whole));
}

}  // namespace

int main(int count, char** words) {
  const Machine m = open_machine(kApart * (kPieces + 1), count > 1 ? words[1] : nullptr);
  for (size_t piece : {size_t{6} << 20, size_t{14} << 20}) rings(m, piece);
}
