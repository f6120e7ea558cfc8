// How a swap is cut into pieces and a piece into accesses. Included by the kernels and by host code, which tests it.
#pragma once

#ifdef __CUDACC__
#define KVBENCH_BOTH __host__ __device__ __forceinline__
#else
#define KVBENCH_BOTH inline
#endif

namespace kvbench {

typedef unsigned int u32;
typedef unsigned long long u64;

/// Worker `worker` of `workers` takes pieces [first, last): contiguous shares that differ by one piece at most.
struct Share {
  u32 first;
  u32 last;
};

KVBENCH_BOTH Share share_of(u32 pieces, u32 workers, u32 worker) {
  return {static_cast<u32>(static_cast<u64>(pieces) * worker / workers),
          static_cast<u32>(static_cast<u64>(pieces) * (worker + 1) / workers)};
}

/// Piece `piece` of a list of equal blocks, each cut into pieces of `piece_bytes`: its row and where it lies in the
/// block.
struct Part {
  u32 row;
  u64 offset;
  u32 bytes;
};

KVBENCH_BOTH Part part_of(u32 piece, u64 block_bytes, u32 piece_bytes, u32 pieces_a_block) {
  const u32 row = piece / pieces_a_block;
  const u64 offset = static_cast<u64>(piece - row * pieces_a_block) * piece_bytes;
  const u64 left = block_bytes - offset;
  return {row, offset, left < piece_bytes ? static_cast<u32>(left) : piece_bytes};
}

/// The accesses of a piece: `head` single bytes until both sides are aligned, `words` accesses of `width` bytes, and
/// `tail` single bytes. `width` is the widest power of two up to 16 to which both sides can be aligned at once.
struct Accesses {
  u32 head;
  u32 width;
  u32 words;
  u32 tail;
};

KVBENCH_BOTH Accesses accesses_of(u64 source, u64 destination, u32 bytes) {
  const u64 apart = (source ^ destination) | 16;
  const u32 width = static_cast<u32>(apart & (~apart + 1));
  u32 head = static_cast<u32>(-source & (width - 1));
  if (head > bytes) head = bytes;
  const u32 words = (bytes - head) / width;
  return {head, width, words, bytes - head - words * width};
}

}  // namespace kvbench
