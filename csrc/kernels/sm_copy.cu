// Copies the blocks of a swap with a few SMs. Warps take contiguous shares of the pieces. The descriptors of the next
// 32 pieces are read while the bytes of the current ones move, so that the list can be in pinned host memory.
//
// One kernel shape per compilation: the method KVBENCH_METHOD (lanes, words or bulk), KVBENCH_WARPS warps per thread
// block, each with KVBENCH_DEPTH stages (bulk) or loads per lane (lanes, words) in flight, and pieces of
// KVBENCH_PIECE_BYTES. With KVBENCH_PACED the kernel is held at the rate that its list names.
#include "bulk_ring.hpp"

#ifndef KVBENCH_METHOD
#define KVBENCH_METHOD lanes
#define KVBENCH_WARPS 8
#define KVBENCH_DEPTH 6
#define KVBENCH_PIECE_BYTES 4096
#endif
#ifndef KVBENCH_PACED
#define KVBENCH_PACED 0
#endif

using namespace kvbench;

namespace {

constexpr u32 kWarps = KVBENCH_WARPS;
constexpr u32 kDepth = KVBENCH_DEPTH;
constexpr u32 kPieceBytes = KVBENCH_PIECE_BYTES;

__device__ __forceinline__ Piece shuffled(const Piece& piece, u32 lane) {
  return {__shfl_sync(~0u, piece.source, lane), __shfl_sync(~0u, piece.destination, lane),
          __shfl_sync(~0u, piece.bytes, lane)};
}
__device__ __forceinline__ Waiting shuffled(const Waiting& piece, u32 lane) {
  return {__shfl_sync(~0u, piece.destination, lane), __shfl_sync(~0u, piece.bytes, lane),
          __shfl_sync(~0u, piece.place, lane)};
}

/// The GPU's clock, which counts nanoseconds at any frequency of its SMs.
struct GlobalTimer {
  __device__ u64 now_ns() const {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
};

/// The same, alike for all lanes of a warp.
struct WarpTimer {
  __device__ u64 now_ns() const { return __shfl_sync(~0u, GlobalTimer().now_ns(), 0); }
};

// Which part of a slot late pieces make up. A ring has the bytes of the next slots already. Lanes wait for those of
// kDepth rows, and then are late for all of them.
constexpr u32 kMadeUpByRing = 8;
constexpr u32 kMadeUpByLanes = 2;

#if KVBENCH_PACED
/// The slots of this warp, whose pieces are `piece_bytes` each. Those of one thread block are spread among all.
__device__ __forceinline__ Pacer pacer_of(const List& list, u32 piece_bytes, u32 made_up) {
  const u32 rank = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  return {list.ps_per_byte, piece_bytes, rank, gridDim.x * kWarps, made_up, GlobalTimer().now_ns()};
}
#else
__device__ __forceinline__ NoPacer pacer_of(const List&, u32, u32) { return {}; }
#endif

/// This warp of the GPU: a value a lane, and its ring with a barrier for every stage.
class Warp {
 public:
  template <typename Value>
  class Lanes {
   public:
    template <typename Function>
    __device__ void fill(Function value_of) {
      value_ = value_of(threadIdx.x % 32);
    }
    __device__ void put(u32 lane, const Value& value) {
      if (threadIdx.x % 32 == lane) value_ = value;
    }
    __device__ Value get(u32 lane) const { return shuffled(value_, lane); }

   private:
    Value value_{};
  };

  /// `ring` and `barriers` are addresses in shared memory.
  __device__ Warp(u32 ring, u32 barriers) : ring_(ring), barriers_(barriers) {}

