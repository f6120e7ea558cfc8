#include "swap/block_listing.hpp"

#include <algorithm>
#include <limits>

#include "swap/pack_ids.hpp"
#include "swap/sm_copy.hpp"

namespace kvbench {
namespace {

std::size_t pieces_of(std::size_t bytes, std::size_t piece_bytes) { return (bytes + piece_bytes - 1) / piece_bytes; }

u32 checked_pieces(std::size_t pieces) {
  if (pieces > std::numeric_limits<u32>::max()) throw DriverError("sm_copy", "2^32 pieces or more");
  return static_cast<u32>(pieces);
}

}  // namespace

BlockListing::BlockListing(Descriptors descriptors, std::size_t piece_bytes, Direction direction)
    : descriptors_(descriptors), piece_bytes_(piece_bytes) {
  head_.pieces_a_block = 1;
  head_.host_is_source = direction == Direction::h2d ? 1 : 0;
  BlockSizes& sizes = descriptors_.sizes;
  if (!sizes.read) sizes = BlockSizes(descriptors.bytes);
  if (sizes.equal()) {
    head_.block_bytes = sizes.first;
    rows_ = sizes.first == 0 ? 0 : descriptors_.size();
    return;
  }
  for (const std::size_t bytes : descriptors_.bytes) rows_ += pieces_of(bytes, piece_bytes_);
  head_.pieces = checked_pieces(rows_);
  head_.lengths_at = rows_ * sizeof(Row);
}

List BlockListing::head(std::size_t piece_bytes) const {
  List head = head_;
  if (!descriptors_.sizes.equal()) return head;
  const std::size_t pieces_a_block = pieces_of(descriptors_.sizes.first, piece_bytes);
  head.pieces = checked_pieces(rows_ * pieces_a_block);
  head.pieces_a_block = static_cast<u32>(pieces_a_block);
  return head;
}

Address BlockListing::write(void* table) const {
  auto* row = static_cast<Row*>(table);
  Address bits = descriptors_.sizes.first | descriptors_.sizes.differing;
  if (descriptors_.sizes.equal()) {
    for (std::size_t i = 0; i < descriptors_.size(); ++i) {
      bits |= descriptors_.sources[i] | descriptors_.destinations[i];
      row[i] = {descriptors_.sources[i], descriptors_.destinations[i]};
    }
    if (descriptors_.route) descriptors_.route->check(descriptors_);
    return bits;
  }
  auto* length = reinterpret_cast<u32*>(row + rows_);
  for (std::size_t i = 0; i < descriptors_.size(); ++i) {
    bits |= descriptors_.sources[i] | descriptors_.destinations[i];
    for (std::size_t at = 0; at < descriptors_.bytes[i]; at += piece_bytes_) {
      *row++ = {descriptors_.sources[i] + at, descriptors_.destinations[i] + at};
      *length++ = static_cast<u32>(std::min(piece_bytes_, descriptors_.bytes[i] - at));
    }
  }
  return bits;
}

std::size_t BlockListing::packed_bytes() const {
  if (rows_ == 0 || !descriptors_.sizes.equal()) return 0;
  const Address bits = descriptors_.sizes.first | descriptors_.sources[0] | descriptors_.destinations[0];
  return bits % SmKernels::kAlignment == 0 ? sizeof(Row) + rows_ * sizeof(Ids) : 0;
}

bool BlockListing::pack(void* table, List& head) const {
  const Address source = descriptors_.sources.front(), destination = descriptors_.destinations.front();
  if (descriptors_.route) {
    // Most lists have one region or pool of slots on each side, whose check then is a part of packing.
    const Ends& ends = descriptors_.route->ends();
    const bool in_one =
        ends.hold(descriptors_.sources.back(), descriptors_.destinations.back(), descriptors_.sizes.first);
    const bool reached = std::max(ends.from.span().bytes, ends.to.span().bytes) <= kReach;
    if (in_one && reached && pack_within(ends, nullptr, table, head)) return true;
  }
  const auto around = [](Address first) { return PooledRegion{{.begin = first - kReach / 2, .bytes = kReach}}; };
  return pack_within({around(source), around(destination)}, descriptors_.route, table, head);
}

bool BlockListing::pack_within(const Ends& ends, Route* route, void* table, List& head) const {
  auto* ids = reinterpret_cast<Ids*>(static_cast<Row*>(table) + 1);
  const EntryBits packed = pack_ids(descriptors_, ends, ids);
  if (packed.offsets % SmKernels::kAlignment != 0 || packed.left >> 63 != 0) return false;
  if (route) route->check(descriptors_);
  *static_cast<Row*>(table) = {ends.from.span().begin, ends.to.span().begin};
  head.ids_at = sizeof(Row);
  return true;
}

}  // namespace kvbench
