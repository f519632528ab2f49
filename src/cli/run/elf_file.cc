// SPDX-License-Identifier: Apache-2.0
#include "cli/run/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "os/file_descriptor.h"

namespace gpumux::cli {
namespace {

using base::Code;
using base::Result;

// Reads structures at offsets that the file itself names, so each read is checked.
class Image {
 public:
  explicit Image(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  bool read(std::uint64_t offset, T& target) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return false;
    std::memcpy(&target, bytes_.data() + offset, sizeof(T));
    return true;
  }

  // The zero-terminated text at `offset`; empty where there is none.
  std::string text(std::uint64_t offset) const {
    if (offset >= bytes_.size()) return {};
    const char* begin = reinterpret_cast<const char*>(bytes_.data()) + offset;
    return {begin, ::strnlen(begin, bytes_.size() - offset)};
  }

 private:
  std::span<const std::byte> bytes_;
};

// A table cannot have more entries than this: it bounds loops over a damaged file whose links run in circles.
constexpr int kMaxEntries = 100'000;

struct Dynamic {
  std::uint64_t strings = 0;        // file offset of the string table
  std::uint64_t version_needs = 0;  // file offset; 0: none
};

bool file_offset(const std::vector<Elf64_Phdr>& segments, std::uint64_t address, std::uint64_t& offset) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_LOAD || address < segment.p_vaddr || address - segment.p_vaddr >= segment.p_filesz)
      continue;
    offset = segment.p_offset + (address - segment.p_vaddr);
    return true;
  }
  return false;
}

bool read_dynamic(const Image& image, const std::vector<Elf64_Phdr>& segments, Dynamic& dynamic) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    std::uint64_t strings_address = 0;
    std::uint64_t needs_address = 0;
    for (std::uint64_t i = 0; i < kMaxEntries; ++i) {
      Elf64_Dyn entry{};
      if (!image.read(segment.p_offset + i * sizeof entry, entry)) return false;
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_STRTAB) strings_address = entry.d_un.d_ptr;
      if (entry.d_tag == DT_VERNEED) needs_address = entry.d_un.d_ptr;
    }
    if (strings_address != 0 && !file_offset(segments, strings_address, dynamic.strings)) return false;
    if (needs_address != 0 && !file_offset(segments, needs_address, dynamic.version_needs)) return false;
  }
  return true;
}

// The newest GLIBC_x.y of the version needs: a chain of files, each with a chain of versions.
std::string newest_glibc(const Image& image, const Dynamic& dynamic) {
  constexpr std::string_view kPrefix = "GLIBC_";
  std::string newest;
  int budget = kMaxEntries;
  std::uint64_t at = dynamic.version_needs;
  while (at != 0 && budget-- > 0) {
    Elf64_Verneed need{};
    if (!image.read(at, need)) break;
    std::uint64_t version_at = at + need.vn_aux;
    for (unsigned i = 0; i < need.vn_cnt && budget-- > 0; ++i) {
      Elf64_Vernaux version{};
      if (!image.read(version_at, version)) break;
      const std::string name = image.text(dynamic.strings + version.vna_name);
      if (name.starts_with(kPrefix) && name.size() > kPrefix.size() && name[kPrefix.size()] >= '0' &&
          name[kPrefix.size()] <= '9') {
        const std::string number = name.substr(kPrefix.size());
        if (newest.empty() || is_older_version(newest, number)) newest = number;
      }
      if (version.vna_next == 0) break;
      version_at += version.vna_next;
    }
    if (need.vn_next == 0) break;
    at += need.vn_next;
  }
  return newest;
}

}  // namespace

Result<ElfFile> parse_elf(std::span<const std::byte> bytes) {
  const Image image(bytes);
  unsigned char identity[EI_NIDENT];
  if (!image.read(0, identity) || std::memcmp(identity, ELFMAG, SELFMAG) != 0) {
    return base::fail(Code::kInvalid, "not an ELF file");
  }
  const unsigned char native_order = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
  if (identity[EI_DATA] != native_order) return base::fail(Code::kInvalid, "an ELF file of another byte order");
  ElfFile file;
  file.is_64_bit = identity[EI_CLASS] == ELFCLASS64;
  // Type and machine lie at the same place in both classes.
  Elf32_Half type_and_machine[2];
  if (!image.read(EI_NIDENT, type_and_machine)) return base::fail(Code::kInvalid, "an ELF file that was cut off");
  file.is_shared_object = type_and_machine[0] == ET_DYN;
  file.machine = type_and_machine[1];
  if (!file.is_64_bit) return file;

  Elf64_Ehdr header{};
  if (!image.read(0, header) || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return base::fail(Code::kInvalid, "an ELF file that was cut off");
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (!image.read(header.e_phoff + i * sizeof(Elf64_Phdr), segments[i])) {
      return base::fail(Code::kInvalid, "an ELF file that was cut off");
    }
  }
  Dynamic dynamic;
  if (!read_dynamic(image, segments, dynamic))
    return base::fail(Code::kInvalid, "an ELF file whose dynamic section is damaged");
  file.glibc = newest_glibc(image, dynamic);
  return file;
}

Result<ElfFile> read_elf(const std::string& path) {
  // O_NONBLOCK: a FIFO of that name must not stop us here.
  const os::FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return base::fail_errno(errno, "cannot open " + path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return base::fail_errno(errno, "cannot look at " + path);
  if (!S_ISREG(status.st_mode)) return base::fail(Code::kInvalid, path + " is not a regular file");
  if (static_cast<std::uint64_t>(status.st_size) > kMaxElfBytes)
    return base::fail(Code::kInvalid, path + " is larger than 256 MiB");
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno(errno, "cannot read " + path);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  bytes.resize(filled);
  auto parsed = parse_elf(bytes);
  if (!parsed) return base::fail(parsed.error().code, path + " is " + parsed.error().what);
  return parsed;
}

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_386: return "x86 32-bit";
    case EM_X86_64: return "x86-64";
    case EM_ARM: return "ARM 32-bit";
    case EM_AARCH64: return "ARM 64-bit";
    case EM_PPC64: return "POWER 64-bit";
    case EM_RISCV: return "RISC-V";
    default: return "machine " + std::to_string(machine);
  }
}

bool is_older_version(const std::string& a, const std::string& b) { return ::strverscmp(a.c_str(), b.c_str()) < 0; }

}  // namespace gpumux::cli
