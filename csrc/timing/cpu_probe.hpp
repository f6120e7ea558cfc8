#pragma once

namespace kvbench {

/// Microseconds that a fixed piece of work takes on the current CPU. The work fills the core's execution units and its
/// first-level cache, so that a busy sibling thread of the core, or a lower clock, is visible.
double probe_cpu_us();

}  // namespace kvbench
