// Packed bf16 weights on a GPU: the decoder of src/format/packed, its speed by the number of blocks of threads, and a pass over the link.
//
//   nvcc -O3 -arch=sm_90 -o /tmp/packed benches/gpu/packed.cu && /tmp/packed
//
// A warp decodes a block of 4096 elements. The layout is that of src/format/packed/mod.rs; the encoder here is a second, naive one. Every
// decoded bit is compared. One JSON object per line.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include <cuda_runtime.h>

void check(cudaError_t error, const char* call, int line) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s, line %d\n", call, cudaGetErrorString(error), line);
  std::exit(1);
}
#define CHECK(call) check((call), #call, __LINE__)

constexpr uint32_t ELEMENTS = 4096;
constexpr uint32_t RAW = 1u << 31;

struct Exponents {
  uint8_t of[16];  // By rank; 13 of them count.
};

__device__ __forceinline__ uint32_t before(uint32_t count, uint32_t lane) {
  uint32_t sum = count;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    uint32_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  return sum;
}

// The 64 bits from this bit on. Damaged blocks may ask for any: no word after `last` is the first of a window.
__device__ __forceinline__ uint64_t window(const uint32_t* words, uint32_t bit, uint32_t last) {
  uint32_t at = min(bit >> 5, last), shift = bit & 31;
  uint32_t a = words[at], b = words[at + 1], c = words[at + 2];
  return uint64_t(__funnelshift_r(a, b, shift)) | uint64_t(__funnelshift_r(b, c, shift)) << 32;
}

__device__ __forceinline__ uint32_t half_of(uint4 plane, int group) {
  uint32_t word = group < 2 ? plane.x : group < 4 ? plane.y : group < 6 ? plane.z : plane.w;
  return group & 1 ? word >> 16 : word & 0xffff;
}

