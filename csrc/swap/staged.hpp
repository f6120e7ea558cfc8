#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "driver/resources.hpp"
#include "swap/sm_copy.hpp"
#include "swap/swap.hpp"

namespace kvbench {

/// The largest part of a swap that one launch gathers or scatters. With smaller ones the copy engine waits too often
/// for SMs beside other work: d2h beside decode and beside a prefill layer of 2 048 tokens 42 and 24 GB/s with 1 MiB,
/// 48 and 31 with 2 MiB, 49 and 38 with 4 MiB, 48 and 43 with 8 MiB (H200, driver 580, blocks of 16 KiB, 4 SMs). A
/// first page that is smaller, to start the copy engine earlier, lost more than it gained.
inline constexpr std::size_t kStagedPageBytes = std::size_t{4} << 20;
/// What a list's blocks must have in common on the host, in the mean, for its copies to be large.
inline constexpr std::size_t kLeastRunBytes = std::size_t{256} << 10;

/// Buffers on the device for the pages of a list, and the stream of the kernels that fill or empty them. Its priority
/// is high: a launch then takes the next SMs that are free, and beside a prefill layer takes 0.4 ms a GB from it in
/// place of 0.7 (d2h, as above). One list after the other goes through the ring: those of one stream follow each other,
/// another stream gets it when it is idle.
class StagingRing {
 public:
  struct Page {
    Page(const std::shared_ptr<Driver>& driver, Address begins)
        : address(begins), full(driver, EventKind::mark), empty(driver, EventKind::mark) {}

    Address address;
    OwnedEvent full;
    OwnedEvent empty;
  };

  explicit StagingRing(const std::shared_ptr<Driver>& driver);

  /// Whether a list on `stream` can go through it.
  [[nodiscard]] bool serves(Stream stream) const { return !open_ && (stream == stream_ || end_.completed()); }
  /// Begins a list on `stream`: kernels follow the earlier work there. Until the list has ended, no other one begins.
  void begin(Stream stream);
  /// Ends it: later work on its stream follows the kernels.
  void end();
  Page& next_page() { return *pages_[next_++ % pages_.size()]; }
  [[nodiscard]] Stream kernels() const { return kernels_.handle(); }

 private:
  static constexpr std::size_t kPages = 4;

  Buffer buffer_;
  OwnedStream kernels_;
  std::array<std::unique_ptr<Page>, kPages> pages_;
  std::size_t next_ = 0;
  OwnedEvent begin_;
  OwnedEvent kernels_end_;
  OwnedEvent end_;
  Stream stream_ = 0;
  bool open_ = false;
};

/// The rings of a copier, made when lists on further streams need them; left to the next copier by Spare.
class StagingRings {
 public:
  /// The most rings. A caller that opens the gate which holds a list must not wait for a ring: there is none then.
  static constexpr std::size_t kMost = 8;

  explicit StagingRings(std::shared_ptr<Driver> driver) : driver_(std::move(driver)) {}

  [[nodiscard]] const std::shared_ptr<Driver>& driver() const { return driver_; }
  [[nodiscard]] bool empty() const { return rings_.empty(); }

  /// Makes the first ring.
  void reserve();
  /// A ring for a list on `stream`; null: all are in flight on other streams.
  StagingRing* take(Stream stream);

 private:
  std::shared_ptr<Driver> driver_;
  std::vector<std::unique_ptr<StagingRing>> rings_;
};

/// Copies lists through pages on the device, for blocks that lie together on the host and apart on the device. d2h: a
/// launch gathers a page, in the order of the host's addresses, and a large copy for each run of the host moves it; h2d
/// the reverse. Copies are on the stream of the list, launches on that of a ring: while a page is copied the next ones
/// are gathered, or those before it scattered. copy() returns false, with nothing submitted, for a list whose blocks
/// lie in shorter runs on the host, for one with a larger block than a page, and if no ring is free.
std::unique_ptr<ListCopier> make_staged_copier(SmKernels kernels, SmOptions options, std::shared_ptr<ListSlots> slots,
                                               std::shared_ptr<StagingRings> rings);

/// One list that is kept; with slots and rings that no other copier has meanwhile.
std::unique_ptr<Swap> make_staged(SmKernels kernels, Descriptors descriptors, SmOptions options);

}  // namespace kvbench
