#pragma once

#include "bind/bind.hpp"
#include "swap/swap.hpp"

namespace kvbench::bind {

/// The list of a swap; ValueError if the arrays have different lengths.
inline DescriptorList list_of(const Words& sources, const Words& destinations, const Words& bytes) {
  if (sources.size() != bytes.size() || destinations.size() != bytes.size()) {
    throw nb::value_error("sources, destinations and sizes must have the same length");
  }
  return {copied(sources), copied(destinations), copied(bytes)};
}

}  // namespace kvbench::bind
