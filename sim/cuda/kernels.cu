// SPDX-License-Identifier: Apache-2.0
// The kernels that the simulated GPU has built in (kernel_builtin.h), for real GPUs: a program that loads
// kernels.gen.ptx runs on both. tools/make_sim_kernels.sh makes the PTX. Launch any of them with any grid; rendezvous and spin with one thread.
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ u64 first_index() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
static __device__ u64 stride() { return static_cast<u64>(gridDim.x) * blockDim.x; }

static __device__ u64 nanoseconds_now() {
  u64 time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

extern "C" __global__ void gpumux_fill(u32* destination, u64 count, u32 value) {
  for (u64 i = first_index(); i < count; i += stride()) destination[i] = value;
}

extern "C" __global__ void gpumux_saxpy(float* y, const float* x, float a, u64 n) {
  // Rounded twice, as the simulated GPU does: a fused multiply-add would differ in the last bit.
  for (u64 i = first_index(); i < n; i += stride()) y[i] = __fadd_rn(__fmul_rn(a, x[i]), y[i]);
}

extern "C" __global__ void gpumux_checksum(const u32* source, u64 count, u64* out) {
  // One thread sums and stores: slow on a large GPU, but then the result needs no second launch and no zeroed memory.
  if (first_index() != 0) return;
  u64 sum = 0;
  for (u64 i = 0; i < count; ++i) sum += static_cast<u64>(source[i]) * (2 * i + 1);
  *out = sum;
}

// Runs for so much time of its own: a large step of the clock means that another process had the GPU meanwhile, and
// does not count.
extern "C" __global__ void gpumux_spin(u64 nanoseconds) {
  const u64 interruption = 50000;
  u64 spent = 0;
  for (u64 last = nanoseconds_now(); spent < nanoseconds;) {
    const u64 now = nanoseconds_now();
    if (now - last < interruption) spent += now - last;
    last = now;
  }
}

extern "C" __global__ void gpumux_increment(u32* data, u64 count) {
  for (u64 i = first_index(); i < count; i += stride()) ++data[i];
}

extern "C" __global__ void gpumux_rendezvous(u32* own_flag, volatile u32* peer_flag, u32 round) {
  if (first_index() != 0) return;
  __threadfence_system();
  *static_cast<volatile u32*>(own_flag) = round;
  __threadfence_system();
  while (*peer_flag < round) {
  }
  __threadfence_system();
}
