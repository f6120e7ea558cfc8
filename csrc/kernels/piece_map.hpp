// The list that the copy kernel reads, its division into pieces, and the division of a piece into accesses. Included by
// the kernel, by the host code that writes the list, and by tests of both.
#pragma once

#include "types.hpp"

namespace kvbench {

/// The maximum size of a list passed with the launch; with its head it fits into the 4 KiB of parameters
/// that every driver supports. A launch copies all parameters of its kernel: shorter lists have kernels of their own.
constexpr u32 kInlineTableBytes = 3968;
constexpr u32 kShortTableBytes = 1024;

/// A line of host memory: accesses over the link within a line are not split.
constexpr u32 kLineBytes = 128;

/// Worker `worker` of `workers` takes pieces [first, last): contiguous shares that differ by at most one piece.
struct Share {
  u32 first;
  u32 last;
};

KVBENCH_BOTH Share share_of(u32 pieces, u32 workers, u32 worker) {
  return {static_cast<u32>(static_cast<u64>(pieces) * worker / workers),
          static_cast<u32>(static_cast<u64>(pieces) * (worker + 1) / workers)};
}

/// Piece `piece` of a list of equal blocks, each divided into pieces of `piece_bytes`: its row and its offset in the
/// block.
struct Part {
  u32 row;
  u64 offset;
  u32 bytes;
};

KVBENCH_BOTH Part part_of(u32 piece, u64 block_bytes, u32 piece_bytes, u32 pieces_a_block) {
  const u32 row = piece / pieces_a_block;
  const u64 offset = static_cast<u64>(piece - row * pieces_a_block) * piece_bytes;
  const u64 left = block_bytes - offset;
  return {row, offset, left < piece_bytes ? static_cast<u32>(left) : piece_bytes};
}

struct Row {
  u64 source;
  u64 destination;
};

constexpr u32 kIdWord = 4;  ///< log2 of the bytes in which ids count

struct Ids {
  u32 source;
  u32 destination;
};

/// A swap as written by the host, in one of three forms; offsets are into the bytes at `table`.
/// Blocks of one size: one Row per block. Mixed sizes (lengths_at > 0): one Row per piece, and their lengths.
/// Where they can, blocks of one size take half of the bytes (ids_at > 0): one Row, and the Ids of the blocks, which
/// count words of 16 bytes from there. A kernel that is held at a rate takes `ps_per_byte` picoseconds a warp for a
/// byte.
struct List {
  u64 table;
  u64 lengths_at;
  u64 ids_at;
  u64 block_bytes;
  u32 pieces;
  u32 pieces_a_block;
  u32 host_is_source;
  u32 ps_per_byte;
};

/// A list short enough to be passed with the launch.
template <u32 kTableBytes>
struct PassedList {
  List list;
  u64 table[kTableBytes / sizeof(u64)];
};
using InlineList = PassedList<kInlineTableBytes>;
using ShortList = PassedList<kShortTableBytes>;
static_assert(sizeof(InlineList) <= 4096, "every driver supports 4 KiB of parameters");

struct Piece {
  u64 source;
  u64 destination;
  u32 bytes;
};

KVBENCH_BOTH Piece read_piece(const List& list, u32 piece, u32 piece_bytes) {
  const Row* rows = reinterpret_cast<const Row*>(list.table);
  if (list.lengths_at > 0) {
    const Row row = rows[piece];
    return {row.source, row.destination, reinterpret_cast<const u32*>(list.table + list.lengths_at)[piece]};
  }
  const Part part = part_of(piece, list.block_bytes, piece_bytes, list.pieces_a_block);
  if (list.ids_at > 0) {
    const Ids ids = reinterpret_cast<const Ids*>(list.table + list.ids_at)[part.row];
    return {rows->source + (static_cast<u64>(ids.source) << kIdWord) + part.offset,
            rows->destination + (static_cast<u64>(ids.destination) << kIdWord) + part.offset, part.bytes};
  }
  const Row row = rows[part.row];
  return {row.source + part.offset, row.destination + part.offset, part.bytes};
}

/// The accesses of a piece: `head` single bytes until both sides are aligned, `words` accesses of `width` bytes, and
/// `tail` single bytes. `width` is the widest power of two up to 16 to which both sides can be aligned at once.
struct Accesses {
  u32 head;
  u32 width;
  u32 words;
  u32 tail;
};

KVBENCH_BOTH Accesses accesses_of(u64 source, u64 destination, u32 bytes) {
  const u64 apart = (source ^ destination) | 16;
  const u32 width = static_cast<u32>(apart & (~apart + 1));
  u32 head = static_cast<u32>(-source & (width - 1));
  if (head > bytes) head = bytes;
  const u32 words = (bytes - head) / width;
  return {head, width, words, bytes - head - words * width};
}

}  // namespace kvbench
