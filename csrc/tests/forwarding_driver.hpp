#pragma once

#include "driver/host.hpp"

namespace kvbench {

/// The host device, for tests that put a GPU's launch in place of what they override; it loads and launches nothing.
class ForwardingDriver : public Driver {
 public:
  const DeviceInfo& info() const override { return host_->info(); }
  BatchEntry batch_entry() const override { return host_->batch_entry(); }
  FreeMemory free_memory() const override { return host_->free_memory(); }
  Previous enter() const noexcept override { return host_->enter(); }
  void leave(Previous previous) const noexcept override { host_->leave(previous); }
  void bind_thread() const noexcept override { host_->bind_thread(); }
  Memory allocate(MemoryKind kind, std::size_t bytes) override { return host_->allocate(kind, bytes); }
  void release(MemoryKind kind, const Memory& memory, std::size_t bytes) noexcept override {
    host_->release(kind, memory, bytes);
  }
  Region region_of(Address address) override { return host_->region_of(address); }
  Stream create_stream(Priority priority) override { return host_->create_stream(priority); }
  void destroy_stream(Stream stream) noexcept override { host_->destroy_stream(stream); }
  void synchronize(Stream stream) override { host_->synchronize(stream); }
  bool idle(Stream stream) override { return host_->idle(stream); }
  bool capturing(Stream stream) override { return host_->capturing(stream); }
  Event create_event(EventKind kind) override { return host_->create_event(kind); }
  void destroy_event(Event event) noexcept override { host_->destroy_event(event); }
  void record(Event event, Stream stream) override { host_->record(event, stream); }
  void wait(Stream stream, Event event) override { host_->wait(stream, event); }
  void wait_for_word(Stream stream, Address word, std::uint32_t least) override {
    host_->wait_for_word(stream, word, least);
  }
  bool completed(Event event) override { return host_->completed(event); }
  double elapsed_us(Event start, Event end) override { return host_->elapsed_us(start, end); }
  void copy(Address destination, Address source, std::size_t bytes, Direction direction, Stream stream) override {
    host_->copy(destination, source, bytes, direction, stream);
  }
  void copy_batch(std::span<const Address> destinations, std::span<const Address> sources,
                  std::span<const std::size_t> bytes, BatchAttributes attributes, Direction direction,
                  Stream stream) override {
    host_->copy_batch(destinations, sources, bytes, attributes, direction, stream);
  }
  void copy_arrays(const BatchArrays& arrays, Direction direction, Stream stream) override {
    host_->copy_arrays(arrays, direction, stream);
  }
  void register_pages(Address address, std::size_t bytes) override { host_->register_pages(address, bytes); }
  void unregister_pages(Address address) override { host_->unregister_pages(address); }
  void begin_capture(Stream stream) override { host_->begin_capture(stream); }
  Graph end_capture_into_graph(Stream stream) override { return host_->end_capture_into_graph(stream); }
  void launch_graph(Graph graph, Stream stream) override { host_->launch_graph(graph, stream); }
  void destroy_graph(Graph graph) noexcept override { host_->destroy_graph(graph); }
  void fill(Address memory, std::uint8_t value, std::size_t bytes, Stream stream) override {
    host_->fill(memory, value, bytes, stream);
  }
  void write_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) override {
    host_->write_content(stretches, seed, stream);
  }
  AuditCount audit_content(std::span<const Stretch> stretches, std::uint64_t seed, Stream stream) override {
    return host_->audit_content(stretches, seed, stream);
  }
  void load_content_kernels(std::span<const std::byte>) override {}
  void delay(std::uint64_t delay_ns, Stream stream) override { host_->delay(delay_ns, stream); }
  void load_delay_kernel(std::span<const std::byte>) override {}
  Kernel load_kernel(std::span<const std::byte> cubin, const char* name, std::size_t shared_bytes) override {
    return host_->load_kernel(cubin, name, shared_bytes);
  }
  void launch(Kernel kernel, Grid grid, void** arguments, Stream stream) override {
    host_->launch(kernel, grid, arguments, stream);
  }

 private:
  std::shared_ptr<HostDriver> host_ = open_host();
};

}  // namespace kvbench
