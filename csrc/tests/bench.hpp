#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>

#include "driver/host.hpp"
#include "driver/resources.hpp"
#include "swap/swap.hpp"

namespace kvbench {

inline constexpr std::size_t kBlock = 512;
inline constexpr std::size_t kBlocks = 64;

/// Two buffers and descriptors that take every block of one, back to front, to the other.
struct Bench {
  explicit Bench(bool with_batch = true)
      : driver(open_host(with_batch)),
        stream(driver),
        source(driver, MemoryKind::allocated, kBlock * kBlocks),
        destination(driver, MemoryKind::device, kBlock * kBlocks) {
    const auto bytes = source.host(kBlock * kBlocks);
    std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(1));
  }

  DescriptorList reversed() const {
    DescriptorList list;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      list.sources.push_back(source.address() + (kBlocks - 1 - i) * kBlock);
      list.destinations.push_back(destination.address() + i * kBlock);
      list.bytes.push_back(kBlock);
    }
    return list;
  }

  DescriptorList ascending() const {
    DescriptorList list = reversed();
    for (std::size_t i = 0; i < kBlocks; ++i) list.sources[i] = source.address() + i * kBlock;
    return list;
  }

  bool arrived(const DescriptorList& list) const {
    for (std::size_t i = 0; i < list.bytes.size(); ++i) {
      if (std::memcmp(reinterpret_cast<const void*>(list.destinations[i]),
                      reinterpret_cast<const void*>(list.sources[i]), list.bytes[i]) != 0) {
        return false;
      }
    }
    return true;
  }

  /// The arrays of a caller, which live as long as the bench.
  DescriptorList& kept(DescriptorList list) { return lists.emplace_back(std::move(list)); }

  std::unique_ptr<Swap> batched(DescriptorList list, BatchOptions options = {}) {
    return make_batched(driver, kept(std::move(list)).view(), Direction::h2d, options);
  }
  std::unique_ptr<Swap> per_block(DescriptorList list) {
    return make_per_block(driver, kept(std::move(list)).view(), Direction::h2d);
  }

  static auto submission(Swap& swap) {
    return [&swap](Stream to) { swap.submit(to); };
  }

  void run(Swap& swap) {
    swap.submit(stream.handle());
    stream.synchronize();
  }

  std::shared_ptr<HostDriver> driver;
  OwnedStream stream;
  Buffer source;
  Buffer destination;
  std::deque<DescriptorList> lists;
};

}  // namespace kvbench
