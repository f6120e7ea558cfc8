#pragma once

#include "bind/bind.hpp"
#include "swap/swap.hpp"

namespace kvbench::bind {

/// The arguments of a call of a copier, as an engine passes them, which live as long as this.
class CopyArguments {
 public:
  /// Throws TypeError for an array that is not one of 64-bit integers on the CPU, or for a stream of another type, and
  /// ValueError for arrays of different lengths or a number that no stream has.
  CopyArguments(nb::handle sources, nb::handle destinations, nb::handle sizes, nb::handle stream);

  [[nodiscard]] const Descriptors& list() const { return list_; }
  [[nodiscard]] Stream stream() const { return stream_; }

 private:
  using Numbers = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

  static std::span<const std::uint64_t> words_of(nb::handle array, const char* name, Numbers& kept);

  Numbers kept_[3];  ///< what was exported for this call
  Descriptors list_;
  Stream stream_;
};

}  // namespace kvbench::bind
