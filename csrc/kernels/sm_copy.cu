// Copies a list of descriptors with a few SMs. Warps take contiguous shares of the pieces; the descriptors of the next
// 32 pieces are read while the bytes of the current ones move, so that the list may lie in pinned host memory.
#include "piece_map.hpp"

using namespace kvbench;

namespace {

struct Row {
  u64 source;
  u64 destination;
};

/// The swap as the host wrote it. With `lengths` every row is one piece of its own length; without, every row is a
/// block of `block_bytes` that is cut into `pieces_a_block` pieces of `piece_bytes`.
struct List {
  const Row* rows;
  const u32* lengths;
  u64 block_bytes;
  u32 pieces;
  u32 piece_bytes;
  u32 pieces_a_block;
};

struct Piece {
  u64 source;
  u64 destination;
  u32 bytes;
};

__device__ __forceinline__ Piece read_piece(const List& list, u32 piece) {
  Part part;
  if (list.lengths != nullptr) {
    part = {piece, 0, list.lengths[piece]};
  } else {
    part = part_of(piece, list.block_bytes, list.piece_bytes, list.pieces_a_block);
  }
  const Row row = list.rows[part.row];
  return {row.source + part.offset, row.destination + part.offset, part.bytes};
}

/// Hands a warp its pieces in order; every lane holds one piece of the current 32 and one of the next.
class PieceReader {
 public:
  __device__ PieceReader(const List& list, Share share) : list_(list), share_(share) {
    next_ = fetch(share.first);
    advance(share.first);
  }

  /// Returns piece `piece` to all lanes; pieces are asked for in ascending order.
  __device__ Piece at(u32 piece) {
    const u32 place = (piece - share_.first) % 32;
    if (place == 0 && piece != share_.first) advance(piece);
    return {__shfl_sync(~0u, current_.source, place), __shfl_sync(~0u, current_.destination, place),
            __shfl_sync(~0u, current_.bytes, place)};
  }

 private:
  __device__ Piece fetch(u32 first) const {
    const u32 piece = first + threadIdx.x % 32;
    return piece < share_.last ? read_piece(list_, piece) : Piece{0, 0, 0};
  }
  __device__ void advance(u32 first) {
    current_ = next_;
    next_ = fetch(first + 32);
  }

