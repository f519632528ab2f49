// SPDX-License-Identifier: Apache-2.0
// What gpumux takes for granted of the driver and no manual promises: asked of the real one. Run it without gpumux.
// Prints one line `RESULT {json}`, true for what holds.
#include <atomic>
#include <cstdio>
#include <thread>

#include "tests/gpu/programs/driver_program.h"

namespace gpumux::tests {
namespace {

constexpr std::uint64_t kSpinNs = 100'000'000;  // long beside starting a thread

// Whether the legacy default stream is busy exactly as long as work on another thread's stream is. `ended`: that thread
// is gone while its work goes on.
bool legacy_answers_for(const Program& program, cuda::CUstream stream, bool ended) {
  const cuda::Driver& driver = program.driver;
  std::atomic<bool> launched{false};
  std::thread other([&] {
    check(driver.cuCtxSetCurrent(program.context), "cuCtxSetCurrent");
    check(launch_spin(program, kSpinNs, stream), "launch");
    launched = true;
    if (!ended) check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  });
  if (ended) other.join();
  const std::int64_t start = now_ns();
  while (!launched) sleep_ns(10'000);
  bool was_busy = false;
  while (driver.cuStreamQuery(nullptr) == cuda::CUDA_ERROR_NOT_READY) {
    was_busy = true;
    sleep_ns(100'000);
  }
  const std::int64_t busy_ns = now_ns() - start;
  if (!ended) other.join();
  check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  return was_busy && busy_ns > static_cast<std::int64_t>(kSpinNs) * 9 / 10;
}

}  // namespace

int run() {
  const Program program = start_program(0);
  const cuda::Driver& driver = program.driver;
  const auto per_thread = reinterpret_cast<cuda::CUstream>(std::uintptr_t{2});
  cuda::CUstream blocking = nullptr, apart = nullptr;
  check(driver.cuStreamCreate(&blocking, 0), "cuStreamCreate");
  check(driver.cuStreamCreate(&apart, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const auto text = [](bool holds) { return holds ? "true" : "false"; };
  // Decision 0004: a drain asks the legacy stream in the place of per-thread ones, and every non-blocking one itself.
  std::printf("RESULT {\"legacy stream answers for per-thread streams\": %s, ",
              text(legacy_answers_for(program, per_thread, false)));
  std::printf("\"legacy stream answers for ended threads' streams\": %s, ",
              text(legacy_answers_for(program, per_thread, true)));
  std::printf("\"legacy stream answers for created streams\": %s, ",
              text(legacy_answers_for(program, blocking, false)));
  std::printf("\"legacy stream knows nothing of non-blocking streams\": %s}\n",
              text(!legacy_answers_for(program, apart, false)));
  return 0;
}

}  // namespace gpumux::tests

int main() { return gpumux::tests::run(); }
