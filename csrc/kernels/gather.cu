// Gathers rows whose ids lie on the device, as sparse attention fetches what a decode step misses: no list on the host,
// and a launch that a graph can hold. A warp moves a row at a time, with up to four loads of a lane in flight.
//
// One row size per compilation: KVBENCH_ROW_BYTES, in words of KVBENCH_WORD_BYTES that divide it and every address.
#include "types.hpp"

#ifndef KVBENCH_ROW_BYTES
#define KVBENCH_ROW_BYTES 576
#define KVBENCH_WORD_BYTES 16
#endif

using namespace kvbench;

namespace {

constexpr u32 kLanes = 32;
constexpr u32 kMostLoads = 4;

template <u32 bytes>
struct WordOf;
template <>
struct WordOf<16> {
  using type = uint4;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<4> {
  using type = u32;
};
template <>
struct WordOf<1> {
  using type = u8;
};

using Word = WordOf<KVBENCH_WORD_BYTES>::type;
constexpr u32 kWords = KVBENCH_ROW_BYTES / KVBENCH_WORD_BYTES;
constexpr u32 kWordsOfLane = (kWords + kLanes - 1) / kLanes;
constexpr u32 kLoads = kWordsOfLane < kMostLoads ? kWordsOfLane : kMostLoads;

}  // namespace

extern "C" __global__ void __launch_bounds__(1024)
    kvbench_gather(const u8* source_base, u8* destination_base, const RowIds* __restrict__ ids, u32 rows) {
  const u32 lane = threadIdx.x % kLanes;
  const u32 warps = gridDim.x * blockDim.x / kLanes;
  for (u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes; row < rows; row += warps) {
    const RowIds at = ids[row];
    const Word* source = reinterpret_cast<const Word*>(source_base + at.source * KVBENCH_ROW_BYTES) + lane;
    Word* destination = reinterpret_cast<Word*>(destination_base + at.destination * KVBENCH_ROW_BYTES) + lane;
    // Known bounds: a row of latent attention is one pass, of as many loads as it needs, without a branch.
#pragma unroll 1
    for (u32 first = 0; first < kWords; first += kLanes * kLoads) {
      Word words[kLoads];
#pragma unroll
      for (u32 load = 0; load < kLoads; ++load) {
        const u32 word = first + load * kLanes;
        if (word + lane < kWords) words[load] = source[word];
      }
#pragma unroll
      for (u32 load = 0; load < kLoads; ++load) {
        const u32 word = first + load * kLanes;
        if (word + lane < kWords) destination[word] = words[load];
      }
    }
  }
}
