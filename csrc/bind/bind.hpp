#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "swap/swap.hpp"

/// The Python module, one function per topic; later topics use the types of earlier ones.
namespace kvbench::bind {

namespace nb = nanobind;
using namespace nb::literals;

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words = Array<std::uint64_t>;

template <typename T>
std::span<const T> view(const Array<T>& array) {
  return {array.data(), array.size()};
}

inline std::span<const std::byte> view(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

inline void check_lengths(const Descriptors& list) {
  if (list.sources.size() != list.size() || list.destinations.size() != list.size()) {
    throw nb::value_error("sources, destinations and sizes must have the same length");
  }
}

/// The list of a swap, in the caller's arrays, which the swap must keep alive; ValueError if they have different
/// lengths.
inline Descriptors list_of(const Words& sources, const Words& destinations, const Words& bytes) {
  const Descriptors list{view(sources), view(destinations), view(bytes)};
  check_lengths(list);
  return list;
}

void driver(nb::module_& m);
void resources(nb::module_& m);
void swaps(nb::module_& m);
void copier(nb::module_& m);
void timing(nb::module_& m);

}  // namespace kvbench::bind
