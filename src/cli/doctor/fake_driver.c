// SPDX-License-Identifier: Apache-2.0
// For tests: the few functions of libcuda.so.1 and libnvidia-ml.so.1 that the doctor asks, answering what FAKE_* say.
// The whole simulated driver is in sim/cuda; this one can be wrong on purpose.
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static int number(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value == NULL ? otherwise : atoi(value);
}

int cuDriverGetVersion(int* version) {
  if (number("FAKE_CUDA_CRASH", 0)) raise(SIGSEGV);
  *version = number("FAKE_CUDA_VERSION", 13000);
  return 0;
}

// The doctor must never initialise the driver or make a context.
int cuInit(unsigned flags) {
  (void)flags;
  abort();
}

int nvmlInit_v2(void) { return number("FAKE_NVML_INIT", 0); }
int nvmlShutdown(void) { return 0; }
const char* nvmlErrorString(int result) { return result == 18 ? "Driver/library version mismatch" : "?"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = (unsigned)number("FAKE_GPUS", 2);
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static char devices[16];
  *device = devices + index;
  return 0;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  (void)device;
  strncpy(name, "Fake GPU", length);
  return 0;
}
int nvmlDeviceGetComputeMode(void* device, unsigned* mode) {
  (void)device;
  *mode = (unsigned)number("FAKE_COMPUTE_MODE", 0);
  return 0;
}
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  strncpy(version, "580.1", length);
  return 0;
}
// There is no kernel module behind this one either.
void gpumux_sim_is_simulated(void) {}
