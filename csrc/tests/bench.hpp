#pragma once

#include <cstring>
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
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (std::memcmp(reinterpret_cast<const void*>(list.destinations[i]),
                      reinterpret_cast<const void*>(list.sources[i]), list.bytes[i]) != 0) {
        return false;
      }
    }
    return true;
  }

  std::unique_ptr<Swap> batched(DescriptorList list, BatchOptions options = {}) {
    auto swap = make_batched(driver, std::move(list), Direction::h2d, options);
    swap->prepare();
    return swap;
  }

  void run(Swap& swap) {
    swap.prepare();
    swap.submit(stream.handle());
    stream.synchronize();
  }

  std::shared_ptr<HostDriver> driver;
  OwnedStream stream;
  Buffer source;
  Buffer destination;
};

}  // namespace kvbench
