// SPDX-License-Identifier: Apache-2.0
// For tests: a driver of a few functions whose GPU is arithmetic. A stream is the time until which it is busy; a
// submission of so much work moves that time on. So what runs at any moment is known exactly, with no thread and no
// sleeping, and somebody else (the test's daemon) can ask at the moment that matters.
#pragma once

#include <functional>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "cuda/driver.gen.h"

namespace gpumux::shim {

class FakeGpu {
 public:
  static constexpr int kDevices = 2;

  // The one that the driver's functions act on.
  static FakeGpu& get();
  // Fills in the functions that exist here; the rest stay null.
  static void fill(cuda::Driver& driver);
  static std::uint8_t uuid_byte(int device) { return static_cast<std::uint8_t>(0xa0 + device); }

  // Called by each submission, in the submitting thread, before its work is there.
  std::function<void(int device)> on_submit;

  // Called by each query of a stream, when its answer is known and not yet given.
  std::function<void()> after_query;

  // Until when the device is busy with what has been submitted, in any stream, destroyed or not.
  base::TimePoint busy_until(int device);

  // Work of the submissions from now on.
  void set_work(base::Duration work);

 private:
  struct Stream {
    cuda::CUcontext context;
    base::TimePoint tail{};
    bool capturing = false;
  };
  struct Context {
    int device;
    Stream legacy;
    base::TimePoint busy_until{};  // with destroyed streams
  };
  struct Event {
    base::TimePoint at{};
  };

  // Null: no such thing (any more).
  Stream* find(cuda::CUstream stream);
  Context* find(cuda::CUcontext context);
  cuda::CUresult submit(cuda::CUstream stream);

  std::mutex mutex_;
  std::uintptr_t next_handle_ = 1;
  base::Duration work_{};
  std::map<cuda::CUcontext, Context> contexts_;
  std::map<cuda::CUstream, Stream> streams_;
  std::map<cuda::CUevent, Event> events_;
  base::TimePoint busy_until_[kDevices] = {};
};

}  // namespace gpumux::shim
