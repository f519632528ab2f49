// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/kernel_builtin.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "sim/cuda/kernel_hash.h"
#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

// Bytes of the largest operand in one piece of work under the lock: about 100 us, so that mapping is not held up for
// long.
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

// How often a waiting kernel looks at its peer's flag: soon at first, then rarely, for it may wait long on a small
// machine.
constexpr base::Duration kFirstLook{20'000};
constexpr base::Duration kLastLook{200'000};

template <class T>
T parameter(const std::byte* parameters, std::size_t offset) {
  T value{};
  std::memcpy(&value, parameters + offset, sizeof value);
  return value;
}

base::Duration time_for(const Context& context, std::uint64_t bytes) {
  const Settings& settings = context.process().machine().settings();
  return base::Duration(static_cast<std::int64_t>(static_cast<double>(bytes) * 1e9 /
                                                  static_cast<double>(settings.kernel_bytes_per_second)));
}

struct Operand {
  std::uint64_t address;
  std::uint64_t element_bytes;
  Touch touch;
};

// Calls `body(pointers, first, n)` for piece after piece of `count` elements, all operands resolved.
template <std::size_t N, class Body>
CUresult in_pieces(Worker& worker, Context& context, const std::array<Operand, N>& operands, std::uint64_t count,
                   Body body) {
  const AddressSpace& space = context.process().space();
  const Accessor who = context.accessor(false);
  const base::Duration launch(context.process().machine().settings().launch_nanoseconds);
  if (const CUresult result = worker.compute(context, launch); result != cuda::CUDA_SUCCESS) {
    return result;
  }
  std::uint64_t element_bytes = 0;
  for (const Operand& operand : operands) {
    element_bytes += operand.element_bytes;
    // A misaligned or absurd operand fails as a whole, before anything is written.
    if (count > UINT64_MAX / 2 / operand.element_bytes) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
    if (operand.address % operand.element_bytes != 0) return cuda::CUDA_ERROR_MISALIGNED_ADDRESS;
  }
  {
    const AddressSpace::Reader reader(space);
    for (const Operand& operand : operands) {
      if (count != 0 && reader.resolve(operand.address, count * operand.element_bytes, who, operand.touch) == nullptr) {
        return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    }
  }
  const std::uint64_t step = kPieceBytes / element_bytes;
  for (std::uint64_t first = 0; first < count; first += step) {
    const std::uint64_t n = std::min(step, count - first);
    {
      const AddressSpace::Reader reader(space);
      std::array<std::byte*, N> pointers{};
      for (std::size_t i = 0; i < N; ++i) {
        const Operand& operand = operands[i];
        pointers[i] = reader.resolve(operand.address + first * operand.element_bytes, n * operand.element_bytes, who,
                                     operand.touch);
        if (pointers[i] == nullptr) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
      }
      body(pointers, first, n);
    }
    const CUresult result = worker.work(context, time_for(context, n * element_bytes));
    if (result != cuda::CUDA_SUCCESS) return result;
  }
  return cuda::CUDA_SUCCESS;
}

CUresult fill(Worker& worker, Context& context, const std::byte* parameters) {
  const auto value = parameter<std::uint32_t>(parameters, 16);
  const std::array operands{Operand{parameter<std::uint64_t>(parameters, 0), 4, Touch::kWrite}};
  return in_pieces(worker, context, operands, parameter<std::uint64_t>(parameters, 8),
                   [value](auto& at, std::uint64_t, std::uint64_t n) {
                     std::fill_n(reinterpret_cast<std::uint32_t*>(at[0]), n, value);
                   });
}

CUresult saxpy(Worker& worker, Context& context, const std::byte* parameters) {
  const auto a = parameter<float>(parameters, 16);
  const std::array operands{Operand{parameter<std::uint64_t>(parameters, 0), 4, Touch::kWrite},
                            Operand{parameter<std::uint64_t>(parameters, 8), 4, Touch::kRead}};
  return in_pieces(worker, context, operands, parameter<std::uint64_t>(parameters, 24),
                   [a](auto& at, std::uint64_t, std::uint64_t n) {
                     auto* y = reinterpret_cast<float*>(at[0]);
                     const auto* x = reinterpret_cast<const float*>(at[1]);
                     for (std::uint64_t i = 0; i < n; ++i) y[i] = a * x[i] + y[i];
                   });
}

CUresult increment(Worker& worker, Context& context, const std::byte* parameters) {
  const std::array operands{Operand{parameter<std::uint64_t>(parameters, 0), 4, Touch::kWrite}};
  return in_pieces(worker, context, operands, parameter<std::uint64_t>(parameters, 8),
                   [](auto& at, std::uint64_t, std::uint64_t n) {
                     auto* data = reinterpret_cast<std::uint32_t*>(at[0]);
                     for (std::uint64_t i = 0; i < n; ++i) ++data[i];
                   });
}

CUresult checksum(Worker& worker, Context& context, const std::byte* parameters) {
  const std::array operands{Operand{parameter<std::uint64_t>(parameters, 0), 4, Touch::kRead}};
  const auto out = parameter<std::uint64_t>(parameters, 16);
  std::uint64_t sum = 0;
  const CUresult result = in_pieces(worker, context, operands, parameter<std::uint64_t>(parameters, 8),
                                    [&sum](auto& at, std::uint64_t first, std::uint64_t n) {
                                      const auto* data = reinterpret_cast<const std::uint32_t*>(at[0]);
                                      for (std::uint64_t i = 0; i < n; ++i) sum += data[i] * (2 * (first + i) + 1);
                                    });
  if (result != cuda::CUDA_SUCCESS) return result;
  const AddressSpace::Reader reader(context.process().space());
  std::byte* there = reader.resolve(out, sizeof sum, context.accessor(false), Touch::kWrite);
  if (there == nullptr) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
  std::memcpy(there, &sum, sizeof sum);
  return cuda::CUDA_SUCCESS;
}

CUresult spin(Worker& worker, Context& context, const std::byte* parameters) {
  // 292 years are for ever, and still a Duration.
  const auto nanoseconds = std::min<std::uint64_t>(parameter<std::uint64_t>(parameters, 0), INT64_MAX);
  return worker.compute(context, base::Duration(static_cast<std::int64_t>(nanoseconds)));
}

CUresult rendezvous(Worker& worker, Context& context, const std::byte* parameters) {
  const AddressSpace& space = context.process().space();
  const Accessor who = context.accessor(false);
  const auto own = parameter<std::uint64_t>(parameters, 0);
  const auto peer = parameter<std::uint64_t>(parameters, 8);
  const auto round = parameter<std::uint32_t>(parameters, 16);
  if (own % 4 != 0 || peer % 4 != 0) return cuda::CUDA_ERROR_MISALIGNED_ADDRESS;
  const base::Duration launch(context.process().machine().settings().launch_nanoseconds);
  if (const CUresult result = worker.compute(context, launch); result != cuda::CUDA_SUCCESS) {
    return result;
  }
  base::Duration look = kFirstLook;
  for (bool set = false;; set = true) {
    {
      const AddressSpace::Reader reader(space);
      std::byte* mine = reader.resolve(own, 4, who, Touch::kWrite);
      std::byte* theirs = reader.resolve(peer, 4, who, Touch::kRead);
      if (mine == nullptr || theirs == nullptr) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
      // The two flags synchronise the two kernels as a collective's do: each sees all that the other one wrote before.
      if (!set) __atomic_store_n(reinterpret_cast<std::uint32_t*>(mine), round, __ATOMIC_SEQ_CST);
      if (__atomic_load_n(reinterpret_cast<std::uint32_t*>(theirs), __ATOMIC_SEQ_CST) >= round)
        return cuda::CUDA_SUCCESS;
    }
    // A kernel that only waits takes no speed from its process's others, but holds the GPU all the same.
    if (const CUresult result = worker.wait_on_gpu(context, look); result != cuda::CUDA_SUCCESS) {
      return result;
    }
    look = std::min(look * 5 / 4, kLastLook);
  }
}

// The bytes of a block that the pager hashes.
constexpr std::uint64_t kHashedBytes = std::uint64_t{2} << 20;

CUresult hash_blocks(Worker& worker, Context& context, const std::byte* parameters) {
  const AddressSpace& space = context.process().space();
  const Accessor who = context.accessor(false);
  const auto blocks = parameter<std::uint64_t>(parameters, 0);
  const auto count = parameter<std::uint64_t>(parameters, 8);
  const auto results = parameter<std::uint64_t>(parameters, 16);
  const HashKeys keys(parameter<std::uint64_t>(parameters, 24), parameter<std::uint64_t>(parameters, 32));
  if (blocks % 8 != 0 || results % 8 != 0) return cuda::CUDA_ERROR_MISALIGNED_ADDRESS;
  const base::Duration launch(context.process().machine().settings().launch_nanoseconds);
  if (const CUresult result = worker.compute(context, launch); result != cuda::CUDA_SUCCESS) {
    return result;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    {
      const AddressSpace::Reader reader(space);
      const std::byte* listed = reader.resolve(blocks + 8 * i, 8, who, Touch::kRead);
      if (listed == nullptr) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
      const auto address = parameter<std::uint64_t>(listed, 0);
      if (address % 16 != 0) return cuda::CUDA_ERROR_MISALIGNED_ADDRESS;
      const std::byte* block = reader.resolve(address, kHashedBytes, who, Touch::kRead);
      std::byte* out = reader.resolve(results + sizeof(HashedBlock) * i, sizeof(HashedBlock), who, Touch::kWrite);
      if (block == nullptr || out == nullptr) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
      const HashedBlock hashed = keys.hash(block);
      std::memcpy(out, &hashed, sizeof hashed);
    }
    const CUresult result = worker.work(context, time_for(context, kHashedBytes));
    if (result != cuda::CUDA_SUCCESS) return result;
  }
  return cuda::CUDA_SUCCESS;
}

constexpr BuiltinKernel kKernels[] = {
    {"gpumux_fill", 3, {8, 8, 4}, {0, 8, 16}, fill},
    {"gpumux_saxpy", 4, {8, 8, 4, 8}, {0, 8, 16, 24}, saxpy},
    {"gpumux_checksum", 3, {8, 8, 8}, {0, 8, 16}, checksum},
    {"gpumux_spin", 1, {8}, {0}, spin},
    {"gpumux_increment", 2, {8, 8}, {0, 8}, increment},
    {"gpumux_rendezvous", 3, {8, 8, 4}, {0, 8, 16}, rendezvous},
    {"gpumux_hash_blocks", 5, {8, 8, 8, 8, 8}, {0, 8, 16, 24, 32}, hash_blocks},
};

}  // namespace

const BuiltinKernel* find_builtin(std::string_view name) {
  for (const BuiltinKernel& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

}  // namespace gpumux::sim
