// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/node_mover.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "daemon/loop/log.h"
#include "os/pidfd.h"
#include "os/spawn.h"
#include "os/unix_socket.h"
#include "wire/encode.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

// Before the next start of a mover that has served, and the longest after failures. Both are guesses: a start costs
// half a second of one core, and a person who has put it right waits half a minute at most.
constexpr base::Duration kRestartPause = 500ms;
constexpr base::Duration kLongestRestartPause = 30s;
// A mover that does not read gets no further seats: those move their memory themselves. A seat costs two messages at
// most. A guess.
constexpr std::size_t kMostUnsent = 1024;
// Of an entry in the books (mover/books.h), rounded up.
constexpr std::uint64_t kMostBytesPerSlot = 64;
constexpr std::uint64_t kSlotBytes = std::uint64_t{2} << 20;

// The daemon's, without what would make the mover a tenant, or hide GPUs from it.
std::vector<std::string> environment() {
  std::vector<std::string> kept{"GPUMUX_DISABLE=1"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const bool is_ours = text.starts_with("GPUMUX_") && !text.starts_with("GPUMUX_SIM_");
    if (!is_ours && !text.starts_with("CUDA_") && !text.starts_with("LD_PRELOAD=")) kept.emplace_back(text);
  }
  return kept;
}

}  // namespace

NodeMover::NodeMover(asio::io_context& io, HostMemory& host, std::string program)
    : io_(io), host_(host), program_(std::move(program)), socket_(io), again_(io), pause_(kRestartPause) {
  host_.has({kBorrower, 0}, host_.budget());
}

NodeMover::~NodeMover() {
  // It goes on without this daemon, unless it has ended by now.
  std::visit(
      [](const auto& state) {
        if constexpr (requires { state.process; }) {
          if (state.process != 0) ::waitpid(state.process, nullptr, WNOHANG);
        }
      },
      state_);
}

// ---- the process

