// SPDX-License-Identifier: Apache-2.0
// What the test and benchmark programs for real GPUs share: the driver opened at run time, one context, our kernels.
//
// The driver is reached as a program without CUDA headers reaches it: dlopen and dlsym. Under gpumux dlsym gives
// libgpumux.so's functions; `direct_entry` gives the driver's own all the same, by reading its symbol table, so that
// one process can compare the two.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace gpumux::tests {

// CLOCK_MONOTONIC, which the daemon's trace uses too.
std::int64_t now_ns();
void sleep_ns(std::int64_t nanoseconds);

// Prints what failed with the driver's name for it, and exits with 1.
void check(cuda::CUresult result, const char* what);
[[noreturn]] void fail(const std::string& text);

// Of several runs, at least one; of an even number the upper one of the two in the middle.
double median(std::vector<double> values);

struct Program {
  cuda::Driver driver;
  void* library = nullptr;  // dlopen's handle of libcuda.so.1
  cuda::CUcontext context = nullptr;
  cuda::CUmodule module = nullptr;
  cuda::CUfunction increment = nullptr;
  cuda::CUfunction spin = nullptr;
  cuda::CUfunction empty = nullptr;  // spin for nothing, where a driver cannot run the empty one
  bool has_empty = false;
  bool preloaded = false;  // dlsym gives another cuLaunchKernel than the driver's own

  // How long the steps of starting took.
  std::int64_t open_ns = 0;
  std::int64_t init_ns = 0;
  std::int64_t context_ns = 0;
  std::int64_t first_launch_ns = 0;  // module, first launch and its end
};

// Everything up to the end of a first launch on `device`'s primary context.
Program start_program(int device);

// The driver's own function of this exported name. Fails the program if there is none.
void* direct_entry(void* library, const char* symbol);

// Launches without waiting.
cuda::CUresult launch_increment(const Program& program, cuda::CUdeviceptr data, std::uint64_t count,
                                cuda::CUstream stream);
cuda::CUresult launch_spin(const Program& program, std::uint64_t nanoseconds, cuda::CUstream stream);

}  // namespace gpumux::tests
