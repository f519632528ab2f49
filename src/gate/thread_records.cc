// SPDX-License-Identifier: Apache-2.0
#include "gate/thread_records.h"

#include <pthread.h>

#include <new>

namespace gpumux::gate {

constinit MemoGeneration g_memo_generation;
constinit const std::atomic<std::uint32_t> g_closed_word{0};

[[gnu::tls_model("initial-exec")]] constinit thread_local ThreadRecord* t_record = nullptr;

namespace {

std::atomic<ThreadRecord*> g_first{nullptr};
pthread_once_t g_once = PTHREAD_ONCE_INIT;
pthread_key_t g_key;
bool g_have_key = false;

void give_back(void* pointer) {
  auto* record = static_cast<ThreadRecord*>(pointer);
  // Destructors of other libraries may still submit after this one; they get a record anew.
  t_record = nullptr;
  for (StreamMemo& memo : record->memos) memo = StreamMemo{};
  // A thread that has ended inside, in the driver's call (thread_records.h), leaves. Its streams are noted, so a drain
  // asks for its work. release: pairs with the acquire in Gate::is_anybody_inside.
  for (std::atomic<std::uint64_t>& passages : record->passages) {
    const std::uint64_t count = passages.load(std::memory_order_relaxed);
    if ((count & 1) != 0) passages.store(count + 1, std::memory_order_release);
  }
  record->holds.store(0, std::memory_order_relaxed);
  record->is_looking_up.store(false, std::memory_order_relaxed);
  record->taken.store(false, std::memory_order_release);  // pairs with the acquiring exchange in take_free_record
}

void make_key() { g_have_key = pthread_key_create(&g_key, give_back) == 0; }

ThreadRecord* take_free_record() {
  for (ThreadRecord* record = first_record(); record != nullptr;
       record = record->next.load(std::memory_order_relaxed)) {
    if (!record->taken.load(std::memory_order_relaxed) && !record->taken.exchange(true, std::memory_order_acquire))
      return record;
  }
  return nullptr;
}

}  // namespace

ThreadRecord* make_record() {
  pthread_once(&g_once, make_key);
  ThreadRecord* record = take_free_record();
  if (record == nullptr) {
    record = new (std::nothrow) ThreadRecord;
    if (record == nullptr) return nullptr;
    record->taken.store(true, std::memory_order_relaxed);
    ThreadRecord* first = g_first.load(std::memory_order_relaxed);
    do {
      record->next.store(first, std::memory_order_relaxed);
      // release: pairs with the acquire in first_record, so that a walker sees the record whole.
    } while (!g_first.compare_exchange_weak(first, record, std::memory_order_release, std::memory_order_relaxed));
  }
  if (g_have_key) pthread_setspecific(g_key, record);
  t_record = record;
  return record;
}

ThreadRecord* first_record() { return g_first.load(std::memory_order_acquire); }

void forget_threads_after_fork() {
  // The forking thread may be inside (a fork handler of the program's own that submits): it starts afresh like the
  // rest.
  t_record = nullptr;
  g_first.store(nullptr, std::memory_order_relaxed);
}

}  // namespace gpumux::gate
