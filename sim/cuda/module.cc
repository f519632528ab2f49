// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/module.h"

#include <cctype>
#include <cstring>
#include <string_view>

#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

// A fat binary as nvcc embeds it: a wrapper that points to a container, which is a header and then entries of one image
// each.
struct FatWrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const void* container;
  const void* unused;
};
struct FatContainer {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t bytes;  // of what follows the header
};
struct FatEntry {
  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  std::uint32_t compressed_bytes;  // 0: not compressed
};
constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kContainerMagic = 0xba55ed50;
constexpr std::uint16_t kPtxKind = 1;

bool part_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$'; }

// Comments would otherwise be able to hide or show entries.
std::string without_comments(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.compare(i, 2, "/*") == 0) {
      const std::size_t end = text.find("*/", i + 2);
      i = end == std::string_view::npos ? text.size() : end + 2;
    } else {
      clean.push_back(text[i++]);
    }
  }
  return clean;
}

cuda::CUresult read_ptx(std::string_view raw, std::vector<std::string>* entries) {
  const std::string text = without_comments(raw);
  if (text.find(".version") == std::string::npos || text.find(".target") == std::string::npos)
    return cuda::CUDA_ERROR_INVALID_PTX;
  constexpr std::string_view kWord = ".entry";
  for (std::size_t at = text.find(kWord); at != std::string::npos; at = text.find(kWord, at)) {
    at += kWord.size();
    std::size_t start = at;
    while (start < text.size() && std::isspace(static_cast<unsigned char>(text[start])) != 0) ++start;
    std::size_t end = start;
    while (end < text.size() && part_of_name(text[end])) ++end;
    if (start == at || end == start) return cuda::CUDA_ERROR_INVALID_PTX;
    entries->emplace_back(text, start, end - start);
    at = end;
  }
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult read_container(const void* image, std::vector<std::string>* entries) {
  FatContainer container;
  std::memcpy(&container, image, sizeof container);
  const auto* at = static_cast<const char*>(image) + container.header_bytes;
  std::uint64_t left = container.bytes;
  while (left >= sizeof(FatEntry)) {
    FatEntry entry;
    std::memcpy(&entry, at, sizeof entry);
    if (entry.header_bytes < sizeof entry || entry.header_bytes > left || entry.bytes > left - entry.header_bytes)
      break;
    if (entry.kind == kPtxKind && entry.compressed_bytes == 0) {
      return read_ptx(std::string_view(at + entry.header_bytes, ::strnlen(at + entry.header_bytes, entry.bytes)),
                      entries);
    }
    at += entry.header_bytes + entry.bytes;
    left -= entry.header_bytes + entry.bytes;
  }
  return cuda::CUDA_ERROR_NO_BINARY_FOR_GPU;
}

}  // namespace

cuda::CUresult read_image(const void* image, std::vector<std::string>* entries) {
  if (image == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  std::uint32_t magic = 0;
  // Text may be shorter than a magic number.
  const auto* text = static_cast<const char*>(image);
  for (std::size_t i = 0; i < sizeof magic; ++i) {
    if (text[i] == '\0' && i == 0) return cuda::CUDA_ERROR_INVALID_IMAGE;
    magic |= static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])) << (8 * i);
    if (text[i] == '\0') break;
  }
  if (magic == kWrapperMagic) {
    FatWrapper wrapper;
    std::memcpy(&wrapper, image, sizeof wrapper);
    return read_container(wrapper.container, entries);
  }
  if (magic == kContainerMagic) return read_container(image, entries);
  constexpr std::uint32_t kElfMagic = 0x464c457f;
  if (magic == kElfMagic) return cuda::CUDA_ERROR_NO_BINARY_FOR_GPU;
  return read_ptx(text, entries);
}

std::shared_ptr<Function> find_function(Process& process, const void* handle) { return process.functions.find(handle); }

void Process::forget_modules(const Context& context) {
  for (const auto& module : modules.all()) {
    if (module->context.lock().get() != &context) continue;
    for (const auto& function : module->functions) functions.remove(function.get());
    modules.remove(module.get());
  }
}

}  // namespace gpumux::sim
