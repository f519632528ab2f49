// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/lease_page_view.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "os/futex.h"
#include "os/system_clock.h"
#include "wire/lease_page.h"

namespace gpumux::daemon {
namespace {

constexpr std::uint64_t kStatBlock = 512;  // of st_blocks

// One huge page: as many pages as a page holds entries.
std::uint64_t max_page_memory() {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return page * (page / sizeof(std::uint64_t));
}

}  // namespace

void LeasePageView::Unmap::operator()(wire::LeasePage* page) const { ::munmap(page, wire::kLeasePageBytes); }

base::Result<LeasePageView> LeasePageView::map(int fd) {
  using base::Code;
  if (fd < 0) return base::fail(Code::kInvalid, "no lease page came with the first message");
  // Only memory files keep seals. A GPU's memory fails here; anything else has not passed the doorkeeper.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return base::fail(Code::kInvalid, "the lease page is not a memory file that can be sealed");
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  // Without them the tenant could cut the file under our mapping, and our next store would be a SIGBUS.
  if ((seals & kNeeded) != kNeeded) return base::fail(Code::kInvalid, "the lease page is not sealed");
  struct stat status {};
  struct statfs filesystem {};
  if (::fstat(fd, &status) != 0 || ::fstatfs(fd, &filesystem) != 0) {
    return base::fail_errno(errno, "cannot look at the lease page");
  }
  if (!S_ISREG(status.st_mode) || status.st_size != static_cast<off_t>(wire::kLeasePageBytes)) {
    return base::fail(Code::kInvalid, "the lease page has " + std::to_string(status.st_size) + " bytes instead of " +
                                          std::to_string(wire::kLeasePageBytes));
  }
  // A huge-page file can run out of pages, which would be a SIGBUS again.
  if (filesystem.f_type != TMPFS_MAGIC) return base::fail(Code::kInvalid, "the lease page is not on tmpfs");
  // The loop gives the file's memory back with its mapping. Beyond its end there may be any amount.
  if (static_cast<std::uint64_t>(status.st_blocks) * kStatBlock > max_page_memory())
    return base::fail(Code::kInvalid, "the lease page holds more memory than it shows");
  void* memory = ::mmap(nullptr, wire::kLeasePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) return base::fail_errno(errno, "cannot map the lease page");
  LeasePageView view;
  view.page_.reset(static_cast<wire::LeasePage*>(memory));
  view.sequence_ = static_cast<std::uint32_t>(os::now().time_since_epoch().count()) & wire::kSequenceMask;
  return view;
}

void LeasePageView::store(std::size_t slot, std::uint32_t flags) {
  sequence_ += wire::kSequenceOne;
  auto& word = page_->slots[slot].word;
  // Release pairs with the acquire load of the tenant's gate: a thread that sees the grant sees its epoch.
  word.store(flags | sequence_, std::memory_order_release);
  os::futex_wake(word, os::FutexScope::kShared);
}

void LeasePageView::grant(std::size_t slot, base::LeaseEpoch epoch, bool exclusive, bool contended) {
  wire::LeaseSlot& at = page_->slots[slot];
  // The epoch changes only under a word that is not granted (lease_page.h). A tenant that is about to release the lease
  // before must not take it for this one. Release pairs with the acquire load of the epoch in Gate::close_if_granted: a
  // thread that sees the new epoch sees that word, or a later one.
  sequence_ += wire::kSequenceOne;
  at.word.store(sequence_, std::memory_order_relaxed);
  at.epoch.store(epoch.value, std::memory_order_release);
  store(slot, wire::kGranted | (exclusive ? wire::kExclusive : 0u) | (contended ? wire::kContended : 0u));
}

void LeasePageView::revoke(std::size_t slot) { store(slot, 0); }

void LeasePageView::set_contended(std::size_t slot, bool contended) {
  // No thread sleeps on a granted word, so none is woken. Pairs with nothing: the bit is a hint.
  if (contended) {
    page_->slots[slot].word.fetch_or(wire::kContended, std::memory_order_relaxed);
  } else {
    page_->slots[slot].word.fetch_and(~wire::kContended, std::memory_order_relaxed);
  }
}

void LeasePageView::heads_up(std::size_t slot) {
  auto& word = page_->slots[slot].word;
  // Relaxed: a hint, under which nothing is read. One is woken: one launch is the first.
  word.fetch_or(wire::kImminent, std::memory_order_relaxed);
  os::futex_wake(word, os::FutexScope::kShared, 1);
}

std::uint64_t LeasePageView::submissions(std::size_t slot) const {
  return page_->slots[slot].submissions.load(std::memory_order_relaxed);
}

}  // namespace gpumux::daemon
