// SPDX-License-Identifier: Apache-2.0
// The third door: a program asks the driver for a function by name, version and kind of default stream, and each
// combination is another function. The driver answers first; only what it does have is replaced.
#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"

namespace gpumux::shim::hooks {
namespace {

constexpr std::uint64_t kPerThreadFlag = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

// Only what the table knows by its very address is replaced. A newer driver may give a newer version of a function
// under a name that we know: ours would have another prototype.
void replace(const char* symbol, void** function, int cuda_version, std::uint64_t flags) {
  if (symbol == nullptr || function == nullptr || *function == nullptr) return;
  const auto entry = find_versioned(symbol, static_cast<unsigned>(cuda_version), (flags & kPerThreadFlag) != 0);
  if (!entry || *function != address_of(driver(), *entry)) {
    // An entry whose prototype is not known has no address in the table, and is passed on by choice.
    if (entry && address_of(driver(), *entry) == nullptr) return;
    if (Tenant* const mine = tenant_if_any()) mine->report_unknown_entry(symbol);
    return;
  }
  if (const void* ours = export_of(*entry)) *function = const_cast<void*>(ours);
}

}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** function, int cuda_version, std::uint64_t flags) {
  const CUresult result = driver().cuGetProcAddress(symbol, function, cuda_version, flags);
  if (result == CUDA_SUCCESS) replace(symbol, function, cuda_version, flags);
  return result;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version, std::uint64_t flags,
                             CUdriverProcAddressQueryResult* symbol_status) {
  const CUresult result = driver().cuGetProcAddress_v2(symbol, function, cuda_version, flags, symbol_status);
  if (result == CUDA_SUCCESS) replace(symbol, function, cuda_version, flags);
  return result;
}

}  // namespace gpumux::shim::hooks
