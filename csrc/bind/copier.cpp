#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bind/bind.hpp"
#include "bind/descriptors.hpp"
#include "swap/block_copier.hpp"

namespace kvbench::bind {
namespace {

using Numbers = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const char* name) {
  throw nb::type_error((std::string(name) + " must be a contiguous CPU array or tensor of 64-bit integers").c_str());
}

/// The words of a NumPy array, or of a tensor: its attributes take less time than an exchange by DLPack.
std::span<const std::uint64_t> words_of(nb::handle array, const char* name) {
  if (nb::hasattr(array, "data_ptr")) {
    if (nb::cast<bool>(array.attr("is_cuda")) || nb::cast<std::size_t>(array.attr("element_size")()) != 8 ||
        nb::cast<bool>(array.attr("is_floating_point")()) || !nb::cast<bool>(array.attr("is_contiguous")()) ||
        nb::cast<std::size_t>(array.attr("ndim")) != 1) {
      refuse(name);
    }
    const auto address = nb::cast<std::uintptr_t>(array.attr("data_ptr")());
    return {reinterpret_cast<const std::uint64_t*>(address), nb::cast<std::size_t>(array.attr("numel")())};
  }
  Numbers numbers;
  if (!nb::try_cast(array, numbers, false)) refuse(name);
  const nb::dlpack::dtype type = numbers.dtype();
  const bool whole = type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int) ||
                     type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt);
  if (!whole || type.bits != 64) refuse(name);
  return {static_cast<const std::uint64_t*>(numbers.data()), numbers.size()};
}

Stream stream_of(nb::handle stream) {
  const char* name = "cuda_stream";
  return nb::cast<Stream>(nb::hasattr(stream, name) ? nb::object(stream.attr(name)) : nb::borrow(stream));
}

Descriptors checked(nb::handle sources, nb::handle destinations, nb::handle sizes) {
  const Descriptors list{words_of(sources, "sources"), words_of(destinations, "destinations"),
                         words_of(sizes, "sizes")};
  if (list.sources.size() != list.size() || list.destinations.size() != list.size()) {
    throw nb::value_error("sources, destinations and sizes must have the same length");
  }
  return list;
}

/// A list that is copied by a copier again and again, for measurements.
class CopierSwap final : public Swap {
 public:
  CopierSwap(std::shared_ptr<BlockCopier> copier, Descriptors descriptors, bool source_order_any)
      : copier_(std::move(copier)), descriptors_(descriptors), source_order_any_(source_order_any) {}

  void submit(Stream stream) override { copier_->copy(descriptors_, source_order_any_, stream); }
  std::size_t calls() const override { return copier_->last() ? copier_->last()->calls() : 0; }
  std::size_t descriptors() const override {
    return copier_->last() ? copier_->last()->descriptors() : descriptors_.size();
  }

 private:
  std::shared_ptr<BlockCopier> copier_;
  Descriptors descriptors_;
  bool source_order_any_;
};

}  // namespace

void copier(nb::module_& m) {
  nb::class_<CopyWay>(m, "CopyWay", "One way to copy: by a kernel on some SMs; with sms=0 by single or batched copies.")
      .def(
          "__init__",
          [](CopyWay* self, unsigned sms, std::shared_ptr<SmKernel> aligned, std::shared_ptr<SmKernel> any,
             std::size_t inline_up_to, bool one_by_one, bool sliced, std::size_t descriptors_per_call,
             bool prefer_overlap, bool by_host_address, bool merge, std::uint64_t prime_ns,
             std::size_t prime_up_to_bytes) {
            BatchOptions batch;
            batch.attributes.prefer_overlap = prefer_overlap;
            batch.descriptors_per_call = descriptors_per_call;
            batch.sliced = sliced;
            batch.by_host_address = by_host_address;
            batch.merge = merge;
            batch.prime_ns = prime_ns;
            batch.prime_up_to_bytes = prime_up_to_bytes;
            new (self) CopyWay{sms, one_by_one, std::move(aligned), std::move(any), inline_up_to, batch};
          },
          nb::kw_only(), "sms"_a = 0, "aligned"_a = nb::none(), "any"_a = nb::none(), "inline_up_to"_a = 0,
          "one_by_one"_a = false, "sliced"_a = false, "descriptors_per_call"_a = 0, "prefer_overlap"_a = false,
          "by_host_address"_a = false, "merge"_a = false, "prime_ns"_a = 0, "prime_up_to_bytes"_a = 0);
  nb::class_<CopyTable>(m, "CopyTable", "Which way serves which lists, by mean block size and number of blocks.")
      .def(
          "__init__",
          [](CopyTable* self, Direction direction, bool pending, std::vector<double> size_limits,
             std::vector<double> count_limits, std::vector<std::size_t> ways) {
            new (self) CopyTable{direction, pending, std::move(size_limits), std::move(count_limits), std::move(ways)};
          },
          nb::kw_only(), "direction"_a, "pending"_a, "size_limits"_a, "count_limits"_a, "ways"_a);
  nb::class_<BlockCopier>(m, "BlockCopier", "Copies lists of blocks, each in the way that a table names.")
      .def(
          "__init__",
          [](BlockCopier* self, std::shared_ptr<Driver> driver, const std::vector<CopyWay*>& ways,
             const std::vector<CopyTable*>& tables, std::size_t max_entries) {
            std::vector<CopyWay> own_ways;
            for (const CopyWay* way : ways) own_ways.push_back(*way);
            std::vector<CopyTable> own_tables;
            for (const CopyTable* table : tables) own_tables.push_back(*table);
            new (self) BlockCopier(std::move(driver), std::move(own_ways), std::move(own_tables), max_entries);
          },
          "driver"_a, "ways"_a, "tables"_a, "max_entries"_a = 0)
      .def(
          "copy",
          [](BlockCopier& copier, nb::handle sources, nb::handle destinations, nb::handle sizes, nb::handle stream,
             bool source_order_any) {
            const Descriptors list = checked(sources, destinations, sizes);
            const Stream handle = stream_of(stream);
            const nb::gil_scoped_release release;
            copier.copy(list, source_order_any, handle);
          },
          "sources"_a.none(), "destinations"_a.none(), "sizes"_a.none(), "stream"_a, nb::kw_only(),
          "source_order_any"_a = false)
      .def("way_of", &BlockCopier::way_of, "blocks"_a, "total_bytes"_a, "direction"_a, nb::kw_only(), "idle"_a,
           "Return the index of the way of a list, by whether its stream is idle.")
      .def("forget_places", &BlockCopier::forget_places, "Forget where blocks lie, after memory was freed.")
      .def("__repr__", [](const BlockCopier&) { return "<BlockCopier>"; });
  m.def(
      "copier_swap",
      [](std::shared_ptr<BlockCopier> copier, const Words& sources, const Words& destinations, const Words& sizes,
         bool source_order_any) -> std::unique_ptr<Swap> {
        return std::make_unique<CopierSwap>(std::move(copier), list_of(sources, destinations, sizes), source_order_any);
      },
      "copier"_a, "sources"_a.noconvert(), "destinations"_a.noconvert(), "sizes"_a.noconvert(), "source_order_any"_a,
      nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>(), nb::keep_alive<0, 4>());
}

}  // namespace kvbench::bind