base::Result<pid_t> NodeMover::start() {
  if (!books_) {
    slots_ =
        static_cast<std::uint32_t>((host_.budget() / host_.chunk_bytes() + 1) * (host_.chunk_bytes() / kSlotBytes));
    os::FileDescriptor books(::memfd_create("gpumux-books", MFD_CLOEXEC));
    if (!books || ::ftruncate(books.get(), static_cast<off_t>(slots_ * kMostBytesPerSlot)) != 0)
      return base::fail_errno(errno, "cannot make the books of host memory");
    books_ = std::move(books);
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return base::fail_errno(errno, "cannot make a connection to the mover");
  os::FileDescriptor ours(ends[0]);
  const os::FileDescriptor theirs(ends[1]);
  // In a session of its own: a terminal's signals are the daemon's, and the mover outlives it for its seats.
  const auto started = os::spawn(program_, {"gpumux-mover"}, environment(), theirs.get());
  if (!started) return started;
  state_ = Starting{*started};
  socket_.assign(ours.release());
  log_info("the mover is started", {{"pid", *started}});
  send(wire::MoverBooks{.slots = slots_,
                        .slots_per_chunk = static_cast<std::uint32_t>(host_.chunk_bytes() / kSlotBytes)},
       books_.get());
  for (const auto& [number, loan] : loans_) send_chunk(number, loan);
  for (const auto& [seat, number] : numbers_) send(wire::MoverSeat{.seat = number});
  send(wire::MoverSeats{});
  wait_read();
  return started;
}

void NodeMover::on(const wire::MoverReady&) {
  auto* const starting = std::get_if<Starting>(&state_);
  if (starting == nullptr) return;
  state_ = Serving{starting->process};
  pause_ = kRestartPause;
  if (!why_not_.empty()) {
    log_info("the mover serves again");
    why_not_.clear();
    on_why_not_();
  }
  on_serving_();
}

// Two movers must not have the same slots: the next one is started when this one has ended, with its copies.
void NodeMover::lost(std::string_view why) {
  socket_.close();
  unsent_.clear();
  connected_.clear();
  if (const auto* const serving = std::get_if<Serving>(&state_)) {
    log_error("the mover has ended, and is started again", {{"pid", serving->process}, {"why", why}});
    ::kill(serving->process, SIGKILL);
    rest(serving->process);
  } else if (const auto* const starting = std::get_if<Starting>(&state_)) {
    ::kill(starting->process, SIGKILL);
    const pid_t process = starting->process;
    fail(program_ + " ends before it serves, and has said why on the daemon's standard error");
    rest(process);
  }
}

void NodeMover::fail(std::string why) {
  pause_ = std::min<base::Duration>(2 * pause_, kLongestRestartPause);
  if (why_not_.empty()) {
    log_error("the mover cannot be started: until it can, the memory of its seats stays where it is", {{"why", why}});
    why_not_ = std::move(why);
    on_why_not_();
  }
}

void NodeMover::rest(pid_t process) {
  state_ = Resting{process};
  again_.expires_after(pause_);
  again_.async_wait([this](const boost::system::error_code& error) {
    if (!error) rested();
  });
}

void NodeMover::rested() {
  auto* const resting = std::get_if<Resting>(&state_);
  if (resting->process != 0 && ::waitpid(resting->process, nullptr, WNOHANG) == 0) return rest(resting->process);
  const auto started = start();
  if (started) return;
  fail(started.error().message());
  rest(0);
}

os::FileDescriptor NodeMover::connect(const Seat& seat, const base::GpuUuid& gpu) {
  if (unsent_.size() >= kMostUnsent + loans_.size() + numbers_.size() || std::holds_alternative<Resting>(state_))
    return {};
  if (std::holds_alternative<None>(state_)) {
    if (const auto started = start(); !started) {
      fail(started.error().message());
      rest(0);
      return {};
    }
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return {};
  os::FileDescriptor theirs(ends[0]);
  left_.erase(seat);
  auto known = numbers_.find(seat);
  if (known == numbers_.end()) known = numbers_.emplace(seat, ++last_number_).first;
  wire::MoverSeat message{.seat = known->second};
  std::copy(gpu.bytes.begin(), gpu.bytes.end(), std::begin(message.gpu_uuid));
  send(message, -1, std::move(theirs));
  connected_.insert(seat);
  return os::FileDescriptor(ends[1]);
}

bool NodeMover::knows(const Seat& seat) {
  left_.erase(seat);
  return numbers_.contains(seat);
}

void NodeMover::forget(std::map<Seat, std::uint64_t>::iterator seat) {
  if (is_running()) send(wire::MoverSeatGone{.seat = seat->second});
  left_.erase(seat->first);
  connected_.erase(seat->first);
  numbers_.erase(seat);
}

void NodeMover::closed(const Seat& seat) {
  if (const auto known = numbers_.find(seat); known != numbers_.end()) forget(known);
}

void NodeMover::left(const Seat& seat, os::FileDescriptor process) {
  if (numbers_.contains(seat)) left_[seat] = std::move(process);
}

void NodeMover::look() {
  for (auto at = left_.begin(); at != left_.end();) {
    const auto next = std::next(at);
    // Without a pidfd, or a start that names the process for good, no process can come back for it.
    if (!at->second || at->first.process_start == 0 || os::has_ended(at->second.get())) closed(Seat(at->first));
    at = next;
  }
}

// ---- host memory

void NodeMover::lent(const HostLoan& loan, int) {
  if (loan.bytes == 0) return;  // it asks again
  std::uint64_t number = 0;
  while (loans_.contains(number)) ++number;
  loans_[number] = loan.id;
  if (is_running()) send_chunk(number, loan.id);
}

void NodeMover::send_chunk(std::uint64_t number, std::uint64_t loan) {
  send(wire::MoverHost{.number = number, .bytes = host_.chunk_bytes()}, host_.descriptor_of(loan));
}

void NodeMover::on(const wire::MoverHostWanted& wanted) {
  const std::uint64_t most = std::min<std::uint64_t>(wanted.bytes, kMaxHostRequests / 2 * host_.chunk_bytes());
  for (std::uint64_t bytes = 0; bytes < most; bytes += host_.chunk_bytes())
    host_.wanted({kBorrower, 0}, host_.chunk_bytes(), "mover", Account::of_user(::geteuid()));
}

void NodeMover::on(const wire::MoverHostReturned& returned) {
  const auto found = loans_.find(returned.number);
  if (found == loans_.end()) return;
  host_.returned(kBorrower, found->second, false);
  loans_.erase(found);
}

// ---- messages

template <class Message>
void NodeMover::send(const Message& message, int lent, os::FileDescriptor own) {
  const auto encoded = wire::encode(message);
  const auto bytes = encoded.bytes();
  unsent_.push_back({{bytes.begin(), bytes.end()}, lent, std::move(own)});
  if (unsent_.size() == 1) flush();
}

void NodeMover::flush() {
  while (!unsent_.empty()) {
    const Unsent& next = unsent_.front();
    const auto sent = os::send_message(socket_.native_handle(), next.bytes, next.own ? next.own.get() : next.lent);
    if (!sent && sent.error().system_errno == EAGAIN) return wait_write();
    if (!sent) return;  // `hear` finds that it has ended
    unsent_.pop_front();
  }
}

void NodeMover::wait_write() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_write, [this](const boost::system::error_code& error) {
    if (!error) flush();
  });
}

void NodeMover::wait_read() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (!error) hear();
  });
}

void NodeMover::hear() {
  std::array<std::byte, base::kMaxMessageBytes> buffer;
  for (;;) {
    const auto received = os::receive_message(socket_.native_handle(), buffer);
    if (!received && received.error().system_errno == EAGAIN) return wait_read();
    if (!received) return lost(received.error().message());
    if (received->bytes == 0) return lost("it closed its connection");
    const auto message = wire::decode_to_movers_daemon(std::span(buffer).first(received->bytes));
    if (!message) return lost(message.error().message());
    std::visit([this](const auto& what) { on(what); }, *message);
  }
}

}  // namespace gpumux::daemon
