#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace kvbench {

/// An in-order queue of tasks and the thread that runs them.
class HostStream {
 public:
  HostStream() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void submit(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty() && !running_; });
  }

  bool idle() {
    const std::lock_guard lock(mutex_);
    return tasks_.empty() && !running_;
  }

  /// Called by a task: stops the stream until `is_over`, or until it is destroyed.
  void hang(const std::atomic<bool>& is_over) {
    std::unique_lock lock(mutex_);
    const std::stop_token stop = thread_.get_stop_token();
    while (!is_over && !stop.stop_requested()) {
      changed_.wait_for(lock, stop, std::chrono::milliseconds(1), [] { return false; });
    }
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    // A destroyed stream runs nothing more: the memory of queued copies can be gone.
    while (changed_.wait(lock, stop, [this] { return !tasks_.empty(); }) && !stop.stop_requested()) {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
      lock.unlock();
      task();
      lock.lock();
      running_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_;
  bool running_ = false;
  std::jthread thread_;  // last member: it uses the members above
};

}  // namespace kvbench
