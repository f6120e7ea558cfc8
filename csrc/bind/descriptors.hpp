#pragma once

#include "bind/bind.hpp"
#include "swap/swap.hpp"

namespace kvbench::bind {

/// The list of a swap, in the caller's arrays, which the swap must keep alive; ValueError if they have different
/// lengths.
inline Descriptors list_of(const Words& sources, const Words& destinations, const Words& bytes) {
  if (sources.size() != bytes.size() || destinations.size() != bytes.size()) {
    throw nb::value_error("sources, destinations and sizes must have the same length");
  }
  return {view(sources), view(destinations), view(bytes)};
}

}  // namespace kvbench::bind