  const List& list_;
  Share share_;
  Piece current_;
  Piece next_;
};

__device__ __forceinline__ uint4 load_16(const void* from) {
  // Relaxed at system scope: host memory is read once, past L1, and the loads of one thread stay in flight together.
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_16(void* to, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

constexpr u32 kInFlight = 8;

/// Copies `words` words with a whole warp, kInFlight loads of every lane before its first store.
template <typename Word, typename Load, typename Store>
__device__ __forceinline__ void copy_words(const char* from, char* to, u32 words, Load load, Store store) {
  for (u32 done = 0; done < words; done += 32 * kInFlight) {
    Word held[kInFlight];
#pragma unroll
    for (u32 i = 0; i < kInFlight; ++i) {
      const u32 word = done + 32 * i + threadIdx.x % 32;
      if (word < words) held[i] = load(from + static_cast<u64>(word) * sizeof(Word));
    }
#pragma unroll
    for (u32 i = 0; i < kInFlight; ++i) {
      const u32 word = done + 32 * i + threadIdx.x % 32;
      if (word < words) store(to + static_cast<u64>(word) * sizeof(Word), held[i]);
    }
  }
}

template <typename Word>
__device__ __forceinline__ void copy_plain(const char* from, char* to, u32 words) {
  copy_words<Word>(
      from, to, words, [](const char* at) { return *reinterpret_cast<const volatile Word*>(at); },
      [](char* at, Word value) { *reinterpret_cast<Word*>(at) = value; });
}

__device__ __forceinline__ void copy_piece(const Piece& piece) {
  const Accesses accesses = accesses_of(piece.source, piece.destination, piece.bytes);
  const char* from = reinterpret_cast<const char*>(piece.source);
  char* to = reinterpret_cast<char*>(piece.destination);
  copy_plain<unsigned char>(from, to, accesses.head);
  from += accesses.head;
  to += accesses.head;
  switch (accesses.width) {
    case 16:
      copy_words<uint4>(
          from, to, accesses.words, [](const char* at) { return load_16(at); },
          [](char* at, uint4 value) { store_16(at, value); });
      break;
    case 8:
      copy_plain<u64>(from, to, accesses.words);
      break;
    case 4:
      copy_plain<u32>(from, to, accesses.words);
      break;
    case 2:
      copy_plain<unsigned short>(from, to, accesses.words);
      break;
    default:
      copy_plain<unsigned char>(from, to, accesses.words);
  }
  const u64 moved = static_cast<u64>(accesses.words) * accesses.width;
  copy_plain<unsigned char>(from + moved, to + moved, accesses.tail);
}

__device__ __forceinline__ Share share_of_warp(const List& list) {
  const u32 warps_a_block = blockDim.x / 32;
  return share_of(list.pieces, gridDim.x * warps_a_block, blockIdx.x * warps_a_block + threadIdx.x / 32);
}

}  // namespace

/// Any size, any alignment: every warp loads and stores its pieces.
extern "C" __global__ void __launch_bounds__(512) kvbench_sm_copy_lanes(const __grid_constant__ List list) {
  const Share share = share_of_warp(list);
  PieceReader reader(list, share);
  for (u32 piece = share.first; piece < share.last; ++piece) copy_piece(reader.at(piece));
}

/// Every address and size a multiple of 16: bulk copies into a ring of stages in shared memory and out of it again,
/// issued by one lane of each warp. Needs sm_90.
template <u32 kWarps, u32 kStages, u32 kStageBytes>
__device__ __forceinline__ void copy_bulk(const List& list) {
#if __CUDA_ARCH__ >= 900
  // A stage is filled again once its store has read it; so many stores may be under way meanwhile.
  constexpr u32 kStoring = 2;
  constexpr u32 kAhead = kStages - kStoring;
  extern __shared__ __align__(128) char stages[];
  __shared__ u64 barriers[kWarps * kStages];
  const u32 warp = threadIdx.x / 32;
  const bool issues = threadIdx.x % 32 == 0;
  const u32 ring = static_cast<u32>(__cvta_generic_to_shared(stages)) + warp * kStages * kStageBytes;
  const u32 barrier = static_cast<u32>(__cvta_generic_to_shared(barriers + warp * kStages));
  if (issues) {
    for (u32 stage = 0; stage < kStages; ++stage) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier + stage * 8) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  const Share share = share_of_warp(list);
  const u32 count = share.last - share.first;
  PieceReader loads(list, share);
  // Destination and length wait in a register a stage, in the lane of that number, until the bytes have come.
  u64 waiting_destination = 0;
  u32 waiting_bytes = 0;
  for (u32 step = 0; step < count + kAhead; ++step) {
    if (step < count) {
      const u32 stage = step % kStages;
      const Piece piece = loads.at(share.first + step);
      if (threadIdx.x % 32 == stage) {
        waiting_destination = piece.destination;
        waiting_bytes = piece.bytes;
      }
      if (issues) {
        if (step >= kStages) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kStoring - 1) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier + stage * 8),
                     "r"(piece.bytes)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         ring + stage * kStageBytes),
                     "l"(piece.source), "r"(piece.bytes), "r"(barrier + stage * 8)
                     : "memory");
      }
    }
    if (step >= kAhead) {
      const u32 storing = step - kAhead;
      const u32 stage = storing % kStages;
      const u64 destination = __shfl_sync(~0u, waiting_destination, stage);
      const u32 bytes = __shfl_sync(~0u, waiting_bytes, stage);
      if (issues) {
        const u32 parity = storing / kStages % 2;
        u32 arrived = 0;
        while (arrived == 0) {
          asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                       : "=r"(arrived)
                       : "r"(barrier + stage * 8), "r"(parity)
                       : "memory");
        }
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination),
                     "r"(ring + stage * kStageBytes), "r"(bytes)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
      __syncwarp();
    }
  }
  if (issues) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

/// Few warps with large stages: blocks from 2 KiB upward.
extern "C" __global__ void __launch_bounds__(256) kvbench_sm_copy_bulk_large(const __grid_constant__ List list) {
  copy_bulk<8, 6, 4096>(list);
}

/// Many warps with small stages: rows of up to 1 KiB.
extern "C" __global__ void __launch_bounds__(1024) kvbench_sm_copy_bulk_small(const __grid_constant__ List list) {
  copy_bulk<32, 6, 1024>(list);
}
