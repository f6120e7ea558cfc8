// Copies the blocks of a swap with a few SMs. Warps take contiguous shares of the pieces. The descriptors of the next
// 32 pieces are read while the bytes of the current ones move, so that the list can be in pinned host memory.
//
// One kernel shape per compilation: KVBENCH_WARPS warps per thread block, each with KVBENCH_DEPTH stages (bulk) or
// loads per lane (lanes) in flight, and pieces of KVBENCH_PIECE_BYTES.
#include "piece_map.hpp"

#ifndef KVBENCH_WARPS
#define KVBENCH_WARPS 8
#define KVBENCH_DEPTH 6
#define KVBENCH_PIECE_BYTES 4096
#endif

using namespace kvbench;

namespace {

constexpr u32 kWarps = KVBENCH_WARPS;
constexpr u32 kDepth = KVBENCH_DEPTH;
constexpr u32 kPieceBytes = KVBENCH_PIECE_BYTES;

/// Gives a warp its pieces in order; every lane holds one of the current 32 pieces and one of the next 32.
class PieceReader {
 public:
  __device__ PieceReader(const List& list, Share share) : list_(list), share_(share) {
    next_ = fetch(share.first);
    advance(share.first);
  }

  /// Returns piece `piece` to all lanes; pieces must be requested in ascending order.
  __device__ Piece at(u32 piece) {
    const u32 place = (piece - share_.first) % 32;
    if (place == 0 && piece != share_.first) advance(piece);
    return {__shfl_sync(~0u, current_.source, place), __shfl_sync(~0u, current_.destination, place),
            __shfl_sync(~0u, current_.bytes, place)};
  }

