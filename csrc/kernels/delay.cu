// Keeps a stream busy for a bounded time. One thread, so that it takes no SM from the measured work after it.
extern "C" __global__ void kvbench_delay(unsigned long long delay_ns) {
  unsigned long long start;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  unsigned long long now = start;
  while (now - start < delay_ns) {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  }
}
