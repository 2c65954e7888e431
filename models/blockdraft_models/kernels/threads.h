// Work shared out over XLA's threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// Fewer multiply-adds take less time than waking a thread.
constexpr int64_t kLeastShared = 1 << 16;

// Do `work(i)` for every i below `count`, so many multiply-adds together, on the threads of XLA; each
// thread has its own work from `begin()`. The calling thread takes part and waits only for what
// another has begun, so a busy pool delays nothing.
template <class Begin>
void parallel(ffi::ThreadPool& pool, int64_t count, int64_t operations, const Begin& begin) {
  struct Progress {
    std::atomic<int64_t> next{0}, done{0};
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  if (helpers <= 0 || operations < kLeastShared) {
    auto work = begin();
    for (int64_t i = 0; i < count; i++) work(i);
    return;
  }
  auto progress = std::make_shared<Progress>();
  auto run = [progress, count, &begin] {
    int64_t i = progress->next.fetch_add(1);
    if (i >= count) return;
    for (auto work = begin(); i < count; i = progress->next.fetch_add(1)) {
      work(i);
      progress->done.fetch_add(1, std::memory_order_release);
    }
  };
  for (int64_t i = 0; i < helpers; i++) pool.Schedule(decltype(run)(run));
  run();
  for (int spins = 0; progress->done.load(std::memory_order_acquire) < count; spins++)
    if (spins > 1000) std::this_thread::yield();
}

}  // namespace
