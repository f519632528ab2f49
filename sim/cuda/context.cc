// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/context.h"

#include <utility>

#include "sim/cuda/memory.h"
#include "sim/cuda/mps.h"
#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

std::atomic<std::uint64_t> next_context_id{1};

// An MPS server has what its clients would have each: a client's context costs this part of another's.
constexpr std::uint64_t kClientContextPart = 4;

}  // namespace

Context::Context(Process& process, Device& device, unsigned flags, std::uint64_t bytes)
    : process_(process),
      device_(device),
      id_(next_context_id.fetch_add(1)),
      bytes_(bytes),
      flags_(flags),
      host_thread_(std::make_shared<HostThread>()) {}

cuda::CUresult Context::create(Process& process, Device& device, unsigned flags, std::shared_ptr<Context>* context) {
  Machine& machine = process.machine();
  std::uint64_t bytes = machine.settings().context_bytes;
  if (const std::uint64_t server = machine.own().server.load(); server != 0) {
    if (!machine.lives(server)) return cuda::CUDA_ERROR_MPS_RPC_FAILURE;
    if (is_in_fault(machine, server)) return cuda::CUDA_ERROR_MPS_SERVER_NOT_READY;
    bytes /= kClientContextPart;
  }
  if (!machine.reserve(device.gpu, bytes)) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  machine.context_opened(device.gpu);
  std::shared_ptr<Context> made(new Context(process, device, flags, bytes));
  made->legacy_ = std::make_shared<Stream>(made, cuda::CU_STREAM_DEFAULT, 0, true);
  made->channels_.make(process, device.gpu, made->kernels_, made->copies_);
  *context = std::move(made);
  return cuda::CUDA_SUCCESS;
}

void Context::destroy() {
  if (destroyed_.exchange(true)) return;
  synchronize();
  kernels_.wait_for_thaw();
  copies_.wait_for_thaw();
  channels_.free();
  for (const auto& stream : streams()) {
    process_.streams.remove(stream.get());
    stream->close();
  }
  host_thread_->close();
  std::set<std::uint64_t> owned;
  {
    const std::lock_guard lock(mutex_);
    streams_.clear();
    thread_streams_.clear();
    owned.swap(allocations_);
  }
  for (const std::uint64_t address : owned) free_allocation(process_, address);
  process_.forget_modules(*this);
  Machine& machine = process_.machine();
  // A client that a fault has reached counts on the GPU until it exits: the server waits for that.
  if (!is_client() || error() == cuda::CUDA_SUCCESS) machine.context_closed(device_.gpu);
  machine.release(device_.gpu, bytes_);
}

bool Context::is_client() const { return process_.machine().own().server.load() != 0; }

cuda::CUresult Context::error() {
  std::uint32_t known = error_.load();
  if (known == 0 && is_client()) {
    const std::uint32_t brought = mps_error(process_.machine(), device_.gpu);
    if (brought != 0 && error_.compare_exchange_strong(known, brought)) known = brought;
  }
  return static_cast<cuda::CUresult>(known);
}

void Context::fail(cuda::CUresult error) {
  std::uint32_t known = error_.load();
  if (known != 0) return;
  // The other clients first: a program that sees its fault knows that all have it.
  if (is_client()) spread_fault(process_.machine(), device_.gpu, error);
  error_.compare_exchange_strong(known, error);
}

std::shared_ptr<Stream> Context::thread_stream() {
  ThreadState& thread = thread_state();
  const std::lock_guard lock(mutex_);
  auto& stream = thread_streams_[thread.id];
  if (stream == nullptr) {
    stream = std::make_shared<Stream>(shared_from_this(), cuda::CU_STREAM_DEFAULT, 0, true);
    thread.contexts_with_stream.push_back(weak_from_this());
  }
  return stream;
}

void Context::drop_thread_stream(std::uint64_t thread) {
  const std::lock_guard lock(mutex_);
  const auto found = thread_streams_.find(thread);
  if (found == thread_streams_.end()) return;
  // The stream's remaining work stays ordered before later work of the legacy stream.
  found->second->close();
  streams_.insert(found->second);
  thread_streams_.erase(found);
}

std::shared_ptr<Stream> Context::create_stream(unsigned flags, int priority) {
  const bool blocking = (flags & cuda::CU_STREAM_NON_BLOCKING) == 0;
  auto stream = std::make_shared<Stream>(shared_from_this(), flags, priority, blocking);
  const std::lock_guard lock(mutex_);
  forget_streams();
  streams_.insert(stream);
  return stream;
}

void Context::remove_stream(const std::shared_ptr<Stream>& stream) {
  stream->close();
  const std::lock_guard lock(mutex_);
  forget_streams();
}

// A closed stream with work left is still waited for, and goes when others are made or closed after that.
void Context::forget_streams() {
  std::erase_if(streams_, [](const auto& stream) { return stream->over(); });
}

std::vector<std::shared_ptr<Stream>> Context::streams() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Stream>> all{legacy_};
  for (const auto& stream : streams_) all.push_back(stream);
  for (const auto& [thread, stream] : thread_streams_) all.push_back(stream);
  return all;
}

std::shared_ptr<Completion> Context::submit(Stream& stream, Operation operation) {
  operation.done = std::make_shared<Completion>();
  const std::shared_ptr<Completion> done = operation.done;
  const std::size_t given = operation.after.size();
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      operation.after.resize(given);
      const auto add = [&](const Stream& other) {
        auto tail = &other == &stream ? nullptr : other.tail();
        if (tail != nullptr && !tail->done()) operation.after.push_back(std::move(tail));
      };
      if (&stream == legacy_.get()) {
        for (const auto& other : streams_) {
          if (other->blocking()) add(*other);
        }
        for (const auto& [thread, other] : thread_streams_) add(*other);
      } else if (stream.blocking()) {
        add(*legacy_);
      }
      if (stream.push(operation)) return done;
    }
    stream.wait_for_room();
  }
}

std::vector<std::shared_ptr<Completion>> Context::pending() {
  std::vector<std::shared_ptr<Completion>> tails;
  for (const auto& stream : streams()) {
    if (auto tail = stream->tail(); tail != nullptr && !tail->done()) tails.push_back(std::move(tail));
  }
  return tails;
}

cuda::CUresult Context::synchronize() {
  for (const auto& tail : pending()) tail->wait();
  return error();
}

Accessor Context::accessor(bool copy_engine) const {
  const std::lock_guard lock(mutex_);
  return {device_.gpu, id_, peers_, copy_engine};
}

cuda::CUresult Context::enable_peer(std::uint64_t context) {
  const std::lock_guard lock(mutex_);
  auto peers = peers_ == nullptr ? std::make_shared<std::set<std::uint64_t>>()
                                 : std::make_shared<std::set<std::uint64_t>>(*peers_);
  if (!peers->insert(context).second) return cuda::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  peers_ = std::move(peers);
  return cuda::CUDA_SUCCESS;
}

cuda::CUresult Context::disable_peer(std::uint64_t context) {
  const std::lock_guard lock(mutex_);
  if (peers_ == nullptr || peers_->count(context) == 0) return cuda::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  auto peers = std::make_shared<std::set<std::uint64_t>>(*peers_);
  peers->erase(context);
  peers_ = std::move(peers);
  return cuda::CUDA_SUCCESS;
}

void Context::own(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  allocations_.insert(address);
}

bool Context::disown(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  return allocations_.erase(address) != 0;
}

}  // namespace gpumux::sim
