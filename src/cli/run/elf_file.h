// SPDX-License-Identifier: Apache-2.0
// The dynamic loader's judgement of a file, without loading it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace gpumux::cli {

struct ElfFile {
  bool is_64_bit = false;
  bool is_shared_object = false;  // ET_DYN: a library, or a position-independent program
  std::uint16_t machine = 0;      // EM_X86_64, ...
  std::string glibc;              // the newest GLIBC_x.y that it asks for, "2.28"; empty: none
};

// The largest file that is read: libgpumux.so is under 10 MiB even with debugging information.
inline constexpr std::size_t kMaxElfBytes = 256u << 20;

// Any bytes are safe to pass. kInvalid: not an ELF file of this machine's byte order, or one whose tables lead outside
// of it.
base::Result<ElfFile> parse_elf(std::span<const std::byte> bytes);
base::Result<ElfFile> read_elf(const std::string& path);

// "x86-64", "ARM 64-bit", "machine 243".
std::string machine_name(std::uint16_t machine);

// Whether version "2.9" is older than "2.28".
bool is_older_version(const std::string& a, const std::string& b);

}  // namespace gpumux::cli
