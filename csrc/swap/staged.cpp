#include "swap/staged.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvbench {
namespace {

/// Nothing hides the first gathering, or the last scattering, and each chunk costs the copy engine a pause. The sum is
/// least if a chunk grows with the square root of the swap; the factor is a pause times the rate of the kernel.
std::size_t slot_bytes_for(std::span<const std::size_t> sizes, std::size_t total_bytes) {
  constexpr double kPauseBytes = 1.25e6;
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  constexpr std::size_t kMost = std::size_t{8} << 20;
  const auto best = static_cast<std::size_t>(std::sqrt(kPauseBytes * static_cast<double>(total_bytes)));
  const std::size_t largest = sizes.empty() ? 0 : std::ranges::max(sizes);
  return std::max(largest, std::clamp(best, kLeast, kMost));
}

/// The most chunks that a list of these sizes can have, in any order.
std::size_t most_chunks(std::span<const std::size_t> sizes, std::size_t total_bytes, std::size_t slot_bytes) {
  const std::size_t largest = sizes.empty() ? 0 : std::ranges::max(sizes);
  return 1 + std::min(2 * total_bytes / slot_bytes, total_bytes / (slot_bytes - largest + 1));
}

/// An upper bound of the bytes of a chunk's list: with mixed sizes, it has a row and a length for each piece.
std::size_t list_bytes_for(std::span<const std::size_t> sizes, std::size_t slot_bytes, std::size_t piece_bytes) {
  const std::size_t smallest = sizes.empty() ? 1 : std::max<std::size_t>(1, std::ranges::min(sizes));
  const std::size_t blocks = std::min(sizes.size(), slot_bytes / smallest);
  return (blocks + slot_bytes / piece_bytes) * (2 * sizeof(Address) + sizeof(std::uint32_t));
}

}  // namespace

StagedSwap::StagedSwap(std::shared_ptr<Driver> driver, std::shared_ptr<const SmKernel> kernel, Descriptors descriptors,
                       SmOptions options)
    : driver_(std::move(driver)),
      descriptors_(descriptors),
      direction_(options.direction),
      order_(direction_),
      copying_(driver_),
      mark_(driver_, EventKind::mark),
      copies_(make_batch_copier(driver_, direction_, {})) {
  const std::span sizes = descriptors_.bytes;
  const std::size_t total_bytes = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  slot_bytes_ = slot_bytes_for(sizes, total_bytes);
  for (auto& slot : slots_) slot = std::make_unique<Slot>(driver_, slot_bytes_);
  if (!kernel) {
    kernel_ = make_batch_copier(driver_, direction_, {});
    return;
  }
  // Two swaps can be in flight, as with the kernel alone.
  options.lists = 2 * most_chunks(sizes, total_bytes, slot_bytes_);
  options.list_bytes = list_bytes_for(sizes, slot_bytes_, kernel->shape().piece_bytes);
  kernel_ = make_sm_copier({.aligned = nullptr, .any = std::move(kernel)}, options);
}

StagedSwap::~StagedSwap() {
  try {
    for (const auto& slot : slots_) slot->empty.wait();
    mark_.wait();
  } catch (const DriverError&) {  // nothing runs on a device that is lost
  }
}

void StagedSwap::submit(Stream stream) {
  refuse_legacy_stream(stream);
  const Descriptors list = order_.arrange(descriptors_);
  calls_ = pieces_ = 0;
  if (direction_ == Direction::h2d) {  // copies follow the stream's earlier work
    mark_.record(stream);
    mark_.hold(copying_.handle());
  }
  try {
    for (std::size_t begin = 0; begin < list.size();) begin = submit_chunk(list, begin, stream);
  } catch (...) {
    mark_.record(copying_.handle());
    mark_.hold(stream);
    mark_.record(stream);
    for (const auto& slot : slots_) slot->empty.record(stream);  // what was submitted may still use them
    throw;
  }
  // h2d ends with a kernel on the stream, d2h with a copy.
  if (direction_ == Direction::d2h) slots_[next_]->empty.hold(stream);
  mark_.record(stream);
}

std::size_t StagedSwap::submit_chunk(const Descriptors& list, std::size_t begin, Stream stream) {
  next_ = (next_ + 1) % slots_.size();
  Slot& slot = *slots_[next_];
  const std::size_t end = lay_out(list, begin, slot.buffer.address());
  const bool gathers = direction_ == Direction::d2h;
  const Stream fills = gathers ? stream : copying_.handle();
  const Stream empties = gathers ? copying_.handle() : stream;
  slot.empty.hold(fills);
  gathers ? run_kernel(list, begin, stream) : copy_runs();
  slot.full.record(fills);
  slot.full.hold(empties);
  gathers ? copy_runs() : run_kernel(list, begin, stream);
  slot.empty.record(empties);
  return end;
}

std::size_t StagedSwap::lay_out(const Descriptors& list, std::size_t begin, Address at) {
  const auto host = direction_ == Direction::h2d ? list.sources : list.destinations;
  auto& in_slot = direction_ == Direction::h2d ? runs_.destinations : runs_.sources;
  auto& on_host = direction_ == Direction::h2d ? runs_.sources : runs_.destinations;
  for (auto* addresses : {&staged_, &in_slot, &on_host}) addresses->clear();
  runs_.bytes.clear();
  run_firsts_.clear();
  const Address full = at + slot_bytes_;
  std::size_t end = begin;
  for (; end < list.size() && at + list.bytes[end] <= full; at += list.bytes[end++]) {
    if (end == begin || host[end] != host[end - 1] + list.bytes[end - 1]) {
      in_slot.push_back(at);
      on_host.push_back(host[end]);
      runs_.bytes.push_back(0);
      run_firsts_.push_back(end);
    }
    runs_.bytes.back() += list.bytes[end];
    staged_.push_back(at);
  }
  return end;
}

void StagedSwap::run_kernel(const Descriptors& list, std::size_t begin, Stream stream) {
  const std::size_t count = staged_.size();
  const auto note_time = [&] {
    if (times_) times_->emplace_back(std::make_unique<OwnedEvent>(driver_))->record(stream);
  };
  Descriptors scattered{list.sources.subspan(begin, count), list.destinations.subspan(begin, count),
                        list.bytes.subspan(begin, count)};
  (direction_ == Direction::h2d ? scattered.sources : scattered.destinations) = staged_;
  note_time();
  try {
    kernel_->copy(scattered, stream);
  } catch (const DriverError& error) {
    throw error.descriptor() ? error.at(order_.original(begin + *error.descriptor())) : error;
  }
  note_time();
  calls_ += kernel_->calls();
}

void StagedSwap::copy_runs() {
  try {
    copies_->copy(runs_.view(), copying_.handle());
  } catch (const DriverError& error) {
    throw error.descriptor() ? error.at(order_.original(run_firsts_[*error.descriptor()])) : error;
  }
  calls_ += copies_->calls();
  pieces_ += runs_.bytes.size();
}

double StagedSwap::kernel_us(Stream stream) {
  std::vector<std::unique_ptr<OwnedEvent>> times;
  times_ = &times;
  try {
    submit(stream);
  } catch (...) {
    times_ = nullptr;
    throw;
  }
  times_ = nullptr;
  driver_->synchronize(stream);
  double total_us = 0;
  for (std::size_t i = 0; i + 1 < times.size(); i += 2) total_us += times[i + 1]->us_since(*times[i]);
  return total_us;
}

}  // namespace kvbench
