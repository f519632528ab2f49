// SPDX-License-Identifier: Apache-2.0
#include "os/imported_function.h"

#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>

namespace gpumux::os {
namespace {

using base::Code;

#if defined(__x86_64__)
constexpr std::uint32_t kSlotTypes[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#elif defined(__aarch64__)
constexpr std::uint32_t kSlotTypes[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#endif

// As much of a loaded library as is needed to find its slots.
struct Library {
  std::uintptr_t base = 0;
  const ElfW(Dyn) * dynamic = nullptr;
  std::uintptr_t relro_begin = 0;  // read-only since the loader has filled it; both 0: there is none
  std::uintptr_t relro_end = 0;
};

struct Search {
  std::uintptr_t inside;
  Library found;
};

bool contains(const dl_phdr_info& info, std::uintptr_t address) {
  return std::any_of(info.dlpi_phdr, info.dlpi_phdr + info.dlpi_phnum, [&](const ElfW(Phdr) & header) {
    return header.p_type == PT_LOAD && address - (info.dlpi_addr + header.p_vaddr) < header.p_memsz;
  });
}

int look_at(dl_phdr_info* info, std::size_t, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  if (!contains(*info, search.inside)) return 0;
  Library& library = search.found;
  library.base = info->dlpi_addr;
  for (const auto& header : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    switch (header.p_type) {
      case PT_DYNAMIC: library.dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin); break;
      case PT_GNU_RELRO:
        library.relro_begin = begin;
        library.relro_end = begin + header.p_memsz;
        break;
      default: break;
    }
  }
  return 1;
}

struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  std::span<const ElfW(Rela)> data;
  std::span<const ElfW(Rela)> calls;
  bool is_bound_at_once = false;  // otherwise a slot of `calls` may lead to the loader until its first use
};

Tables tables_of(const Library& library) {
  // glibc has made these addresses of what is file offsets in the file; other loaders leave them.
  const auto at = [&](const ElfW(Dyn) & entry) {
    return entry.d_un.d_ptr < library.base ? library.base + entry.d_un.d_ptr : std::uintptr_t{entry.d_un.d_ptr};
  };
  Tables tables;
  std::uintptr_t data = 0;
  std::uintptr_t calls = 0;
  std::size_t data_bytes = 0;
  std::size_t call_bytes = 0;
  for (const ElfW(Dyn)* entry = library.dynamic; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_SYMTAB: tables.symbols = reinterpret_cast<const ElfW(Sym)*>(at(*entry)); break;
      case DT_STRTAB: tables.strings = reinterpret_cast<const char*>(at(*entry)); break;
      case DT_RELA: data = at(*entry); break;
      case DT_RELASZ: data_bytes = entry->d_un.d_val; break;
      case DT_JMPREL: calls = at(*entry); break;
      case DT_PLTRELSZ: call_bytes = entry->d_un.d_val; break;
      case DT_BIND_NOW: tables.is_bound_at_once = true; break;
      case DT_FLAGS: tables.is_bound_at_once |= (entry->d_un.d_val & DF_BIND_NOW) != 0; break;
      case DT_FLAGS_1: tables.is_bound_at_once |= (entry->d_un.d_val & DF_1_NOW) != 0; break;
      default: break;
    }
  }
  const auto span = [](std::uintptr_t begin, std::size_t bytes) {
    if (begin == 0) return std::span<const ElfW(Rela)>{};
    return std::span(reinterpret_cast<const ElfW(Rela)*>(begin), bytes / sizeof(ElfW(Rela)));
  };
  tables.data = span(data, data_bytes);
  tables.calls = span(calls, call_bytes);
  return tables;
}

bool is_slot(std::uint64_t info) {
  for (const std::uint32_t type : kSlotTypes) {
    if (ELF64_R_TYPE(info) == type) return true;
  }
  return false;
}

base::Status write_slot(const Library& library, std::uintptr_t slot, const void* value) {
  const std::uintptr_t page = ::getauxval(AT_PAGESZ);  // Debian takes sysconf for a new function of glibc 2.34
  auto* const first = reinterpret_cast<void*>(slot & ~(page - 1));
  // The loader protects whole pages only, from the first to before the last one that it does not fill.
  const bool is_protected = slot >= (library.relro_begin & ~(page - 1)) && slot < (library.relro_end & ~(page - 1));
  if (is_protected && ::mprotect(first, page, PROT_READ | PROT_WRITE) != 0)
    return base::fail_errno(errno, "cannot make a library's table writable");
  // release: a thread that calls through it finds all that the replacement needs.
  __atomic_store_n(reinterpret_cast<const void**>(slot), value, __ATOMIC_RELEASE);
  if (is_protected) ::mprotect(first, page, PROT_READ);  // writable as it is in other libraries, if that fails
  return {};
}

}  // namespace

base::Result<FormerImport> replace_import(const void* inside, const char* name, const void* replacement) {
  Search search{.inside = reinterpret_cast<std::uintptr_t>(inside), .found = {}};
  if (::dl_iterate_phdr(look_at, &search) == 0) return base::fail(Code::kNotFound, "no loaded library is there");
  const Library& library = search.found;
  if (library.dynamic == nullptr) return base::fail(Code::kUnsupported, "the library imports nothing");
  const Tables tables = tables_of(library);
  if (tables.symbols == nullptr || tables.strings == nullptr)
    return base::fail(Code::kUnsupported, "the library has no table of symbols");
  FormerImport former;
  for (const auto relocations : {tables.calls, tables.data}) {
    const bool is_filled = relocations.data() == tables.data.data() || tables.is_bound_at_once;
    for (const auto& relocation : relocations) {
      if (!is_slot(relocation.r_info)) continue;
      const ElfW(Sym)& symbol = tables.symbols[ELF64_R_SYM(relocation.r_info)];
      if (std::strcmp(tables.strings + symbol.st_name, name) != 0) continue;
      const std::uintptr_t slot = library.base + relocation.r_offset;
      // A slot that may lead to the loader is not called: the loader would fill the slot again.
      if (is_filled) former.function = __atomic_load_n(reinterpret_cast<const void**>(slot), __ATOMIC_ACQUIRE);
      GPUMUX_TRY(write_slot(library, slot, replacement));
      ++former.slots;
    }
  }
  return former;
}

}  // namespace gpumux::os
