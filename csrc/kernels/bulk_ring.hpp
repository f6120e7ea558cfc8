// How a warp reads the list of its pieces, and how it passes their bytes through a ring of stages in shared memory.
// `Warp` is a warp of the GPU (sm_copy.cu) or its replay on the host (tests/replayed_warp.hpp).
#pragma once

#include "pacer.hpp"
#include "piece_map.hpp"

namespace kvbench {

/// Gives a warp its pieces in order; every lane holds one of the current 32 pieces and one of the next 32.
template <typename Warp>
class PieceReader {
 public:
  KVBENCH_BOTH PieceReader(const List& list, Share share, u32 piece_bytes)
      : list_(list), share_(share), piece_bytes_(piece_bytes) {
    fetch(share.first);
    advance(share.first);
  }

  /// Returns piece `piece` to all lanes; pieces must be requested in ascending order.
  KVBENCH_BOTH Piece at(u32 piece) {
    const u32 place = (piece - share_.first) % 32;
    if (place == 0 && piece != share_.first) advance(piece);
    return current_.get(place);
  }

 private:
  KVBENCH_BOTH void fetch(u32 first) {
    next_.fill([this, first](u32 lane) {
      const u32 piece = first + lane;
      return piece < share_.last ? read_piece(list_, piece, piece_bytes_) : Piece{0, 0, 0};
    });
  }
  KVBENCH_BOTH void advance(u32 first) {
    current_ = next_;
    fetch(first + 32);
  }

  const List& list_;
  Share share_;
  u32 piece_bytes_;
  typename Warp::template Lanes<Piece> current_;
  typename Warp::template Lanes<Piece> next_;
};

/// A piece between its load and its store: the place of its bytes in shared memory, and where they go.
struct Waiting {
  u64 destination;
  u32 bytes;
  u32 place;
};

/// The distance of two stages. The bytes have the same place in a stage as in a line of the host side, so that no
/// access over the link is split.
KVBENCH_BOTH constexpr u32 stage_pitch(u32 piece_bytes) { return piece_bytes + kLineBytes; }

/// Copies a share of the pieces through a ring of `kDepth` stages. Every address and size is a multiple of 16. One lane
/// issues the copies; the hardware makes them. At step 8 of a ring of 6 stages:
///
///   stage      0          1          2          3          4          5
///         +----------+----------+----------+----------+----------+----------+
///         | piece 6  | piece 7  | piece 8  | piece 3  | piece 4  | piece 5  |
///         +----------+----------+----------+----------+----------+----------+
///           loading    loading    1. load    storing    2. store   loading
///
///   1. Stage 2 held piece 2. Its store has to have read the stage; the store of piece 3 may still read its own.
///   2. Stage 4 has to have received piece 4: its barrier completes phase 4 / 6 (parity 0).
///
/// So kDepth - kStoring pieces are on their way in, and up to kStoring on their way out. At the end every store is
/// awaited: the stages live no longer than the thread block. What crosses the link waits for its slot of `pacer`: loads
/// from the host, or stores to it.
template <u32 kDepth, u32 kPieceBytes, typename Warp, typename SomePacer>
KVBENCH_BOTH void copy_through_ring(Warp& warp, const List& list, Share share, SomePacer pacer) {
  const bool host_is_source = list.host_is_source != 0;
  constexpr u32 kStoring = 2;
  constexpr u32 kAhead = kDepth - kStoring;
  const u32 count = share.last - share.first;
  PieceReader<Warp> loads(list, share, kPieceBytes);
  typename Warp::template Lanes<Waiting> waiting;  // lane i has the piece in stage i
  for (u32 step = 0; step < count + kAhead; ++step) {
    if (step < count) {
      const u32 stage = step % kDepth;
      const Piece piece = loads.at(share.first + step);
      const u32 phase = static_cast<u32>((host_is_source ? piece.source : piece.destination) % kLineBytes);
      const u32 place = warp.ring() + stage * stage_pitch(kPieceBytes) + phase;
      waiting.put(stage, {piece.destination, piece.bytes, place});
      if (warp.issues()) {
        if (step >= kDepth) warp.template wait_until_read<kStoring - 1>();
        if (host_is_source) pacer.wait(warp, piece.bytes);
        warp.expect(stage, piece.bytes);
        warp.load(place, piece.source, piece.bytes, stage);
      }
    }
    if (step >= kAhead) {
      const u32 storing = step - kAhead;
      const u32 stage = storing % kDepth;
      const Waiting piece = waiting.get(stage);
      if (warp.issues()) {
        warp.wait_until_loaded(stage, storing / kDepth % 2);
        if (!host_is_source) pacer.wait(warp, piece.bytes);
        warp.store(piece.destination, piece.place, piece.bytes);
      }
      warp.meet();
    }
  }
  if (warp.issues()) warp.wait_until_stored();
}

}  // namespace kvbench
