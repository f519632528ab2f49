// SPDX-License-Identifier: Apache-2.0
#include "mover/process.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/limits.h"
#include "cuda/current_context.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "wire/encode.h"

namespace gpumux::mover {
namespace {

using namespace std::chrono_literals;

// Asked for at once: 10 ms of copying over one link, so that the next chunk is there before it is needed.
constexpr std::uint64_t kAskFor = 512 * kMebibyte;
// The daemon may have none. A guess.
constexpr base::Duration kAskAgain = 20ms;
constexpr base::Duration kLook = 1s;
// Longer than a round of turns, as the daemon's own (daemon/tenants/host_memory.h).
constexpr std::size_t kKeptLooks = 60;
// Chunks that go back before the daemon is heard again. Each takes some tens of milliseconds.
constexpr int kMostGivenBack = 8;

}  // namespace

// ---- host memory

std::optional<HostChunk> Process::Lender::lend() {
  const std::int64_t now = os::now().time_since_epoch().count();
  std::int64_t before = process_.asked_at_.load();
  if (now - before >= base::Duration(kAskAgain).count() && process_.asked_at_.compare_exchange_strong(before, now))
    process_.send(wire::MoverHostWanted{.bytes = kAskFor});
  return std::nullopt;
}

void Process::Lender::give_back(const HostChunk& chunk) {
  if (process_.is_ending_.load()) return;  // it has content, which the next mover needs
  ::munmap(chunk.address, chunk.bytes);
  {
    const std::lock_guard lock(process_.connection_mutex_);
    process_.host_files_.erase(chunk.id);
  }
  process_.send(wire::MoverHostReturned{.number = chunk.id});
}

void Process::look() {
  doors_.end_unused([this](std::uint64_t account) {
    return std::any_of(seats_.begin(), seats_.end(),
                       [account](const auto& one) { return one.second.seat.account == account; });
  });
  if (!host_) return;
  used_lately_.push_back(host_->used_bytes());
  if (used_lately_.size() > kKeptLooks) used_lately_.pop_front();
}

// Host memory beyond the most that was in use in the last minute goes back, a few chunks at a time. True: there may be
// more.
bool Process::shrink_host() {
  if (used_lately_.empty()) return false;
  const std::uint64_t keep = *std::max_element(used_lately_.begin(), used_lately_.end()) + kAskFor;
  if (host_->borrowed_bytes() <= keep || gpus_.empty()) return false;
  cuda::CUcontext context = nullptr;
  const cuda::CUdevice device = gpus_.front()->device;
  if (driver_.cuDevicePrimaryCtxRetain(&context, device) != cuda::CUDA_SUCCESS) return false;
  bool gives_back = false;
  {
    const cuda::CurrentContext current(driver_, context);
    for (int i = 0; i < kMostGivenBack && (i == 0 || gives_back); ++i) gives_back = host_->shrink(keep);
  }
  driver_.cuDevicePrimaryCtxRelease_v2(device);
  return gives_back;
}

// ---- the daemon

template <class Message>
void Process::send(const Message& message, os::FileDescriptor file) {
  const std::lock_guard lock(connection_mutex_);
  if (!connection_) return;
  const auto encoded = wire::encode(message);
  const auto bytes = encoded.bytes();
  if (unsent_.empty() && os::send_message(connection_.get(), bytes, file.get())) return;
  // This process asks for host memory again, and the daemon asks again. The others are said only once.
  if constexpr (std::is_same_v<Message, wire::MoverHostReturned> || std::is_same_v<Message, wire::MoverConnected>)
    unsent_.push_back({{bytes.begin(), bytes.end()}, std::make_shared<os::FileDescriptor>(std::move(file))});
}

// Under the mutex.
void Process::flush() {
  while (!unsent_.empty()) {
    const Unsent& next = unsent_.front();
    // A daemon that is gone is found by `hear`.
    if (!os::send_message(connection_.get(), next.bytes, next.file ? next.file->get() : -1)) return;
    unsent_.pop_front();
  }
}

bool Process::has_daemon() {
  const std::lock_guard lock(connection_mutex_);
  return static_cast<bool>(connection_);
}

void Process::leave_daemon() {
  const std::lock_guard lock(connection_mutex_);
  connection_.reset();
  unsent_.clear();
}

// Under the mutex. The next daemon reads all of it before it says anything.
void Process::hand_over() {
  const auto say = [this](const auto& message, std::shared_ptr<const os::FileDescriptor> file) {
    const auto encoded = wire::encode(message);
    const auto bytes = encoded.bytes();
    unsent_.push_back({{bytes.begin(), bytes.end()}, std::move(file)});
  };
  if (books_) {
    say(wire::MoverBooks{.slots = books_->slots(), .slots_per_chunk = books_->slots_per_chunk()}, books_file_);
    const std::uint64_t bytes = books_->slots_per_chunk() * kBlockBytes;
    for (const auto& [number, file] : host_files_) say(wire::MoverHost{.number = number, .bytes = bytes}, file);
    for (const auto& [number, known] : seats_) say(known.seat, nullptr);
  }
  say(wire::MoverReady{.answers = 1, .connects = 1}, nullptr);
}

// The next daemon has the lock of the folder that the door is in. So the last one is gone, even if it is still heard.
// Chunks that go back from now on are said after all chunks that there were at this moment.
void Process::open_door() {
  os::FileDescriptor next = os::accept_connection(door_.get());
  const auto peer = next ? os::peer_credentials(next.get()) : base::Result<os::PeerCredentials>({});
  if (!next || !peer || peer->uid != ::geteuid()) return;
  {
    const std::lock_guard lock(connection_mutex_);
    connection_ = std::move(next);
    unsent_.clear();
    hand_over();
    flush();
  }
  asked_at_.store(0);
}

// The daemon has bound it, as it has the folder's lock. Its name may be another mover's by now. The kernel tells the
// next daemon which process listens.
base::Status Process::on(const wire::MoverDoor&, os::FileDescriptor door) {
  if (!door || ::listen(door.get(), 1) != 0)
    return base::fail(base::Code::kProtocol, "the daemon gives a door that cannot be listened at");
  door_ = std::move(door);
  return {};
}

base::Status Process::on(const wire::MoverBooks& books, os::FileDescriptor file) {
  if (books_) return base::fail(base::Code::kProtocol, "the daemon gives the books twice");
  auto opened = Books::open(file.get(), books.slots, books.slots_per_chunk);
  if (!opened) return tl::unexpected(opened.error());
  books_file_ = std::make_shared<os::FileDescriptor>(std::move(file));
  books_.emplace(std::move(*opened));
  keeper_.emplace(*books_);
  host_.emplace(driver_, lender_, &*keeper_);
  return {};
}

base::Status Process::on(const wire::MoverHost& host, os::FileDescriptor file) {
  if (!host_ || host.bytes == 0 || host.bytes % kBlockBytes != 0)
    return base::fail(base::Code::kProtocol, "the daemon gives host memory before the books, or none");
  // Huge pages are mapped as such only where addresses are multiples of theirs.
  void* const room =
      ::mmap(nullptr, host.bytes + kBlockBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return base::fail_errno(errno, "cannot reserve addresses for host memory");
  const auto first = reinterpret_cast<std::uintptr_t>(room);
  const std::uintptr_t at = (first + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  if (at != first) ::munmap(room, at - first);
  if (const std::uintptr_t rest = first + kBlockBytes - at; rest != 0)
    ::munmap(reinterpret_cast<void*>(at + host.bytes), rest);
  void* const memory =
      ::mmap(reinterpret_cast<void*>(at), host.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0);
  if (memory == MAP_FAILED) return base::fail_errno(errno, "cannot map host memory");
  if (!adopt(*host_, *books_, {static_cast<std::byte*>(memory), host.bytes, host.number}))
    return base::fail(base::Code::kProtocol, "the books have no room for a chunk of host memory");
  {
    const std::lock_guard lock(connection_mutex_);
    host_files_[host.number] = std::make_shared<os::FileDescriptor>(std::move(file));
  }
  asked_at_.store(0);
  return {};
}

base::Status Process::on(const wire::MoverSeat& seat, os::FileDescriptor) {
  if (!host_) return base::fail(base::Code::kProtocol, "the daemon gives a seat before the books");
  seats_.try_emplace(seat.seat, Known{nullptr, seat});
  if (seat.connects != 0) send(wire::MoverConnected{.seat = seat.seat}, connect(seat));
  // The next mover has a starter, and knows all that was saved.
  if (doors_.is_broken()) return base::fail(base::Code::kUnavailable, "the starter of doorkeepers has ended");
  return {};
}

// The seat's end of a new connection. None: its GPU is not there, or its account gets none now.
os::FileDescriptor Process::connect(const wire::MoverSeat& seat) {
  int count = 0;
  driver_.cuDeviceGetCount(&count);
  for (int i = 0; i < count; ++i) {
    cuda::CUdevice device = 0;
    cuda::CUuuid uuid{};
    if (driver_.cuDeviceGet(&device, i) != cuda::CUDA_SUCCESS ||
        driver_.cuDeviceGetUuid(&uuid, device) != cuda::CUDA_SUCCESS ||
        std::memcmp(&uuid, seat.gpu_uuid, sizeof seat.gpu_uuid) != 0)
      continue;
    auto made = doors_.open(seat.account);
    if (!made) return {};
    auto gpu = std::find_if(gpus_.begin(), gpus_.end(), [&](const auto& one) { return one->device == device; });
    if (gpu == gpus_.end()) gpu = gpus_.insert(gpu, std::make_unique<Gpu>(*this, device));
    seats_[seat.seat] = {gpu->get(), seat};
    (*gpu)->post(
        NewSeat{seat.seat, std::move(made->relay), std::move(made->presence), seat.domain, seat.account, seat.most});
    return std::move(made->seat);
  }
  return {};
}

base::Status Process::on(const wire::MoverSeatGone& gone, os::FileDescriptor) {
  if (!host_) return base::fail(base::Code::kProtocol, "the daemon ends a seat before the books");
  const auto found = seats_.find(gone.seat);
  if (found == seats_.end()) return {};
  if (found->second.gpu != nullptr) {
    found->second.gpu->post(SeatGone{gone.seat});
  } else {
    forget(gone.seat);
  }
  seats_.erase(found);
  return {};
}

base::Status Process::on(const wire::MoverBound& bound, os::FileDescriptor) {
  const auto found = seats_.find(bound.seat);
  if (found != seats_.end() && found->second.gpu != nullptr) found->second.gpu->post(SeatBound{bound.seat, bound.most});
  return {};
}

base::Status Process::on(const wire::MoverSeats&, os::FileDescriptor) {
  if (!host_) return base::fail(base::Code::kProtocol, "the daemon names no books");
  for (const SeatNumber seat : books_->owners()) {
    if (!seats_.contains(seat)) forget(seat);
  }
  return {};
}

base::Status Process::on(const wire::MoverAsked&, os::FileDescriptor) {
  std::uint32_t still = 0;
  for (const auto& gpu : gpus_) {
    if (gpu->is_asked.exchange(true)) {
      ++still;
    } else {
      gpu->post(Question{});
    }
  }
  send(wire::MoverAnswered{.still_gpus = still, .ending_doorkeepers = static_cast<std::uint32_t>(doors_.ending())});
  return {};
}

// No worker has this seat.
void Process::forget(SeatNumber seat) {
  const std::uint32_t count = books_->slots_per_chunk();
  for (std::uint32_t slot = 0; slot < books_->slots(); ++slot) {
    if (books_->take(slot, seat)) host_->give(host_->find(slot / count, slot % count));
  }
}

base::Status Process::hear() {
  alignas(8) std::byte buffer[base::kMaxMessageBytes];
  for (;;) {
    auto received = os::receive_message(connection_.get(), buffer);
    if (!received && received.error().system_errno == EAGAIN) return {};
    if (!received || received->bytes == 0) {
      leave_daemon();
      return {};
    }
    const auto message = wire::decode_from_movers_daemon(std::span(buffer, received->bytes));
    if (!message) return tl::unexpected(message.error());
    GPUMUX_TRY(std::visit([&](const auto& what) { return on(what, std::move(received->fd)); }, *message));
  }
}

bool Process::has_seats() {
  return std::any_of(gpus_.begin(), gpus_.end(), [](const auto& gpu) { return gpu->seats.load() != 0; });
}

base::Status Process::run() {
  send(wire::MoverReady{.answers = 1, .connects = 1});
  base::Status done = serve();
  is_ending_.store(true);
  return done;
}

base::Status Process::serve() {
  // The daemon is heard in between.
  bool has_more = false;
  while (has_daemon() || has_seats()) {
    pollfd polled[]{{connection_.get(), POLLIN, 0}, {door_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(connection_mutex_);
      if (!unsent_.empty()) polled[0].events |= POLLOUT;
    }
    const base::Duration most = has_more ? base::Duration::zero() : base::Duration(kLook);
    ::poll(polled, 2, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(most).count()));
    if (has_daemon()) GPUMUX_TRY(hear());
    {
      const std::lock_guard lock(connection_mutex_);
      flush();
    }
    if (polled[1].revents != 0) open_door();
    if (const base::TimePoint now = os::now(); now >= next_look_) {
      next_look_ = now + kLook;
      look();
    }
    has_more = shrink_host();
  }
  return {};
}

Process::~Process() {
  is_ending_.store(true);
  gpus_.clear();
}

// ---- one GPU

Process::Gpu::Gpu(Process& its_process, cuda::CUdevice its_device)
    : process(its_process),
      device(its_device),
      wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread([this] { run(); }) {}

Process::Gpu::~Gpu() {
  stopping.store(true);
  ::eventfd_write(wake.get(), 1);
  thread.join();
}

void Process::Gpu::post(Mail one) {
  {
    const std::lock_guard lock(mutex);
    if (std::holds_alternative<NewSeat>(one)) seats.fetch_add(1);
    mail.push_back(std::move(one));
  }
  ::eventfd_write(wake.get(), 1);
}

void Process::Gpu::run() {
  pthread_setname_np(pthread_self(), ("gpu-" + std::to_string(device)).c_str());
  Worker worker(process.driver_, device, *process.host_, *process.books_);
  while (!stopping.load()) {
    eventfd_t ignored = 0;
    ::eventfd_read(wake.get(), &ignored);
    std::deque<Mail> taken;
    {
      const std::lock_guard lock(mutex);
      taken.swap(mail);
    }
    bool is_asked_now = false;
    for (Mail& one : taken) {
      if (auto* const seat = std::get_if<NewSeat>(&one)) {
        worker.bound(seat->seat, seat->most);
        worker.add(seat->seat, std::move(seat->relay), seat->domain, std::move(seat->presence), seat->account);
      }
      if (const auto* const bound = std::get_if<SeatBound>(&one)) worker.bound(bound->seat, bound->most);
      if (const auto* const gone = std::get_if<SeatGone>(&one)) worker.remove(gone->seat);
      is_asked_now = is_asked_now || std::holds_alternative<Question>(one);
    }
    const auto next = worker.step(os::now());
    if (is_asked_now) is_asked.store(false);
    // The daemon starts another one, which knows all that was saved.
    if (worker.is_broken()) ::_exit(3);
    {
      const std::lock_guard lock(mutex);
      const auto waiting =
          std::ranges::count_if(mail, [](const Mail& one) { return std::holds_alternative<NewSeat>(one); });
      seats.store(worker.seats() + static_cast<std::size_t>(waiting));
    }
    worker.wait(next, wake.get());
  }
}

}  // namespace gpumux::mover
