#include "swap/gather.hpp"

#include <array>
#include <stdexcept>

namespace kvbench {
namespace {

constexpr unsigned kThreads = 1024;

std::size_t table_bytes(std::size_t rows) {
  if (rows == 0 || rows > ~u32{0}) throw std::invalid_argument("a gather needs 1 to 2^32 - 1 rows");
  return rows * sizeof(RowIds);
}

}  // namespace

GatherSwap::GatherSwap(const GatherKernel& kernel, std::span<const Address> sources,
                       std::span<const Address> destinations, unsigned ctas)
    : driver_(kernel.driver),
      sources_(sources),
      destinations_(destinations),
      row_bytes_(kernel.row_bytes),
      stream_(driver_),
      staged_(driver_, MemoryKind::allocated, table_bytes(sources.size())),
      ids_(driver_, MemoryKind::device, table_bytes(sources.size())),
      source_base_(sources.front() % row_bytes_),
      destination_base_(destinations.front() % row_bytes_) {
  Address ids = ids_.device_address();
  auto rows = static_cast<u32>(sources.size());
  std::array<void*, 4> arguments{&source_base_, &destination_base_, &ids, &rows};
  const CurrentDevice current(*driver_);
  driver_->begin_capture(stream_.handle());
  driver_->launch(kernel.loaded, {.blocks = ctas, .threads = kThreads}, arguments.data(), stream_.handle());
  graph_ = driver_->end_capture_into_graph(stream_.handle());
}

GatherSwap::~GatherSwap() { driver_->destroy_graph(graph_); }

void GatherSwap::stage() {
  auto* ids = reinterpret_cast<RowIds*>(staged_.address());
  for (std::size_t row = 0; row < sources_.size(); ++row) {
    if (sources_[row] % row_bytes_ != source_base_ || destinations_[row] % row_bytes_ != destination_base_) {
      throw std::invalid_argument("the rows of a gather must lie whole rows apart");
    }
    ids[row] = {sources_[row] / row_bytes_, destinations_[row] / row_bytes_};
  }
  driver_->transfer(ids_.address(), staged_.address(), staged_.bytes(), Direction::h2d, stream_.handle());
  stream_.synchronize();
}

void GatherSwap::submit(Stream stream) {
  refuse_legacy_stream(stream);
  driver_->launch_graph(graph_, stream);
}

}  // namespace kvbench
