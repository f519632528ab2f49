// SPDX-License-Identifier: Apache-2.0
// operator new and delete of libgpumux.so: the host's malloc. The C++ library's own throw, and would bring the whole
// machinery of exceptions (and its newer glibc symbols) into every process.
#include <cstdlib>
#include <new>

namespace {

void* allocate(std::size_t bytes) {
  void* memory = std::malloc(bytes != 0 ? bytes : 1);
  // We allocate a few hundred bytes at a time. A program that cannot have those is past any help, and nothing here can
  // be undone.
  if (memory == nullptr) __builtin_trap();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes != 0 ? bytes : 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  if (::posix_memalign(&memory, static_cast<std::size_t>(alignment), bytes) != 0) __builtin_trap();
  return memory;
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  void* memory = nullptr;
  return ::posix_memalign(&memory, static_cast<std::size_t>(alignment), bytes) == 0 ? memory : nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace std {
// Called by library templates where they would throw; their preconditions are ours to keep.
void __throw_length_error(const char*) { __builtin_trap(); }
void __throw_logic_error(const char*) { __builtin_trap(); }
void __throw_out_of_range_fmt(const char*, ...) { __builtin_trap(); }
void __throw_bad_array_new_length() { __builtin_trap(); }
void __throw_bad_alloc() { __builtin_trap(); }
void __throw_bad_optional_access() { __builtin_trap(); }
}  // namespace std