__global__ void __launch_bounds__(256, 4) decode(const uint8_t* __restrict__ payload, const uint32_t* __restrict__ directory,
                                                 uint4* __restrict__ out, uint32_t blocks, uint32_t elements, Exponents exponents) {
  __shared__ uint16_t shifted[16];
  if (threadIdx.x < 16) shifted[threadIdx.x] = uint16_t(exponents.of[threadIdx.x]) << 7;
  __syncthreads();
  uint32_t lane = threadIdx.x & 31, warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, warps = (gridDim.x * blockDim.x) >> 5;
  for (uint32_t block = warp; block < blocks; block += warps) {
    uint32_t entry = directory[block], end = directory[block + 1] & ~RAW;
    const uint8_t* at = payload + size_t(entry & ~RAW) * 16;
    uint32_t count = min(ELEMENTS, elements - block * ELEMENTS), groups = (count + 511) / 512;
    uint4* to = out + size_t(block) * (ELEMENTS / 8);
    if (entry & RAW) {
      for (uint32_t i = lane; i < (count + 7) / 8; i += 32) to[i] = ((const uint4*)at)[i];
      continue;
    }
    const uint8_t* fields = at + groups * 512;
    uint4 low = ((const uint4*)fields)[lane], high = ((const uint4*)(fields + 512))[lane];
    const uint32_t* words = (const uint32_t*)(fields + 1024);
    uint32_t counts = words[0], count2 = counts & 0xffff, count3 = counts >> 16;
    // 16 bytes after the block are the payload's, too.
    uint32_t last = uint32_t((payload + size_t(end) * 16 - (const uint8_t*)words) / 4) + 1;
    uint32_t third = 1 + ((2 * count2 + 31) >> 5), rest = third + ((3 * count3 + 31) >> 5);
    third = min(third, last), rest = min(rest, last);
    const uint32_t *words2 = words + 1, *words3 = words + third;
    const uint8_t* bytes = (const uint8_t*)(words + rest);
    uint32_t last2 = last - 1, last3 = last - third, most = 4 * (last - rest) + 11;
    uint32_t sum2 = 0, sum3 = 0, sum4 = 0;
#pragma unroll 2
    for (uint32_t group = 0; group < groups; group++) {
      uint32_t a = half_of(low, group), c = half_of(high, group);
      uint4 rough = ((const uint4*)at)[group * 32 + lane];
      uint32_t many = __popc(a & c), upto = before(many, lane), first = sum2 + upto - many;
      sum2 += __shfl_sync(~0u, upto, 31);
      uint32_t second = uint32_t(window(words2, 2 * first, last2));
      uint32_t mine = many >= 16 ? ~0u : (1u << (2 * many)) - 1;
      uint32_t deep = __popc(second & (second >> 1) & 0x55555555u & mine);
      uint64_t thirds = 0;
      uint32_t byte = 0;
      if (__ballot_sync(~0u, deep != 0)) {
        uint32_t upto3 = before(deep, lane), first3 = sum3 + upto3 - deep;
        sum3 += __shfl_sync(~0u, upto3, 31);
        if (deep) thirds = window(words3, 3 * first3, last3);
        uint64_t rare = thirds & (thirds >> 1) & (thirds >> 2) & 0x249249249249ull & ((1ull << (3 * deep)) - 1);
        uint32_t escapes = __popcll(rare);
        if (__ballot_sync(~0u, escapes != 0)) {
          uint32_t upto4 = before(escapes, lane);
          byte = sum4 + upto4 - escapes;
          sum4 += __shfl_sync(~0u, upto4, 31);
        }
      }
      uint32_t pairs[8], signs[4] = {rough.x, rough.y, rough.z, rough.w};
#pragma unroll
      for (int i = 0; i < 16; i++) {
        uint32_t own = (signs[i >> 2] >> (8 * (i & 3))) & 255, code = ((a >> i) & 1) | (((c >> i) & 1) << 1), rank = code;
        bool further = code == 3;
        uint32_t field = second & 3;
        second = further ? second >> 2 : second;
        bool furthest = further & (field == 3);
        uint32_t field3 = uint32_t(thirds) & 7;
        thirds = furthest ? thirds >> 3 : thirds;
        rank = furthest ? 6 + field3 : (further ? 3 + field : code);
        uint32_t exponent = shifted[rank];
        if (rank == 13) exponent = uint32_t(bytes[min(byte++, most)]) << 7;
        uint32_t value = ((own & 0x80) << 8) | exponent | (own & 0x7f);
        pairs[i / 2] = i & 1 ? pairs[i / 2] | value << 16 : value;
      }
      uint32_t here = group * 64 + lane * 2;
      if ((group * 512 + lane * 16) < count) to[here] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      if ((group * 512 + lane * 16 + 8) < count) to[here + 1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    }
  }
}

__global__ void use(const uint4* from, size_t count, unsigned long long* out) {
  unsigned long long sum = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
    uint4 one = from[i];
    sum += one.x * 3ull + one.y * 5ull + one.z * 7ull + one.w * 11ull;
  }
  atomicAdd(out, sum);
}

struct Packed {
  Exponents exponents = {};
  std::vector<uint32_t> directory;
  std::vector<uint8_t> payload;
};

void put(std::vector<uint8_t>& to, const std::vector<uint8_t>& fields, int bits) {
  size_t start = to.size();
  to.resize(start + (bits * fields.size() + 31) / 32 * 4, 0);
  for (size_t i = 0; i < fields.size(); i++)
    for (int j = 0; j < bits; j++)
      if (fields[i] >> j & 1) to[start + (i * bits + j) / 8] |= 1 << ((i * bits + j) & 7);
}

