// Decodes blocks of packed weights (src/format/packed). `scripts/generate_ptx` makes unpack.ptx of this file.
//
// A warp decodes a block of 4096 elements. What it reads lies inside of the payload, whatever the payload's bytes say: windows are clamped to
// the block and the 16 bytes after it. What it writes are whole blocks of the directory, cut to the elements that are wanted.
#include <cstdint>

namespace {

constexpr uint32_t ELEMENTS = 4096;
constexpr uint32_t RAW = 1u << 31;

__device__ __forceinline__ uint32_t up_to(uint32_t count, uint32_t lane) {
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

// The bits above whole bytes of the 16 elements of a lane: `BITS` of each.
template <int BITS>
__device__ __forceinline__ uint64_t bits_above(const uint8_t* at, uint32_t lane) {
  if constexpr (BITS == 4) {
    uint2 both = ((const uint2*)at)[lane];
    return uint64_t(both.y) << 32 | both.x;
  } else if constexpr (BITS == 3) {
    const uint16_t* three = (const uint16_t*)at + 3 * lane;
    return uint64_t(three[2]) << 32 | uint32_t(three[1]) << 16 | three[0];
  }
  return 0;
}

}  // namespace

// The exponents with short codes, by rank. 13 of them count.
struct Exponents {
  uint8_t of[16];
};

// Of elements with so many bits of mantissa and exponent. `payload` holds the blocks from the first one of `directory` on, and 16 bytes
// after the last; `out` is the address of the first one's first element. `elements` are those from there to the end of the weight. Elements
// `first` to `end` are written, in whole 16 bytes: those of the last block are filled up with whatever the code has.
template <int MANTISSA, int EXPONENT>
__device__ __forceinline__ void unpack(const uint8_t* __restrict__ payload, const uint32_t* __restrict__ directory, uint4* __restrict__ out,
                                       uint32_t blocks, uint32_t elements, uint32_t first, uint32_t end, const Exponents& exponents) {
  constexpr uint32_t BITS = 1 + MANTISSA + EXPONENT, BYTES = (1 + MANTISSA) / 8, ABOVE = (1 + MANTISSA) % 8;
  // Elements in 16 bytes.
  constexpr uint32_t SIXTEEN = 128 / BITS;
  // Of a damaged block larger exponents would be seen in other elements.
  constexpr uint32_t LARGEST = (1u << EXPONENT) - 1;
  // More registers would be spilt.
  constexpr int UNROLLED = BYTES == 1 && ABOVE == 0 ? 2 : 1;
  __shared__ uint32_t shifted[16];
  if (threadIdx.x < 16) shifted[threadIdx.x] = (exponents.of[threadIdx.x] & LARGEST) << MANTISSA;
  __syncthreads();
  uint32_t lane = threadIdx.x & 31, warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, warps = (gridDim.x * blockDim.x) >> 5;
  uint32_t base = directory[0] & ~RAW;
  for (uint32_t block = warp; block < blocks; block += warps) {
    uint32_t entry = directory[block], after = (directory[block + 1] & ~RAW) - base;
    const uint8_t* at = payload + size_t((entry & ~RAW) - base) * 16;
    uint32_t from = block * ELEMENTS, count = min(ELEMENTS, elements - from), groups = (count + 511) / 512;
    if (entry & RAW) {
      for (uint32_t i = lane; i < (count + SIXTEEN - 1) / SIXTEEN; i += 32)
        if (from + i * SIXTEEN >= first && from + i * SIXTEEN < end) out[from / SIXTEEN + i] = ((const uint4*)at)[i];
      continue;
    }
    const uint8_t *bits = at + groups * 512 * BYTES, *fields = bits + groups * 64 * ABOVE;
    uint4 low = ((const uint4*)fields)[lane], high = ((const uint4*)(fields + 512))[lane];
    const uint32_t* words = (const uint32_t*)(fields + 1024);
    uint32_t counts = words[0], count2 = counts & 0xffff, count3 = counts >> 16;
    uint32_t last = uint32_t((payload + size_t(after) * 16 - (const uint8_t*)words) / 4) + 1;
    uint32_t third = 1 + ((2 * count2 + 31) >> 5), rest = third + ((3 * count3 + 31) >> 5);
    third = min(third, last), rest = min(rest, last);
    const uint32_t *words2 = words + 1, *words3 = words + third;
    const uint8_t* bytes = (const uint8_t*)(words + rest);
    uint32_t last2 = last - 1, last3 = last - third, most = 4 * (last - rest) + 11;
    uint32_t sum2 = 0, sum3 = 0, sum4 = 0;
#pragma unroll UNROLLED
    for (uint32_t group = 0; group < groups; group++) {
      uint32_t a = half_of(low, group), c = half_of(high, group);
      uint32_t many = __popc(a & c), upto = up_to(many, lane), first2 = sum2 + upto - many;
      uint4 rough[BYTES > 0 ? BYTES : 1];
#pragma unroll
      for (int i = 0; i < BYTES; i++) rough[i] = ((const uint4*)at)[(i * groups + group) * 32 + lane];
      uint64_t above = bits_above<ABOVE>(bits + group * 64 * ABOVE, lane);
      sum2 += __shfl_sync(~0u, upto, 31);
      uint32_t second = uint32_t(window(words2, 2 * first2, last2));
      uint32_t mine = many >= 16 ? ~0u : (1u << (2 * many)) - 1;
      uint32_t deep = __popc(second & (second >> 1) & 0x55555555u & mine);
      uint64_t thirds = 0;
      uint32_t byte = 0;
      if (__ballot_sync(~0u, deep != 0)) {
        uint32_t upto3 = up_to(deep, lane), first3 = sum3 + upto3 - deep;
        sum3 += __shfl_sync(~0u, upto3, 31);
        if (deep) thirds = window(words3, 3 * first3, last3);
        uint64_t rare = thirds & (thirds >> 1) & (thirds >> 2) & 0x249249249249ull & ((1ull << (3 * deep)) - 1);
        uint32_t escapes = __popcll(rare);
        if (__ballot_sync(~0u, escapes != 0)) {
          uint32_t upto4 = up_to(escapes, lane);
          byte = sum4 + upto4 - escapes;
          sum4 += __shfl_sync(~0u, upto4, 31);
        }
      }
      uint32_t four[4], element = from + group * 512 + lane * 16;
#pragma unroll
      for (int i = 0; i < 16; i++) {
        uint32_t code = ((a >> i) & 1) | (((c >> i) & 1) << 1), rank = code;
        bool further = code == 3;
        uint32_t field = second & 3;
        second = further ? second >> 2 : second;
        bool furthest = further & (field == 3);
        uint32_t field3 = uint32_t(thirds) & 7;
        thirds = furthest ? thirds >> 3 : thirds;
        rank = furthest ? 6 + field3 : (further ? 3 + field : code);
        uint32_t exponent = shifted[rank];
        if (rank == 13) exponent = (bytes[min(byte++, most)] & LARGEST) << MANTISSA;
        // Sign and mantissa.
        uint32_t own = ABOVE ? (uint32_t(above >> (ABOVE * i)) & ((1u << ABOVE) - 1)) << (8 * BYTES) : 0;
#pragma unroll
        for (int j = 0; j < BYTES; j++) {
          uint32_t word = i < 4 ? rough[j].x : i < 8 ? rough[j].y : i < 12 ? rough[j].z : rough[j].w;
          own |= ((word >> (8 * (i & 3))) & 255) << (8 * j);
        }
        uint32_t value = (own >> MANTISSA) << (BITS - 1) | exponent | (own & ((1u << MANTISSA) - 1));
        uint32_t place = i % SIXTEEN * BITS;
        four[place / 32] = place % 32 ? four[place / 32] | value << (place % 32) : value;
        uint32_t begin = element + i / SIXTEEN * SIXTEEN;
        if (i % SIXTEEN == SIXTEEN - 1 && begin - from < count && begin >= first && begin < end)
          out[begin / SIXTEEN] = make_uint4(four[0], four[1], four[2], four[3]);
      }
    }
  }
}

#define WEIGHTSTREAM_UNPACK(name, mantissa, exponent)                                                                                \
  extern "C" __global__ void __launch_bounds__(256, 4)                                                                               \
      weightstream_unpack_##name(const uint8_t* __restrict__ payload, const uint32_t* __restrict__ directory,                        \
                                 uint4* __restrict__ out, uint32_t blocks, uint32_t elements, uint32_t first, uint32_t end,          \
                                 const __grid_constant__ Exponents exponents) {                                                                              \
    unpack<mantissa, exponent>(payload, directory, out, blocks, elements, first, end, exponents);                                    \
  }

WEIGHTSTREAM_UNPACK(bf16, 7, 8)
WEIGHTSTREAM_UNPACK(f16, 10, 5)
WEIGHTSTREAM_UNPACK(f32, 23, 8)
WEIGHTSTREAM_UNPACK(f8e4m3, 3, 4)
WEIGHTSTREAM_UNPACK(f8e5m2, 2, 5)
