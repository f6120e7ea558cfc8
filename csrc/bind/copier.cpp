#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "bind/bind.hpp"
#include "bind/copy_arguments.hpp"
#include "swap/block_copier.hpp"

namespace kvbench::bind {
namespace {

// What a call can say that its swap runs beside; an index here is one of a table, 0 of where it does not say.
constexpr std::array<std::string_view, 4> kBeside{"", "nothing", "decode", "prefill"};

/// Throws ValueError for what is none of `kBeside`, and for what the copier has no table for.
std::size_t beside_of(const BlockCopier& copier, nb::handle named) {
  if (named.is_none()) return 0;
  std::string name;
  if (!nb::try_cast(named, name)) throw nb::type_error("beside: must be \"nothing\", \"decode\" or \"prefill\"");
  const auto found = std::find(kBeside.begin() + 1, kBeside.end(), name);
  if (found == kBeside.end()) throw nb::value_error("beside: must be \"nothing\", \"decode\" or \"prefill\"");
  const auto index = static_cast<std::size_t>(found - kBeside.begin());
  if (!copier.serves(index)) {
    throw nb::value_error("beside: the policy has no table for it; measure it with kvbench sweep beside");
  }
  return index;
}

}  // namespace

void copier(nb::module_& m) {
  nb::class_<CopyWay>(m, "CopyWay", "One way to copy: by a kernel on some SMs; with sms=0 by single or batched copies.")
      .def(
          "__init__",
          [](CopyWay* self, unsigned sms, std::shared_ptr<SmKernel> aligned, std::shared_ptr<SmKernel> any,
             std::size_t inline_up_to, double pace_gbps, bool one_by_one, const BatchOptions& batch, bool staged,
             std::size_t otherwise) {
            new (self) CopyWay{sms,   one_by_one, std::move(aligned), std::move(any), inline_up_to, pace_gbps,
                               batch, staged,     otherwise};
          },
          nb::kw_only(), "sms"_a = 0, "aligned"_a = nb::none(), "any"_a = nb::none(), "inline_up_to"_a = 0,
          "pace_gbps"_a = 0.0, "one_by_one"_a = false, "batch"_a = BatchOptions{}, "staged"_a = false,
          "otherwise"_a = 0);
  nb::class_<CopyTable>(m, "CopyTable", "Which way serves which lists, by mean block size and number of blocks.")
      .def(
          "__init__",
          [](CopyTable* self, Direction direction, bool pending, std::vector<double> size_limits,
             std::vector<double> count_limits, std::vector<std::size_t> ways, std::size_t beside) {
            new (self)
                CopyTable{direction, pending, std::move(size_limits), std::move(count_limits), std::move(ways), beside};
          },
          nb::kw_only(), "direction"_a, "pending"_a, "size_limits"_a, "count_limits"_a, "ways"_a, "beside"_a = 0);
  nb::class_<BlockCopier>(m, "BlockCopier", "Copies lists of blocks, each in the way that a table names.")
      .def(
          "__init__",
          [](BlockCopier* self, std::shared_ptr<Driver> driver, const std::vector<CopyWay*>& ways,
             const std::vector<CopyTable*>& tables, std::size_t max_entries,
             const std::vector<BlockCopier::Pool>& pools) {
            std::vector<CopyWay> own_ways;
            for (const CopyWay* way : ways) own_ways.push_back(*way);
            std::vector<CopyTable> own_tables;
            for (const CopyTable* table : tables) own_tables.push_back(*table);
            new (self) BlockCopier(std::move(driver), std::move(own_ways), std::move(own_tables), max_entries, pools);
          },
          "driver"_a, "ways"_a, "tables"_a, "max_entries"_a = 0, "pools"_a = std::vector<BlockCopier::Pool>{})
      .def(
          "copy",
          [](BlockCopier& copier, nb::handle sources, nb::handle destinations, nb::handle sizes, nb::handle stream,
             bool source_order_any, nb::handle beside) {
            const CopyArguments arguments(sources, destinations, sizes, stream);
            Descriptors list = arguments.list();
            list.source_order_any = source_order_any;
            list.beside = beside_of(copier, beside);
            const nb::gil_scoped_release release;
            copier.copy(list, arguments.stream());
          },
          "sources"_a.none(), "destinations"_a.none(), "sizes"_a.none(), "stream"_a.none(), nb::kw_only(),
          "source_order_any"_a = false, "beside"_a = nb::none())
      .def("way_of", &BlockCopier::way_of, "blocks"_a, "total_bytes"_a, "direction"_a, nb::kw_only(), "idle"_a,
           "beside"_a = 0, "Return the index of the way of a list, by whether its stream is idle.")
      .def("not_staged", &BlockCopier::not_staged,
           "Return how many lists went another way than through pages, which a table names, as they are not in pages.")
      .def("forget", &BlockCopier::forget, "Forget where blocks lie, after memory was freed.")
      .def("__repr__", [](const BlockCopier&) { return "<BlockCopier>"; });
  m.def(
      "copier_swap",
      [](std::shared_ptr<BlockCopier> copier, const Words& sources, const Words& destinations, const Words& sizes,
         bool source_order_any, std::size_t beside) -> std::unique_ptr<Swap> {
        Descriptors list = list_of(sources, destinations, sizes);
        list.source_order_any = source_order_any;
        list.beside = beside;
        return keep_list(std::move(copier), list);
      },
      "copier"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "sizes"_a.noconvert(), "source_order_any"_a,
      "beside"_a = 0, nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>(), nb::keep_alive<0, 4>());
}

}  // namespace kvbench::bind
