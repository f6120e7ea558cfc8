#include "bind/bind.hpp"

using namespace kvbench;

NB_MODULE(_engine, m) {
  m.doc() = "The swap engine: descriptors submitted on streams, timed without Python in between.";
  m.attr("SOURCE_HASH") = KVBENCH_SOURCE_HASH;
  // At interpreter exit whoever still holds a device (a test session, a plug-in) would be told of a leak.
  nanobind::set_leak_warnings(false);
  bind::errors(m);
  bind::driver(m);
  bind::resources(m);
  bind::verification(m);
  bind::swaps(m);
  bind::sm_kernels(m);
  bind::timing(m);
}
