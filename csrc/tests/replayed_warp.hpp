#pragma once

#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "kernels/bulk_ring.hpp"

namespace kvbench {

/// When the hardware makes a copy: as early as it may, as late as it must, or at any time between.
enum class Pace : std::uint8_t { early, late, random };

/// A warp of 32 lanes on the host, for the ring of bulk copies: mbarriers with a phase and a transaction count, loads
/// that complete in any order, and groups of stores that read their stage late. Misuse is a failed check. Its clock
/// goes on by 10 ns with each look.
class ReplayedWarp {
 public:
  template <typename Value>
  class Lanes {
   public:
    template <typename Function>
    void fill(Function value_of) {
      for (u32 lane = 0; lane < 32; ++lane) values_[lane] = value_of(lane);
    }
    void put(u32 lane, const Value& value) { values_.at(lane) = value; }
    Value get(u32 lane) const { return values_.at(lane); }

   private:
    std::array<Value, 32> values_{};
  };

  ReplayedWarp(u32 stages, u32 pitch, Pace loads, Pace stores, bool host_is_source, u32 seed)
      : barriers_(stages),
        shared_(kRing + std::size_t{stages} * pitch),
        loads_at_(loads),
        stores_at_(stores),
        host_is_source_(host_is_source),
        random_(seed) {}

  bool issues() const { return true; }
  u32 ring() const { return kRing; }
  void meet() const {}
  u64 now_ns() const { return now_ns_ += 10; }

  void expect(u32 stage, u32 bytes) {
    Barrier& barrier = barriers_.at(stage);
    check::that(!barrier.arrived, "a barrier is awaited before it is armed again");
    barrier.arrived = true;
    barrier.bytes += bytes;
    complete(barrier);
  }
  void load(u32 place, u64 source, u32 bytes, u32 stage) {
    check::that(place % 16 == 0 && source % 16 == 0 && bytes % 16 == 0, "a bulk copy is aligned to 16 bytes");
    check::that(place >= kRing && place + bytes <= shared_.size(), "a load stays inside the ring");
    if (host_is_source_) check::equal(place % kLineBytes, source % kLineBytes, "the place in a line of the host");
    loads_ns_.push_back(now_ns_);
    pending_loads_.push_back({source, place, bytes, stage});
    stores_beside_load_ = pending_stores_.size();
    if (now(loads_at_)) finish_loads();
  }
  void wait_until_loaded(u32 stage, u32 parity) {
    Barrier& barrier = barriers_.at(stage);
    // A phase of this parity is complete if the current one has the other parity.
    while (barrier.phase % 2 == parity && !pending_loads_.empty()) finish_load();
    if (barrier.phase % 2 == parity) throw std::runtime_error("the warp waits forever");
  }
  void store(u64 destination, u32 place, u32 bytes) {
    if (!host_is_source_) check::equal(place % kLineBytes, destination % kLineBytes, "the place in a line of the host");
    stores_ns_.push_back(now_ns_);
    pending_stores_.push_back({place, destination, bytes});
    if (now(stores_at_)) finish_stores(0);
  }
  template <u32 kLatest>
  void wait_until_read() {
    finish_stores(kLatest);
  }
  void wait_until_stored() { finish_stores(0); }

  /// The stages are gone: what has not been read or written by now is lost.
  void end() {
    check::that(pending_loads_.empty(), "no load is in flight at the end");
    check::that(pending_stores_.empty(), "every store is awaited");
    for (const Barrier& barrier : barriers_) check::that(!barrier.arrived, "every piece is stored");
  }
  /// When each load and each store was issued.
  const std::vector<u64>& loads_ns() const { return loads_ns_; }
  const std::vector<u64>& stores_ns() const { return stores_ns_; }
  std::size_t most_loads() const { return most_loads_; }
  /// Stores that may still read their stage, while the last load was issued.
  std::size_t stores_beside_load() const { return stores_beside_load_; }

 private:
  static constexpr u32 kRing = 128;  // an address that no miscalculation makes by chance

  struct Barrier {
    u32 phase = 0;
    bool arrived = false;
    std::int64_t bytes = 0;
  };
  struct Load {
    u64 source;
    u32 place;
    u32 bytes;
    u32 stage;
  };
  struct Store {
    u32 place;
    u64 destination;
    u32 bytes;
  };

  bool now(Pace pace) { return pace == Pace::early || (pace == Pace::random && random_() % 2 == 0); }

  static void complete(Barrier& barrier) {
    if (!barrier.arrived || barrier.bytes != 0) return;
    barrier.arrived = false;
    ++barrier.phase;
  }
  void finish_load() {
    most_loads_ = std::max(most_loads_, pending_loads_.size());
    const auto chosen = pending_loads_.begin() + static_cast<std::ptrdiff_t>(random_() % pending_loads_.size());
    const Load load = *chosen;
    pending_loads_.erase(chosen);
    std::memcpy(shared_.data() + load.place, reinterpret_cast<const void*>(load.source), load.bytes);
    barriers_.at(load.stage).bytes -= load.bytes;
    complete(barriers_.at(load.stage));
  }
  void finish_loads() {
    while (!pending_loads_.empty()) finish_load();
  }
  void finish_stores(std::size_t latest) {
    while (pending_stores_.size() > latest) {
      const Store& store = pending_stores_.front();
      check::that(store.place >= kRing && store.place + store.bytes <= shared_.size(), "a store stays inside the ring");
      std::memcpy(reinterpret_cast<void*>(store.destination), shared_.data() + store.place, store.bytes);
      pending_stores_.pop_front();
    }
  }

  std::vector<Barrier> barriers_;
  std::vector<char> shared_;
  Pace loads_at_;
  Pace stores_at_;
  bool host_is_source_;
  std::mt19937 random_;
  std::vector<Load> pending_loads_;
  std::deque<Store> pending_stores_;
  mutable u64 now_ns_ = 0;
  std::vector<u64> loads_ns_, stores_ns_;
  std::size_t most_loads_ = 0;
  std::size_t stores_beside_load_ = 0;
};

}  // namespace kvbench
