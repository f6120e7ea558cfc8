// When the pieces of a copy that is held at a rate may move. Stores that saturate the link stop everything else on the
// GPU; the same stores, spaced evenly over time below that, cost it little.
#pragma once

#include "types.hpp"

namespace kvbench {

/// Gives the pieces of a warp their slots: each as long as its bytes take at the warp's rate, one after the other.
///
///   on time    |piece 0 |piece 1 |piece 2 |piece 3 |
///   late       |piece 0 |    piece 1|piece 2|piece 3|      a late warp makes up a part of each slot, and no more
///
/// What is later than `kMostBehind` slots is given up, so that a warp never runs a long way above its rate.
class Pacer {
 public:
  static constexpr u32 kMostBehind = 8;

  /// A late piece follows the one before after 1 - 1/`made_up` of its slot. The warp takes `ps_per_byte` picoseconds
  /// for each of its bytes. Of `warps`, it is number `rank` in the order of their slots: its first one begins that much
  /// of a slot of `piece_bytes` after `now_ns`.
  KVBENCH_BOTH Pacer(u32 ps_per_byte, u32 piece_bytes, u32 rank, u32 warps, u32 made_up, u64 now_ns)
      : begin_ns_(now_ns), ps_per_byte_(ps_per_byte), made_up_(made_up), due_(slot_of(piece_bytes) * rank / warps) {}

  /// Waits for the slot of the next piece.
  template <typename Clock>
  KVBENCH_BOTH void wait(const Clock& clock, u32 bytes) {
    const u64 slot = slot_of(bytes);
    u64 now = passed(clock);
    if (now > due_ + kMostBehind * slot) due_ = now - kMostBehind * slot;
    const u64 begin = due_ > soonest_ ? due_ : soonest_;
    soonest_ = (begin > now ? begin : now) + slot - slot / made_up_;
    due_ += slot;
    while (now < begin) now = passed(clock);
  }

 private:
  KVBENCH_BOTH u64 slot_of(u32 bytes) const { return static_cast<u64>(bytes) * ps_per_byte_; }
  template <typename Clock>
  KVBENCH_BOTH u64 passed(const Clock& clock) const {
    const u64 now_ns = clock.now_ns();
    return now_ns > begin_ns_ ? (now_ns - begin_ns_) * 1000 : 0;  // a clock that steps back makes no one wait for ever
  }

  u64 begin_ns_;
  u32 ps_per_byte_;
  u32 made_up_;
  u64 due_;  ///< picoseconds after the begin, as all times here
  u64 soonest_ = 0;
};

/// The slots of a copy that is held at no rate.
struct NoPacer {
  template <typename Clock>
  KVBENCH_BOTH void wait(const Clock&, u32) const {}
};

}  // namespace kvbench
