// Which copies from host memory go on beside a long one, and which queue behind it.
//
// A copy of 800 MB runs on one stream; behind it one of 16 MiB, by each call and of each kind of memory that the driver
// has, is issued on another. Prints for each when it ended, as a part of the time until both had: about 0 on an engine
// of its own, 1 behind the long one. Copies to the host and within the device are there to show that the first is seen.
//
//     nvcc -std=c++17 -O2 -arch=native benches/gpu/queues.cu -o queues -lcuda && ./queues
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kAll = 1024 * kMiB, kLong = 800'000'000, kShort = 16 * kMiB, kFrom = 900 * kMiB;

void check(int code, int line) {
  if (code == 0) return;
  std::fprintf(stderr, "line %d: error %d of CUDA\n", line, code);
  std::exit(1);
}
#define CHECK(call) check(static_cast<int>(call), __LINE__)

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

CUdeviceptr at(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

struct Machine {
  char *host, *seen, *device;
  // Of the driver's virtual memory management.
  CUdeviceptr host_pages, device_pages;
  CUcontext context;
  cudaStream_t first, second;
};

CUdeviceptr pages(CUmemLocation where) {
  const size_t bytes = 64 * kMiB;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = where;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  CHECK(cuMemCreate(&handle, bytes, &prop, 0));
  CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  CHECK(cuMemMap(address, bytes, 0, handle, 0));
  CUmemAccessDesc access[2]{};
  access[0].location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  access[1].location = where;
  for (auto& one : access) one.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK(cuMemSetAccess(address, bytes, access, where.type == CU_MEM_LOCATION_TYPE_DEVICE ? 1 : 2));
  return address;
}

Machine open() {
  Machine m{};
  CHECK(cudaFree(nullptr));
  void* memory = mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::exit(1);
  m.host = static_cast<char*>(memory);
  std::memset(m.host, 7, kAll);
  CHECK(cudaHostRegister(m.host, kAll, cudaHostRegisterMapped));
  CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&m.seen), m.host, 0));
  CHECK(cudaMalloc(&m.device, kAll));
  m.host_pages = pages({CU_MEM_LOCATION_TYPE_HOST_NUMA, 0});
  m.device_pages = pages({CU_MEM_LOCATION_TYPE_DEVICE, 0});
  std::memset(reinterpret_cast<void*>(m.host_pages), 7, kShort);
  CHECK(cuCtxGetCurrent(&m.context));
  for (auto* stream : {&m.first, &m.second}) CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  return m;
}

void beside_a_long_copy(const Machine& m, const std::string& name, const std::function<int()>& issue) {
  double part = 0;
  for (int turn = 0; turn < 3; turn++) {
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpyAsync(m.device, m.host, kLong, cudaMemcpyHostToDevice, m.first));
    const double begun = now();
    if (const int code = issue()) {
      std::printf("{\"issued\": \"%s\", \"refused\": %d}\n", name.c_str(), code);
      (void)cudaGetLastError();
      return;
    }
    CHECK(cudaStreamSynchronize(m.second));
    const double ended = now();
    CHECK(cudaStreamSynchronize(m.first));
    part = (ended - begun) / (now() - begun);
  }
  std::printf("{\"issued\": \"%s\", \"ended_at\": %.3f}\n", name.c_str(), part);
}

int rows(const Machine& m, CUmemorytype source, CUmemorytype target) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = source;
  copy.srcHost = m.host + kFrom;
  copy.srcDevice = at(m.seen + kFrom);
  copy.dstMemoryType = target;
  copy.dstHost = m.device + kFrom;
  copy.dstDevice = at(m.device + kFrom);
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = kMiB;
  copy.Height = kShort / kMiB;
  return cuMemcpy2DAsync(&copy, m.second);
}

int batch(const Machine& m, unsigned flags) {
  constexpr size_t count = 4;
  CUdeviceptr to[count], from[count];
  size_t sizes[count], first = 0;
  for (size_t i = 0; i < count; i++) {
    sizes[i] = kShort / count;
    to[i] = at(m.device + kFrom + i * sizes[i]);
    from[i] = at(m.host + kFrom + i * sizes[i]);
  }
  CUmemcpyAttributes how{};
  how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  how.flags = flags;
  return cuMemcpyBatchAsync(to, from, sizes, count, &how, &first, 1, m.second);
}

void graph(const Machine& m) {
  cudaGraph_t graph;
  cudaGraphNode_t node;
  cudaGraphExec_t exec;
  CHECK(cudaGraphCreate(&graph, 0));
  CHECK(cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, m.device + kFrom, m.host + kFrom, kShort,
                                 cudaMemcpyHostToDevice));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  beside_a_long_copy(m, "a graph of one copy", [&] { return cudaGraphLaunch(exec, m.second); });
}

}  // namespace

int main() {
  const Machine m = open();
  char* const to = m.device + kFrom;
  const char* const from = m.host + kFrom;
  const CUdeviceptr seen = at(m.seen + kFrom);
  const auto beside = [&](const std::string& name, const std::function<int()>& issue) {
    beside_a_long_copy(m, name, issue);
  };
  beside("DtoH", [&] { return cuMemcpyDtoHAsync(m.host + kFrom, at(to), kShort, m.second); });
  beside("DtoD", [&] { return cuMemcpyDtoDAsync(at(to), at(m.device + 850 * kMiB), kShort, m.second); });
  beside("HtoD", [&] { return cuMemcpyHtoDAsync(at(to), from, kShort, m.second); });
  beside("HtoD of 4 KiB", [&] { return cuMemcpyHtoDAsync(at(to), from, 4096, m.second); });
  beside("HtoD to pages", [&] { return cuMemcpyHtoDAsync(m.device_pages, from, kShort, m.second); });
  beside("any, of the device's address", [&] { return cuMemcpyAsync(at(to), seen, kShort, m.second); });
  beside("DtoD, of the device's address", [&] { return cuMemcpyDtoDAsync(at(to), seen, kShort, m.second); });
  beside("DtoH, of the device's address to the device", [&] { return cuMemcpyDtoHAsync(to, seen, kShort, m.second); });
  beside("peer", [&] { return cuMemcpyPeerAsync(at(to), m.context, seen, m.context, kShort, m.second); });
  beside("any, of the driver's host pages", [&] { return cuMemcpyAsync(at(to), m.host_pages, kShort, m.second); });
  beside("DtoD, of the driver's host pages to pages",
         [&] { return cuMemcpyDtoDAsync(m.device_pages, m.host_pages, kShort, m.second); });
  for (const auto source : {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED})
    for (const auto target : {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED})
      beside("rows, from a CUmemorytype of " + std::to_string(source) + " to " + std::to_string(target),
             [&] { return rows(m, source, target); });
  beside("a batch", [&] { return batch(m, 0); });
  beside("a batch that prefers overlap", [&] { return batch(m, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE); });
  graph(m);
}
