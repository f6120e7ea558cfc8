#include "bind/bind.hpp"

using namespace kvbench;

NB_MODULE(_engine, m) {
  m.doc() = "The swap engine: descriptors submitted on streams, timed without Python in between.";
  m.attr("SOURCE_HASH") = KVBENCH_SOURCE_HASH;
  // No leak warnings: at interpreter exit a test session or a plug-in can still hold a device.
  nanobind::set_leak_warnings(false);
  bind::errors(m);
  bind::driver(m);
  bind::resources(m);
  bind::verification(m);
  bind::swaps(m);
  bind::sm_kernels(m);
  bind::copier(m);
  bind::timing(m);
  bind::probe(m);
}
