// SPDX-License-Identifier: Apache-2.0
// Fuzzes the texts that the hook reads: the runtime's state and configuration, the kernel's list of mounts, an image's
// list. The first byte chooses; the rest is the text.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "kubernetes/hook/image.h"
#include "kubernetes/hook/root_mount.h"
#include "kubernetes/hook/runtime_state.h"
#include "os/preload_list.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpumux;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0: {
      const auto state = kubernetes::parse_state(text);
      if (state && (state->bundle.front() != '/' || state->bundle.find('\0') != std::string::npos)) std::abort();
      break;
    }
    case 1: {
      const auto root = kubernetes::root_of(text, "/bundle");
      if (root && (root->path.front() != '/' || root->path.find('\0') != std::string::npos)) std::abort();
      break;
    }
    case 2: {
      for (const bool is_mount_point : {false, true})
        static_cast<void>(kubernetes::find_root_mount(text, 41, is_mount_point));
      break;
    }
    case 3: {
      // The library that is added is an entry, and the last one, whatever the image's comments are.
      constexpr char kLibrary[] = "/opt/libgpumux.so";
      const auto entries = os::file_entries(kubernetes::with_entry(text, kLibrary));
      if (entries.empty() || entries.back() != kLibrary) std::abort();
      break;
    }
    default: static_cast<void>(kubernetes::is_too_old(text));
  }
  return 0;
}
