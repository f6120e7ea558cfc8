#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "swap/sm_copy.hpp"
#include "swap/staged.hpp"
#include "swap/swap.hpp"

namespace kvbench {

/// One way to copy: by kernel if `sms` is not 0, otherwise by single copies if `one_by_one`, otherwise by batched calls
/// with `batch`, whose access order comes with each list. `aligned` takes lists whose addresses and sizes are multiples
/// of 16, `any` every list; `aligned` may be null. If `staged`, the kernel and large copies through pages on the
/// device, and the way `otherwise` for lists that are not in pages on the host.
struct CopyWay {
  unsigned sms = 0;
  bool one_by_one = false;
  std::shared_ptr<const SmKernel> aligned;
  std::shared_ptr<const SmKernel> any;
  std::size_t inline_up_to = 0;
  double pace_gbps = 0;  ///< the rate at which the kernel is held; 0: none
  BatchOptions batch;
  bool staged = false;
  std::size_t otherwise = 0;
};

/// Which way serves which lists in one direction, on an idle stream or behind pending work (of small lists, the former
/// serves both, as to ask the stream takes longer than it gains), and for what a swap runs `beside`: `ways` has a row
/// of count_limits.size() + 1 ways for each of size_limits.size() + 1 ranges of block sizes. A limit is the largest
/// mean block size, or number of blocks, of its range; limits ascend.
struct CopyTable {
  Direction direction = Direction::h2d;
  bool pending = false;
  std::vector<double> size_limits;
  std::vector<double> count_limits;
  std::vector<std::size_t> ways;
  std::size_t beside = 0;  ///< 0: what serves where a call does not say
};

/// Copies lists of blocks between pinned host memory and its device, each in the way that a table names. A call changes
/// nothing of its thread. Lists on different streams are ordered by their streams alone. Remembers where the blocks of
/// its lists lie: it must forget() when this memory was freed.
class BlockCopier final : public ListCopier {
 public:
  /// Address and bytes of memory for which a caller vouches that it may be copied in one piece, however registered.
  using Pool = std::pair<Address, std::size_t>;

  /// Makes room for lists of `max_entries` entries of one size; 0: when they come. Takes each of `pools` for one
  /// region, until forget(). Throws std::invalid_argument for tables that name ways which are not there, or that have
  /// no row for a direction, and for pools that begin or end in other memory.
  BlockCopier(std::shared_ptr<Driver> driver, std::vector<CopyWay> ways, std::vector<CopyTable> tables,
              std::size_t max_entries = 0, std::span<const Pool> pools = {});

  /// Submits one list to `stream` and returns without waiting; its arrays may change as soon as it returns. Entries of
  /// 0 bytes copy nothing; where destinations overlap, each byte is one of those that go there. Throws, with nothing
  /// submitted, InvalidEntry for the first entry that has a negative size, or if none has, that does not lie wholly in
  /// a region of pinned memory and one of the device, in the direction of the list; std::invalid_argument for no
  /// stream; std::runtime_error while another thread is in a call; DriverError for a stream that is captured, and after
  /// a fork. Throws DriverError also where the driver fails.
  bool copy(const Descriptors& descriptors, Stream stream) override;
  /// The index of the way of a list, by whether its stream is idle. Throws std::invalid_argument without a table.
  [[nodiscard]] std::size_t way_of(std::size_t count, std::size_t total_bytes, Direction direction, bool idle,
                                   std::size_t beside = 0) const;
  /// Whether there are tables for swaps beside something.
  [[nodiscard]] bool serves(std::size_t beside) const {
    return beside < tables_.size() && !tables_[beside][0].ways.empty();
  }
  /// The lists so far that went the way `otherwise` of one that is staged.
  [[nodiscard]] std::size_t not_staged() const { return not_staged_; }
  /// Forgets where blocks lie, after memory was freed, and what its caller vouched for.
  void forget();
  [[nodiscard]] std::size_t calls() const override { return last_ ? last_->calls() : 0; }
  [[nodiscard]] std::size_t descriptors() const override { return last_ ? last_->descriptors() : 0; }

 private:
  static constexpr std::size_t kCombinations = 4;
  static constexpr std::size_t kMostBeside = 8;
  /// The index of what there is for each direction twice, with and without something.
  [[nodiscard]] static constexpr std::size_t index_of(Direction direction, bool flag) {
    return (direction == Direction::d2h ? 2U : 0U) + (flag ? 1U : 0U);
  }

  using Tables = std::array<CopyTable, kCombinations>;  ///< by direction and whether work is pending

  struct Candidates {
    std::size_t when_idle;
    std::size_t when_busy;
  };

  void complete(Tables& tables, std::size_t max_entries);
  /// The ways of a list on an idle stream, and behind pending work.
  [[nodiscard]] Candidates ways_of(std::size_t count, std::size_t total_bytes, Direction direction,
                                   std::size_t beside) const;
  /// Submits a list whose sizes were read.
  void submit(const Descriptors& list, Stream stream);
  /// The same for a list with entries of no bytes, whose others it names by their indexes there.
  void submit_filled(const Descriptors& descriptors, Stream stream);
  bool copy_by(std::size_t way, Descriptors list, Stream stream, Direction direction);
  [[nodiscard]] ListCopier& copier(std::size_t way_at, Direction direction, bool any);

  std::shared_ptr<Driver> driver_;
  std::vector<CopyWay> ways_;
  std::vector<Tables> tables_;                        ///< by what a swap runs beside
  std::vector<std::unique_ptr<ListCopier>> copiers_;  ///< for each way by direction and access order
  Route route_;
  std::shared_ptr<ListSlots> slots_;  ///< for the lists of all ways
  std::shared_ptr<StagingRings> rings_;
  std::atomic<std::size_t> not_staged_ = 0;
  DescriptorList filled_;             ///< the entries that have bytes
  std::vector<std::size_t> indices_;  ///< theirs in the caller's list
  const ListCopier* last_ = nullptr;  ///< what copied the last list
  std::atomic_flag in_use_;
  unsigned forks_;  ///< of the process, when the copier was made
};

}  // namespace kvbench