  __device__ bool issues() const { return threadIdx.x % 32 == 0; }
  __device__ u32 ring() const { return ring_; }
  __device__ void meet() const { __syncwarp(); }
  __device__ u64 now_ns() const { return GlobalTimer().now_ns(); }

#if __CUDA_ARCH__ >= 900
  __device__ void make_barriers(u32 count) const {
    for (u32 stage = 0; stage < count; ++stage) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(stage)) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ void expect(u32 stage, u32 bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier(stage)), "r"(bytes) : "memory");
  }
  __device__ void load(u32 place, u64 source, u32 bytes, u32 stage) const {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(place),
                 "l"(source), "r"(bytes), "r"(barrier(stage))
                 : "memory");
  }
  __device__ void wait_until_loaded(u32 stage, u32 parity) const {
    u32 arrived = 0;
    while (arrived == 0) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(arrived)
                   : "r"(barrier(stage)), "r"(parity)
                   : "memory");
    }
  }
  __device__ void store(u64 destination, u32 place, u32 bytes) const {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(place),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  template <u32 kLatest>
  __device__ void wait_until_read() const {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLatest) : "memory");
  }
  __device__ void wait_until_stored() const { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
#endif

 private:
  __device__ u32 barrier(u32 stage) const { return barriers_ + stage * 8; }

  u32 ring_;
  u32 barriers_;
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

/// Not inlined: a kernel for any alignment has more than a hundred of these.
__device__ __noinline__ void wait_for_slot(Pacer& pacer, u32 bytes) { pacer.wait(WarpTimer(), bytes); }
__device__ __forceinline__ void wait_for_slot(const NoPacer&, u32) {}

/// Which side of a copy is the host's, and when what crosses the link may do so.
template <typename SomePacer>
struct Link {
  /// Waits for the slot of the words [first, last), as far as they are among [skew, end).
  template <typename Word>
  __device__ void wait(u32 first, u32 last, u32 skew, u32 end) {
    if (first < skew) first = skew;
    if (last > end) last = end;
    if (first < last) wait_for_slot(pacer, (last - first) * sizeof(Word));
  }

  bool host_is_source;
  SomePacer pacer;
};

/// Copies words [0, words) with a whole warp; every lane issues kDepth loads before its first store. Lanes begin `skew`
/// words early, so that the accesses of a warp are aligned to lines of the host side.
template <typename Word, typename SomeLink, typename Load, typename Store>
__device__ __forceinline__ void move_words(const char* from, char* to, u32 words, u32 skew, SomeLink& link, Load load,
                                           Store store) {
  const u32 end = words + skew;
  for (u32 done = 0; done < end; done += 32 * kDepth) {
    Word held[kDepth];
    // Loads together: between two of them a call would wait for the first.
    if (link.host_is_source) link.template wait<Word>(done, done + 32 * kDepth, skew, end);
#pragma unroll
    for (u32 i = 0; i < kDepth; ++i) {
      const u32 at = done + 32 * i + threadIdx.x % 32;
      if (at >= skew && at < end) held[i] = load(from + static_cast<u64>(at - skew) * sizeof(Word));
    }
#pragma unroll
    for (u32 i = 0; i < kDepth; ++i) {
      const u32 at = done + 32 * i + threadIdx.x % 32;
      if (!link.host_is_source) link.template wait<Word>(done + 32 * i, done + 32 * (i + 1), skew, end);
      if (at >= skew && at < end) store(to + static_cast<u64>(at - skew) * sizeof(Word), held[i]);
    }
  }
}

template <typename Word, typename SomeLink>
__device__ __forceinline__ void copy_plain(SomeLink& link, const char* from, char* to, u32 words, u32 skew = 0) {
  move_words<Word>(
      from, to, words, skew, link, [](const char* at) { return *reinterpret_cast<const volatile Word*>(at); },
      [](char* at, Word value) { *reinterpret_cast<Word*>(at) = value; });
}

/// Every address and size a multiple of 16.
template <typename SomeLink>
__device__ __forceinline__ void copy_wide(SomeLink& link, const char* from, char* to, u32 words, u32 skew) {
  move_words<uint4>(
      from, to, words, skew, link, [](const char* at) { return load_16(at); },
      [](char* at, uint4 value) { store_16(at, value); });
}

/// The words of a piece by which lanes begin early; see move_words.
__device__ __forceinline__ u32 skew_of(u64 source, u64 destination, bool host_is_source, u32 width) {
  return static_cast<u32>((host_is_source ? source : destination) % kLineBytes) / width;
}

template <typename SomeLink>
__device__ __forceinline__ void copy_piece(SomeLink& link, const Piece& piece) {
  const Accesses accesses = accesses_of(piece.source, piece.destination, piece.bytes);
  const char* from = reinterpret_cast<const char*>(piece.source);
  char* to = reinterpret_cast<char*>(piece.destination);
  copy_plain<unsigned char>(link, from, to, accesses.head);
  from += accesses.head;
  to += accesses.head;
  const u32 skew = skew_of(reinterpret_cast<u64>(from), reinterpret_cast<u64>(to), link.host_is_source, accesses.width);
  switch (accesses.width) {
    case 16:
      copy_wide(link, from, to, accesses.words, skew);
      break;
    case 8:
      copy_plain<u64>(link, from, to, accesses.words, skew);
      break;
    case 4:
      copy_plain<u32>(link, from, to, accesses.words, skew);
      break;
    case 2:
      copy_plain<unsigned short>(link, from, to, accesses.words, skew);
      break;
    default:
      copy_plain<unsigned char>(link, from, to, accesses.words, skew);
  }
  const u64 moved = static_cast<u64>(accesses.words) * accesses.width;
  copy_plain<unsigned char>(link, from + moved, to + moved, accesses.tail);
}

__device__ __forceinline__ Share share_of_warp(const List& list) {
  return share_of(list.pieces, gridDim.x * kWarps, blockIdx.x * kWarps + threadIdx.x / 32);
}

/// Any size, any alignment: every warp loads and stores its pieces.
__device__ __forceinline__ void copy_lanes(const List& list) {
  const Share share = share_of_warp(list);
  PieceReader<Warp> reader(list, share, kPieceBytes);
  Link<decltype(pacer_of(list, 0, 0))> link{list.host_is_source != 0,
                                            pacer_of(list, 32 * sizeof(uint4), kMadeUpByLanes)};
  for (u32 piece = share.first; piece < share.last; ++piece) copy_piece(link, reader.at(piece));
}

/// Every address and size a multiple of 16, for few blocks: one loop, and warps that take every n-th piece. An idle GPU
/// fetches each instruction again, and more of them take longer than to copy few blocks.
__device__ __forceinline__ void copy_words(const List& list) {
  Link<NoPacer> link{list.host_is_source != 0, {}};
  for (u32 i = threadIdx.x / 32 * gridDim.x + blockIdx.x; i < list.pieces; i += gridDim.x * kWarps) {
    const Piece piece = read_piece(list, i, kPieceBytes);
    copy_wide(link, reinterpret_cast<const char*>(piece.source), reinterpret_cast<char*>(piece.destination),
              piece.bytes / sizeof(uint4),
              skew_of(piece.source, piece.destination, link.host_is_source, sizeof(uint4)));
  }
}

/// Every address and size a multiple of 16: bulk copies into and out of shared memory. Needs sm_90.
__device__ __forceinline__ void copy_bulk(const List& list) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char stages[];
  __shared__ u64 barriers[kWarps * kDepth];
  const u32 first = threadIdx.x / 32 * kDepth;  // stage of this warp
  const Warp warp(static_cast<u32>(__cvta_generic_to_shared(stages)) + first * stage_pitch(kPieceBytes),
                  static_cast<u32>(__cvta_generic_to_shared(barriers + first)));
  if (warp.issues()) warp.make_barriers(kDepth);
  copy_through_ring<kDepth, kPieceBytes>(warp, list, share_of_warp(list), pacer_of(list, kPieceBytes, kMadeUpByRing));
#endif
}

template <u32 kTableBytes>
__device__ __forceinline__ List unpacked(const PassedList<kTableBytes>& given) {
  List list = given.list;
  list.table = reinterpret_cast<u64>(given.table);
  return list;
}

}  // namespace

#define KVBENCH_JOINED(left, right) left##right
#define KVBENCH_NAME(left, right) KVBENCH_JOINED(left, right)
#define KVBENCH_COPY KVBENCH_NAME(copy_, KVBENCH_METHOD)
#define KVBENCH_KERNEL(suffix)                              \
  extern "C" __global__ void __launch_bounds__(kWarps * 32) \
      KVBENCH_NAME(KVBENCH_NAME(kvbench_sm_, KVBENCH_METHOD), suffix)

KVBENCH_KERNEL()(const __grid_constant__ List list) { KVBENCH_COPY(list); }
KVBENCH_KERNEL(_inline)(const __grid_constant__ InlineList given) { KVBENCH_COPY(unpacked(given)); }
KVBENCH_KERNEL(_short)(const __grid_constant__ ShortList given) { KVBENCH_COPY(unpacked(given)); }