 private:
  __device__ Piece fetch(u32 first) const {
    const u32 piece = first + threadIdx.x % 32;
    return piece < share_.last ? read_piece(list_, piece, kPieceBytes) : Piece{0, 0, 0};
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
  // Relaxed at system scope: host memory is read once, bypassing L1, with several loads of a thread in flight.
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

/// Copies words [0, words) with a whole warp; every lane issues kDepth loads before its first store. Lanes begin `skew`
/// words early, so that the accesses of a warp are aligned to lines of the host side.
template <typename Word, typename Load, typename Store>
__device__ __forceinline__ void copy_words(const char* from, char* to, u32 words, u32 skew, Load load, Store store) {
  const u32 end = words + skew;
  for (u32 done = 0; done < end; done += 32 * kDepth) {
    Word held[kDepth];
#pragma unroll
    for (u32 i = 0; i < kDepth; ++i) {
      const u32 at = done + 32 * i + threadIdx.x % 32;
      if (at >= skew && at < end) held[i] = load(from + static_cast<u64>(at - skew) * sizeof(Word));
    }
#pragma unroll
    for (u32 i = 0; i < kDepth; ++i) {
      const u32 at = done + 32 * i + threadIdx.x % 32;
      if (at >= skew && at < end) store(to + static_cast<u64>(at - skew) * sizeof(Word), held[i]);
    }
  }
}

template <typename Word>
__device__ __forceinline__ void copy_plain(const char* from, char* to, u32 words, u32 skew = 0) {
  copy_words<Word>(
      from, to, words, skew, [](const char* at) { return *reinterpret_cast<const volatile Word*>(at); },
      [](char* at, Word value) { *reinterpret_cast<Word*>(at) = value; });
}

__device__ __forceinline__ void copy_piece(const Piece& piece, bool host_is_source) {
  const Accesses accesses = accesses_of(piece.source, piece.destination, piece.bytes);
  const char* from = reinterpret_cast<const char*>(piece.source);
  char* to = reinterpret_cast<char*>(piece.destination);
  copy_plain<unsigned char>(from, to, accesses.head);
  from += accesses.head;
  to += accesses.head;
  const u64 host = host_is_source ? reinterpret_cast<u64>(from) : reinterpret_cast<u64>(to);
  const u32 skew = static_cast<u32>(host % kLineBytes) / accesses.width;
  switch (accesses.width) {
    case 16:
      copy_words<uint4>(
          from, to, accesses.words, skew, [](const char* at) { return load_16(at); },
          [](char* at, uint4 value) { store_16(at, value); });
      break;
    case 8:
      copy_plain<u64>(from, to, accesses.words, skew);
      break;
    case 4:
      copy_plain<u32>(from, to, accesses.words, skew);
      break;
    case 2:
      copy_plain<unsigned short>(from, to, accesses.words, skew);
      break;
    default:
      copy_plain<unsigned char>(from, to, accesses.words, skew);
  }
  const u64 moved = static_cast<u64>(accesses.words) * accesses.width;
  copy_plain<unsigned char>(from + moved, to + moved, accesses.tail);
}

__device__ __forceinline__ Share share_of_warp(const List& list) {
  return share_of(list.pieces, gridDim.x * kWarps, blockIdx.x * kWarps + threadIdx.x / 32);
}

/// Any size, any alignment: every warp loads and stores its pieces.
__device__ __forceinline__ void copy_lanes(const List& list) {
  const Share share = share_of_warp(list);
  PieceReader reader(list, share);
  for (u32 piece = share.first; piece < share.last; ++piece) copy_piece(reader.at(piece), list.host_is_source != 0);
}

/// Every address and size a multiple of 16: bulk copies into and out of a ring of stages in shared memory, issued by
/// one lane of each warp. Needs sm_90. The bytes have the same place in a stage as in a line of the host side, so that
/// no access over the link is split.
__device__ __forceinline__ void copy_bulk(const List& list) {
#if __CUDA_ARCH__ >= 900
  // A stage is refilled after its store has read it; this many stores can be in flight.
  constexpr u32 kStoring = 2;
  constexpr u32 kAhead = kDepth - kStoring;
  constexpr u32 kStagePitch = kPieceBytes + kLineBytes;
  extern __shared__ __align__(128) char stages[];
  __shared__ u64 barriers[kWarps * kDepth];
  const u32 warp = threadIdx.x / 32;
  const bool issues = threadIdx.x % 32 == 0;
  const u32 ring = static_cast<u32>(__cvta_generic_to_shared(stages)) + warp * kDepth * kStagePitch;
  const u32 barrier = static_cast<u32>(__cvta_generic_to_shared(barriers + warp * kDepth));
  if (issues) {
    for (u32 stage = 0; stage < kDepth; ++stage) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier + stage * 8) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  const Share share = share_of_warp(list);
  const u32 count = share.last - share.first;
  PieceReader loads(list, share);
  // Lane i keeps the place and the destination of stage i until its bytes have arrived.
  u64 waiting_destination = 0;
  u32 waiting_bytes = 0;
  u32 waiting_place = 0;
  for (u32 step = 0; step < count + kAhead; ++step) {
    if (step < count) {
      const u32 stage = step % kDepth;
      const Piece piece = loads.at(share.first + step);
      const u32 phase = static_cast<u32>((list.host_is_source != 0 ? piece.source : piece.destination) % kLineBytes);
      const u32 place = ring + stage * kStagePitch + phase;
      if (threadIdx.x % 32 == stage) {
        waiting_destination = piece.destination;
        waiting_bytes = piece.bytes;
        waiting_place = place;
      }
      if (issues) {
        if (step >= kDepth) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kStoring - 1) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier + stage * 8),
                     "r"(piece.bytes)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(place),
            "l"(piece.source), "r"(piece.bytes), "r"(barrier + stage * 8)
            : "memory");
      }
    }
    if (step >= kAhead) {
      const u32 storing = step - kAhead;
      const u32 stage = storing % kDepth;
      const u64 destination = __shfl_sync(~0u, waiting_destination, stage);
      const u32 bytes = __shfl_sync(~0u, waiting_bytes, stage);
      const u32 stored_place = __shfl_sync(~0u, waiting_place, stage);
      if (issues) {
        const u32 parity = storing / kDepth % 2;
        u32 arrived = 0;
        while (arrived == 0) {
          asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                       : "=r"(arrived)
                       : "r"(barrier + stage * 8), "r"(parity)
                       : "memory");
        }
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination),
                     "r"(stored_place), "r"(bytes)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
      __syncwarp();
    }
  }
  if (issues) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

__device__ __forceinline__ List unpacked(const InlineList& given) {
  List list = given.list;
  list.table = reinterpret_cast<u64>(given.table);
  return list;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kWarps * 32) kvbench_sm_lanes(const __grid_constant__ List list) {
  copy_lanes(list);
}

extern "C" __global__ void __launch_bounds__(kWarps * 32)
    kvbench_sm_lanes_inline(const __grid_constant__ InlineList list) {
  copy_lanes(unpacked(list));
}

extern "C" __global__ void __launch_bounds__(kWarps * 32) kvbench_sm_bulk(const __grid_constant__ List list) {
  copy_bulk(list);
}

extern "C" __global__ void __launch_bounds__(kWarps * 32)
    kvbench_sm_bulk_inline(const __grid_constant__ InlineList list) {
  copy_bulk(unpacked(list));
}