Packed encode(const std::vector<uint16_t>& raw) {
  Packed packed;
  size_t seen[256] = {};
  for (uint16_t one : raw) seen[(one >> 7) & 255]++;
  std::vector<int> order(256);
  for (int i = 0; i < 256; i++) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return seen[a] > seen[b]; });
  int rank[256];
  std::fill(rank, rank + 256, 99);
  for (int i = 0; i < 13; i++) packed.exponents.of[i] = order[i], rank[order[i]] = i;
  for (size_t start = 0; start < raw.size(); start += ELEMENTS) {
    size_t count = std::min<size_t>(ELEMENTS, raw.size() - start), groups = (count + 511) / 512;
    std::vector<uint8_t> block(groups * 512 + 1024, 0), two, three, rest;
    for (size_t i = 0; i < count; i++) {
      uint16_t one = raw[start + i];
      block[i] = ((one >> 8) & 0x80) | (one & 0x7f);
      int found = rank[(one >> 7) & 255], code = std::min(found, 3);
      size_t group = i / 512, lane = i / 16 % 32, bit = i % 16, plane = groups * 512 + 16 * lane + 2 * group + bit / 8;
      if (code & 1) block[plane] |= 1 << (bit & 7);
      if (code & 2) block[plane + 512] |= 1 << (bit & 7);
      if (code < 3) continue;
      two.push_back(std::min(found - 3, 3));
      if (two.back() < 3) continue;
      three.push_back(std::min(found - 6, 7));
      if (three.back() == 7) rest.push_back((one >> 7) & 255);
    }
    uint32_t counts = two.size() | three.size() << 16;
    block.insert(block.end(), (uint8_t*)&counts, (uint8_t*)&counts + 4);
    put(block, two, 2), put(block, three, 3);
    block.insert(block.end(), rest.begin(), rest.end());
    block.resize((block.size() + 15) / 16 * 16, 0);
    uint32_t place = packed.payload.size() / 16;
    size_t plain = (2 * count + 15) / 16 * 16;
    if (block.size() >= plain) {
      place |= RAW;
      block.assign(plain, 0);
      std::memcpy(block.data(), &raw[start], 2 * count);
    }
    packed.directory.push_back(place);
    packed.payload.insert(packed.payload.end(), block.begin(), block.end());
  }
  packed.directory.push_back(packed.payload.size() / 16);
  packed.payload.resize(packed.payload.size() + 16, 0);
  return packed;
}

