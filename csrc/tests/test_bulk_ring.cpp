#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "check.hpp"
#include "replayed_warp.hpp"

namespace {

using namespace kvbench;

constexpr u32 kPieceBytes = 256;
constexpr std::array kPaces{Pace::early, Pace::late, Pace::random};

/// Blocks of two pools, each at a place of its own, back to front on the other side; the destination is zero.
struct Blocks {
  Blocks(u32 blocks, u32 block_bytes, bool host_is_source)
      : bytes(block_bytes), rows(blocks), source(room(blocks, block_bytes)), destination(source.size()) {
    std::iota(source.begin(), source.end(), 1ULL);
    const u64 pitch = block_bytes + 48;  // every phase of a line
    for (u32 i = 0; i < blocks; ++i) {
      rows[i] = {reinterpret_cast<u64>(source.data()) + 16 + i * pitch,
                 reinterpret_cast<u64>(destination.data()) + 16 + (blocks - 1 - i) * pitch};
    }
    list.table = reinterpret_cast<u64>(rows.data());
    list.block_bytes = block_bytes;
    list.pieces_a_block = (block_bytes + kPieceBytes - 1) / kPieceBytes;
    list.pieces = blocks * list.pieces_a_block;
    list.host_is_source = host_is_source ? 1 : 0;
  }

  static std::size_t room(u32 blocks, u32 block_bytes) { return (blocks + 1) * (block_bytes + 48) / 8; }

  bool arrived(u32 block) const {
    return std::memcmp(reinterpret_cast<const void*>(rows[block].source),
                       reinterpret_cast<const void*>(rows[block].destination), bytes) == 0;
  }

  u32 bytes;
  std::vector<Row> rows;
  alignas(128) std::vector<u64> source;
  std::vector<u64> destination;
  List list{};
};

template <u32 kDepth, typename SomePacer = NoPacer>
ReplayedWarp copy(const Blocks& blocks, Share share, Pace loads, Pace stores, u32 seed = 1, SomePacer pacer = {}) {
  ReplayedWarp warp(kDepth, stage_pitch(kPieceBytes), loads, stores, blocks.list.host_is_source != 0, seed);
  copy_through_ring<kDepth, kPieceBytes>(warp, blocks.list, share, pacer);
  warp.end();
  return warp;
}

template <u32 kDepth>
void every_piece_arrives_at_every_pace() {
  for (const Pace loads : kPaces) {
    for (const Pace stores : kPaces) {
      for (const u32 count : {0U, 1U, 2U, 3U, kDepth - 1, kDepth, kDepth + 1, 31U, 32U, 33U, 64U, 65U, 200U}) {
        for (const bool host_is_source : {true, false}) {
          const Blocks blocks(count, 192, host_is_source);
          copy<kDepth>(blocks, {0, count}, loads, stores, count + 1);
          for (u32 i = 0; i < count; ++i) check::that(blocks.arrived(i), "piece " + std::to_string(i) + " arrived");
        }
      }
    }
  }
}

void a_ring_of_any_depth_moves_every_piece() {
  every_piece_arrives_at_every_pace<3>();
  every_piece_arrives_at_every_pace<6>();
  every_piece_arrives_at_every_pace<8>();
  every_piece_arrives_at_every_pace<16>();
}

void a_share_is_copied_and_nothing_else() {
  const Blocks blocks(100, 192, true);
  copy<6>(blocks, {37, 81}, Pace::late, Pace::late);
  for (u32 i = 0; i < 100; ++i) check::equal(blocks.arrived(i), i >= 37 && i < 81, "block " + std::to_string(i));
}

void blocks_of_several_pieces_arrive_whole() {
  for (const u32 bytes : {kPieceBytes, kPieceBytes + 16, 3 * kPieceBytes - 16}) {
    const Blocks blocks(41, bytes, false);
    copy<6>(blocks, {0, blocks.list.pieces}, Pace::late, Pace::random);
    for (u32 i = 0; i < 41; ++i) check::that(blocks.arrived(i), "a block of several pieces arrived");
  }
}

void the_ring_keeps_as_much_in_flight_as_it_has_stages() {
  const Blocks blocks(64, 192, true);
  const ReplayedWarp warp = copy<6>(blocks, {0, 64}, Pace::late, Pace::late);
  check::equal(warp.most_loads(), std::size_t{5}, "loads in flight");  // all but the store that may read its stage
  check::equal(warp.stores_beside_load(), std::size_t{1}, "stores in flight beside a load");
}

void what_crosses_the_link_waits_for_its_slot() {
  constexpr u32 kPsPerByte = 2000;
  constexpr u64 kSlotNs = u64{192} * kPsPerByte / 1000;
  for (const bool host_is_source : {true, false}) {
    for (const Pace loads : kPaces) {
      for (const Pace stores : kPaces) {
        const Blocks blocks(70, 192, host_is_source);
        const Pacer pacer(kPsPerByte, 192, 1, 2, 8, 0);
        const ReplayedWarp warp = copy<6>(blocks, {0, 70}, loads, stores, 7, pacer);
        for (u32 i = 0; i < 70; ++i) check::that(blocks.arrived(i), "a piece that is held at a rate arrived");
        const auto& crossed = host_is_source ? warp.loads_ns() : warp.stores_ns();
        for (std::size_t i = 0; i < crossed.size(); ++i) {
          const u64 due = i * kSlotNs + kSlotNs / 2;
          check::that(crossed[i] >= due && crossed[i] <= due + 40, "a piece crosses the link in its slot");
        }
        for (std::size_t i = 0; i < 70; ++i) {  // loads on the device go ahead as usual, stores there follow as usual
          if (host_is_source) check::equal(warp.stores_ns()[i], crossed[std::min<std::size_t>(i + 4, 69)], "a store");
          if (!host_is_source) check::equal(warp.loads_ns()[i], i < 5 ? 0 : crossed[i - 5], "a load");
        }
      }
    }
  }
}

}  // namespace

int main() {
  return check::run({
      {"a ring of any depth moves every piece", a_ring_of_any_depth_moves_every_piece},
      {"a share is copied and nothing else", a_share_is_copied_and_nothing_else},
      {"blocks of several pieces arrive whole", blocks_of_several_pieces_arrive_whole},
      {"the ring keeps as much in flight as it has stages", the_ring_keeps_as_much_in_flight_as_it_has_stages},
      {"what crosses the link waits for its slot", what_crosses_the_link_waits_for_its_slot},
  });
}
