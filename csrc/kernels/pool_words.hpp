// The bytes of a pool as a function of their offset, and functions that write them to a stretch of memory or compare
// them with it. Included by the kernels for device memory and by the host code for host memory.
#pragma once

#include "types.hpp"

namespace kvbench {

KVBENCH_BOTH u64 splitmix64(u64 state) {
  state += 0x9E3779B97F4A7C15;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EB;
  return state ^ (state >> 31);
}

/// Word `index` of a pool with `seed` is splitmix64(pool_start(seed) + index), in little-endian order.
/// Any two seeds give unrelated words.
KVBENCH_BOTH u64 pool_start(u64 seed) { return splitmix64(seed); }
KVBENCH_BOTH u64 pool_word(u64 seed, u64 index) { return splitmix64(pool_start(seed) + index); }

/// Eight bytes of that pool from byte `offset` on.
KVBENCH_BOTH u64 pool_bytes(u64 seed, u64 offset) {
  const u64 index = offset / 8;
  const u32 shift = static_cast<u32>(offset % 8) * 8;
  const u64 low = pool_word(seed, index) >> shift;
  return shift == 0 ? low : low | pool_word(seed, index + 1) << (64 - shift);
}

/// `bytes` of memory from `address` on, with any alignment; they hold the bytes of a pool from `source` on.
struct Stretch {
  u64 address;
  u64 bytes;
  u64 source;
};

/// The input of a kernel: `count` stretches at `stretches`, and the AuditCount of an audit.
struct PoolWork {
  u64 stretches;
  u64 count;
  u64 mismatches;
  u64 seed;
};

/// The result of an audit; `first` is an address, or kNowhere if nothing is wrong.
struct AuditCount {
  u64 wrong_bytes;
  u64 first;
};
constexpr u64 kNowhere = ~0ull;

/// The aligned words that a stretch touches.
KVBENCH_BOTH u64 words_of(const Stretch& stretch) {
  return stretch.bytes == 0 ? 0 : (stretch.address + stretch.bytes - 1) / 8 - stretch.address / 8 + 1;
}

/// The part of a stretch that lies in one of its words; the first and the last may be shorter than eight bytes.
struct WordPart {
  u64 address;
  u64 source;
  u32 bytes;
};

KVBENCH_BOTH WordPart part_of(const Stretch& stretch, u64 word) {
  const u64 begin = (stretch.address / 8 + word) * 8;
  const u64 first = begin < stretch.address ? stretch.address : begin;
  const u64 end = stretch.address + stretch.bytes;
  const u64 last = begin + 8 < end ? begin + 8 : end;
  return {first, stretch.source + (first - stretch.address), static_cast<u32>(last - first)};
}

KVBENCH_BOTH void write_word(const Stretch& stretch, u64 word, u64 seed) {
  const WordPart part = part_of(stretch, word);
  const u64 wanted = pool_bytes(seed, part.source);
  if (part.bytes == 8) {
    *reinterpret_cast<u64*>(part.address) = wanted;
    return;
  }
  u8* to = reinterpret_cast<u8*>(part.address);
  for (u32 i = 0; i < part.bytes; ++i) to[i] = static_cast<u8>(wanted >> (8 * i));
}

KVBENCH_BOTH void audit_word(const Stretch& stretch, u64 word, u64 seed, AuditCount& mismatches) {
  const WordPart part = part_of(stretch, word);
  const u64 wanted = pool_bytes(seed, part.source);
  if (part.bytes == 8 && *reinterpret_cast<const u64*>(part.address) == wanted) return;
  const u8* have = reinterpret_cast<const u8*>(part.address);
  for (u32 i = 0; i < part.bytes; ++i) {
    if (have[i] == static_cast<u8>(wanted >> (8 * i))) continue;
    ++mismatches.wrong_bytes;
    if (part.address + i < mismatches.first) mismatches.first = part.address + i;
  }
}

}  // namespace kvbench