std::vector<uint16_t> normal(size_t count, float sigma) {
  std::vector<uint16_t> values(count);
  std::mt19937 random(1);
  std::normal_distribution<float> draw(0, sigma);
  for (auto& value : values) {
    float one = draw(random);
    uint32_t bits;
    std::memcpy(&bits, &one, 4);
    value = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  return values;
}

void launch(const uint8_t* payload, const uint32_t* directory, uint8_t* out, const Packed& packed, size_t elements, int grid, cudaStream_t stream) {
  decode<<<grid, 256, 0, stream>>>(payload, directory, (uint4*)out, packed.directory.size() - 1, elements, packed.exponents);
}

bool decodes_to(const std::vector<uint16_t>& raw, const Packed& packed) {
  uint8_t *payload, *out;
  uint32_t* directory;
  size_t bytes = (raw.size() * 2 + 15) / 16 * 16, guard = 4096;
  CHECK(cudaMalloc(&payload, packed.payload.size()));
  CHECK(cudaMalloc(&directory, packed.directory.size() * 4));
  CHECK(cudaMalloc(&out, bytes + guard));
  CHECK(cudaMemcpy(payload, packed.payload.data(), packed.payload.size(), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(directory, packed.directory.data(), packed.directory.size() * 4, cudaMemcpyHostToDevice));
  CHECK(cudaMemset(out, 0xee, bytes + guard));
  launch(payload, directory, out, packed, raw.size(), 132, 0);
  std::vector<uint8_t> found(bytes + guard);
  CHECK(cudaMemcpy(found.data(), out, bytes + guard, cudaMemcpyDeviceToHost));
  bool right = !std::memcmp(found.data(), raw.data(), raw.size() * 2);
  for (size_t i = 0; i < guard; i++) right &= found[bytes + i] == 0xee;
  CHECK(cudaFree(payload)), CHECK(cudaFree(directory)), CHECK(cudaFree(out));
  return right;
}

void measure(const std::vector<uint16_t>& raw, const Packed& packed) {
  constexpr int SLOTS = 3, LAYERS = 64, COPIES = 8;
  size_t bytes = raw.size() * 2, stored = packed.payload.size(), listed = packed.directory.size() * 4;
  uint8_t *slot[SLOTS], *stage[SLOTS], *host, *plain;
  uint32_t* directory;
  unsigned long long* sum;
  CHECK(cudaMalloc(&directory, listed)), CHECK(cudaMalloc(&sum, 8));
  CHECK(cudaMemcpy(directory, packed.directory.data(), listed, cudaMemcpyHostToDevice));
  for (int i = 0; i < SLOTS; i++) {
    CHECK(cudaMalloc(&slot[i], bytes)), CHECK(cudaMalloc(&stage[i], stored));
    CHECK(cudaMemcpy(stage[i], packed.payload.data(), stored, cudaMemcpyHostToDevice));
  }
  size_t apart = (stored + 255) / 256 * 256;
  CHECK(cudaMallocHost(&host, apart * COPIES)), CHECK(cudaMallocHost(&plain, bytes * 4));
  for (int i = 0; i < COPIES; i++) std::memcpy(host + i * apart, packed.payload.data(), stored);
  std::memset(plain, 1, bytes * 4);
  cudaStream_t copy, unpack, compute;
  int low, high;
  CHECK(cudaDeviceGetStreamPriorityRange(&low, &high));
  CHECK(cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking)), CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithPriority(&unpack, cudaStreamNonBlocking, high));
  cudaEvent_t freed[SLOTS], ready[SLOTS], read[SLOTS], there[SLOTS], begin, end;
  for (int i = 0; i < SLOTS; i++)
    for (cudaEvent_t* event : {&freed[i], &ready[i], &read[i], &there[i]}) CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  CHECK(cudaEventCreate(&begin)), CHECK(cudaEventCreate(&end));
  float ms;
  for (int grid : {16, 32, 64, 132, 264, 528, 1056}) {
    launch(stage[0], directory, slot[0], packed, raw.size(), grid, unpack);
    CHECK(cudaEventRecord(begin, unpack));
    for (int i = 0; i < 50; i++) launch(stage[i % SLOTS], directory, slot[i % SLOTS], packed, raw.size(), grid, unpack);
    CHECK(cudaEventRecord(end, unpack)), CHECK(cudaDeviceSynchronize()), CHECK(cudaEventElapsedTime(&ms, begin, end));
    std::printf("{\"thread_blocks\": %d, \"decode_gb_s\": %.1f}\n", grid, bytes * 50 / ms / 1e6);
  }
  CHECK(cudaEventRecord(begin, copy));
  for (int i = 0; i < LAYERS; i++) CHECK(cudaMemcpyAsync(slot[i % SLOTS], plain + (i % 4) * bytes, bytes, cudaMemcpyHostToDevice, copy));
  CHECK(cudaEventRecord(end, copy)), CHECK(cudaDeviceSynchronize()), CHECK(cudaEventElapsedTime(&ms, begin, end));
  double link = ms;
  std::printf("{\"link_gb_s\": %.2f}\n", bytes * LAYERS / link / 1e6);
  CHECK(cudaEventRecord(begin, copy));
  for (int i = 0; i < LAYERS; i++) CHECK(cudaMemcpyAsync(stage[i % SLOTS], host + (i % COPIES) * apart, stored, cudaMemcpyHostToDevice, copy));
  CHECK(cudaEventRecord(end, copy)), CHECK(cudaDeviceSynchronize()), CHECK(cudaEventElapsedTime(&ms, begin, end));
  std::printf("{\"packed_link_gb_s\": %.2f}\n", stored * LAYERS / ms / 1e6);
  for (int grid : {32, 64, 132, 528}) {
    std::vector<double> times;
    for (int run = 0; run < 9; run++) {
      CHECK(cudaDeviceSynchronize());
      auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < LAYERS; i++) {
        int k = i % SLOTS;
        if (i >= SLOTS) CHECK(cudaStreamWaitEvent(copy, read[k], 0));
        CHECK(cudaMemcpyAsync(stage[k], host + (i % COPIES) * apart, stored, cudaMemcpyHostToDevice, copy));
        CHECK(cudaEventRecord(there[k], copy)), CHECK(cudaStreamWaitEvent(unpack, there[k], 0));
        if (i >= SLOTS) CHECK(cudaStreamWaitEvent(unpack, freed[k], 0));
        launch(stage[k], directory, slot[k], packed, raw.size(), grid, unpack);
        CHECK(cudaEventRecord(read[k], unpack)), CHECK(cudaEventRecord(ready[k], unpack)), CHECK(cudaStreamWaitEvent(compute, ready[k], 0));
        use<<<132, 256, 0, compute>>>((uint4*)slot[k], bytes / 16, sum);
        CHECK(cudaEventRecord(freed[k], compute));
      }
      CHECK(cudaDeviceSynchronize());
      times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    std::printf("{\"thread_blocks\": %d, \"pass_over_raw_link\": %.4f, \"least\": %.4f, \"most\": %.4f}\n", grid, times[4] / link, times[0] / link, times[8] / link);
  }
  for (int i = 0; i < SLOTS; i++) CHECK(cudaFree(slot[i])), CHECK(cudaFree(stage[i]));
  CHECK(cudaFreeHost(host)), CHECK(cudaFreeHost(plain)), CHECK(cudaFree(directory)), CHECK(cudaFree(sum));
}

// Damaged blocks: whatever they decode to, a sanitizer finds no access outside.
void damage(Packed packed, size_t elements) {
  std::mt19937 random(2);
  uint8_t *payload, *out;
  uint32_t* directory;
  CHECK(cudaMalloc(&payload, packed.payload.size())), CHECK(cudaMalloc(&out, (elements * 2 + 15) / 16 * 16));
  CHECK(cudaMalloc(&directory, packed.directory.size() * 4));
  CHECK(cudaMemcpy(directory, packed.directory.data(), packed.directory.size() * 4, cudaMemcpyHostToDevice));
  for (int run = 0; run < 50; run++) {
    for (int i = 0; i < 2000; i++) packed.payload[random() % packed.payload.size()] = run % 3 ? random() : 0xff;
    CHECK(cudaMemcpy(payload, packed.payload.data(), packed.payload.size(), cudaMemcpyHostToDevice));
    launch(payload, directory, out, packed, elements, 132, 0);
    CHECK(cudaDeviceSynchronize());
  }
  std::printf("{\"damaged_runs\": 50, \"ended\": true}\n");
}

int main(int argc, char** argv) {
  bool only_damage = argc > 1 && !std::strcmp(argv[1], "damage");
  std::vector<uint16_t> mixed = normal(ELEMENTS * 37 + 777, 0.0156f);
  std::mt19937 random(3);
  for (size_t i = 0; i < ELEMENTS; i++) mixed[ELEMENTS * 5 + i] = random();                  // Noise: stored raw.
  for (size_t i = 0; i < 300; i++) mixed[random() % mixed.size()] = random();               // Rare exponents, NaN, infinities.
  for (size_t i = 0; i < ELEMENTS; i++) mixed[ELEMENTS * 7 + i] = i & 1 ? 0x8000 : 0;      // Zeros of both signs.
  Packed packed = encode(mixed);
  size_t raw_blocks = std::count_if(packed.directory.begin(), packed.directory.end(), [](uint32_t one) { return one & RAW; });
  if (only_damage) return damage(packed, mixed.size()), 0;
  std::printf("{\"mixed\": %zu, \"raw_blocks\": %zu, \"equal\": %s}\n", mixed.size(), raw_blocks, decodes_to(mixed, packed) ? "true" : "false");
  for (size_t count : {8u, 504u, 512u, 520u, 4096u, 4104u, 8184u}) {
    std::vector<uint16_t> some(mixed.begin(), mixed.begin() + count);
    if (!decodes_to(some, encode(some))) std::printf("{\"count\": %zu, \"equal\": false}\n", count);
  }
  std::vector<uint16_t> large = normal(4096ull * 5504, 0.0156f);
  packed = encode(large);
  std::printf("{\"elements\": %zu, \"ratio\": %.4f, \"equal\": %s}\n", large.size(),
              double(packed.payload.size() + 4 * packed.directory.size()) / (2 * large.size()), decodes_to(large, packed) ? "true" : "false");
  damage(encode(mixed), mixed.size());
  // The first pass of a process is slower than the second: see docs/measurements.md.
  measure(large, packed);
  measure(large, packed);
}
