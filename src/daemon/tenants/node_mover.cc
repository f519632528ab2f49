// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/node_mover.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "base/limits.h"
#include "os/pidfd.h"
#include "os/random.h"
#include "os/spawn.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "server/loop/log.h"
#include "server/peers/process_info.h"
#include "wire/encode.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

// A mover that was killed while it served may take so long to end before people are told. A guess: hundreds of GiB of
// pinned memory go back to the kernel.
constexpr base::Duration kLongestEnd = 60s;
// Before the next start of a mover that has served, and the longest after failures. Both are guesses: a start costs
// half a second of one core, and a person who has put it right waits half a minute at most.
constexpr base::Duration kRestartPause = 500ms;
constexpr base::Duration kLongestRestartPause = 30s;
// A mover that does not read gets no further seats: those wait. A seat costs two messages at most. A guess.
constexpr std::size_t kMostUnsent = 1024;
// Of an entry in the books (mover/books.h), rounded up.
constexpr std::uint64_t kMostBytesPerSlot = 64;
constexpr std::uint64_t kSlotBytes = std::uint64_t{2} << 20;

// Names for the next daemon (host_names.h). "chunk-3" is the chunk of that number in the books. "seat-7" has the text
// "PID START SLOT", and "mover" has "PID START".
constexpr char kBooksName[] = "books";
constexpr char kMoverName[] = "mover";
constexpr std::string_view kChunkPrefix = "chunk-";
constexpr std::string_view kSeatPrefix = "seat-";

std::string name_of(std::string_view prefix, std::uint64_t number) {
  return std::string(prefix) + std::to_string(number);
}

std::vector<std::uint64_t> numbers_of(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::uint64_t>(words), std::istream_iterator<std::uint64_t>()};
}

std::optional<std::uint64_t> number_in(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const auto numbers = numbers_of(std::string(name.substr(prefix.size())));
  return numbers.size() == 1 ? std::optional(numbers.front()) : std::nullopt;
}

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

NodeMover::NodeMover(asio::io_context& io, HostMemory& host, std::string program, std::string door)
    : io_(io),
      host_(host),
      program_(std::move(program)),
      door_(std::move(door)),
      names_(host.files().attached()),
      socket_(io),
      again_(io),
      pause_(kRestartPause) {
  // A mover that is taken over has seats with numbers that an earlier daemon gave.
  if (const auto random = os::random_hex(8)) last_domain_ = std::strtoull(random->c_str(), nullptr, 16);
}

NodeMover::~NodeMover() {
  // It goes on without this daemon for its seats. Without one it ends first: the next daemon's budget is a part of the
  // memory that is available.
  const bool goes_on = std::any_of(seats_.begin(), seats_.end(), [](const auto& one) {
    return one.second.number != 0 && !(one.second.has_left && has_ended(one.first));
  });
  if (auto* const serving = std::get_if<Serving>(&state_); serving != nullptr && !goes_on)
    retired_.push_back({std::move(serving->process), {}});
  for (const Retired& one : retired_) one.process.end();
  if (goes_on) return;
  names_.remove_all();
  host_.files().detach();
}

// ---- the process

base::Status NodeMover::start() {
  if (!books_) {
    slots_ =
        static_cast<std::uint32_t>((host_.budget() / host_.chunk_bytes() + 1) * (host_.chunk_bytes() / kSlotBytes));
    os::FileDescriptor books = host_.files().make_unnamed("gpumux-books");
    if (!books || ::ftruncate(books.get(), static_cast<off_t>(slots_ * kMostBytesPerSlot)) != 0)
      return base::fail_errno(errno, "cannot make the books of host memory");
    names_.give(kBooksName, books.get());
    books_ = std::move(books);
  }
  auto door = os::bind_seqpacket(door_, S_IRUSR | S_IWUSR);
  if (!door) return tl::unexpected(door.error());
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return base::fail_errno(errno, "cannot make a connection to the mover");
  os::FileDescriptor ours(ends[0]);
  const os::FileDescriptor theirs(ends[1]);
  // In a session of its own: a terminal's signals are the daemon's, and the mover outlives it for its seats.
  const auto started = os::spawn(program_, {"gpumux-mover"}, environment(), theirs.get());
  if (!started) return tl::unexpected(started.error());
  auto pidfd = os::open_pidfd(*started);
  if (const auto info = server::process_info(*started))
    names_.write(kMoverName, std::to_string(*started) + " " + std::to_string(info->start_time));
  state_ = Starting{{*started, pidfd ? std::move(*pidfd) : os::FileDescriptor()}};
  socket_.assign(ours.release());
  server::log_info("the mover is started", {{"pid", *started}});
  send(wire::MoverDoor{}, -1, std::move(*door));
  send(wire::MoverBooks{.slots = slots_,
                        .slots_per_chunk = static_cast<std::uint32_t>(host_.chunk_bytes() / kSlotBytes)},
       books_.get());
  for (const auto& [number, loan] : loans_) send_chunk(number, loan);
  for (const auto& [seat, known] : seats_) {
    if (known.number != 0) send(describe(seat, known));
  }
  send(wire::MoverSeats{});
  wait_read();
  return {};
}

wire::MoverSeat NodeMover::describe(const Seat& seat, const Known& known) {
  return {.seat = known.number,
          .process_start = seat.process_start,
          .pid = static_cast<std::uint32_t>(seat.pid),
          .slot = seat.slot,
          .most = known.most};
}

// ---- taking over

void NodeMover::take_over() {
  auto connection = os::connect_seqpacket(door_);
  if (!connection) return find_kept();  // it left none
  const auto peer = os::peer_credentials(connection->get());
  if (!peer || peer->uid != ::geteuid()) {
    server::log_error("a process of another user listens for the mover's next daemon", {{"door", door_}});
    return;
  }
  auto process = os::peer_process(connection->get(), peer->pid);
  server::log_info("an earlier daemon's mover is taken over", {{"pid", peer->pid}});
  state_ = TakingOver{{peer->pid, process ? std::move(process->pidfd) : os::FileDescriptor()}};
  socket_.assign(connection->release());
  again_.expires_after(kTakeOverPatience);
  again_.async_wait([this](const boost::system::error_code& error) {
    if (!error && is_taking_over()) lost("it has not handed over in time");
  });
  wait_read();
}

void NodeMover::on(const wire::MoverBooks& books, os::FileDescriptor file) {
  if (!std::holds_alternative<TakingOver>(state_) || books_) return lost("it hands over books that it has not got");
  if (books.slots_per_chunk != host_.chunk_bytes() / kSlotBytes)
    return lost("its host memory is of chunks of another size, for the budget has changed");
  slots_ = books.slots;
  books_ = std::move(file);
}

void NodeMover::on(const wire::MoverHost& host, os::FileDescriptor file) {
  if (!std::holds_alternative<TakingOver>(state_)) return lost("it gives host memory");
  const auto loan = host_.adopt(std::move(file));
  if (!loan) return lost("it hands over host memory that is not whole");
  loans_[host.number] = *loan;
}

void NodeMover::on(const wire::MoverSeat& message, os::FileDescriptor) {
  if (!std::holds_alternative<TakingOver>(state_)) return lost("it names a seat");
  const Seat seat{static_cast<pid_t>(message.pid), message.process_start, message.slot};
  add_seat(seat, message.seat);
  if (Known& known = seats_.at(seat); known.connection == Connection::kNone) known.connection = Connection::kGiven;
}

void NodeMover::add_seat(const Seat& seat, std::uint64_t number) {
  const auto [its, is_new] = seats_.try_emplace(seat);
  its->second.number = number;
  its->second.has_left = is_new;  // until its process connects again
  last_number_ = std::max(last_number_, number);
}

// The mover keeps its content, and goes on for its seats.
void NodeMover::drop() {
  names_.remove_all();
  host_.abandon();
  loans_.clear();
  std::erase_if(seats_, [](const auto& one) { return one.second.has_left; });
  for (auto& [seat, known] : seats_) known.number = 0;
  books_.reset();
  state_ = None{};
  // Not from within: the callers read from a socket that may be the next mover's then.
  again_.expires_after(base::Duration::zero());
  again_.async_wait([this](const boost::system::error_code& error) {
    if (!error) on_may_connect_();
  });
}

// ---- what an earlier mover had

// A daemon and its mover have ended together.
void NodeMover::find_kept() {
  auto books = names_.open(kBooksName);
  struct stat facts {};
  if (!books || ::fstat(books.get(), &facts) != 0) return names_.remove_all();
  for (const std::string& name : names_.all()) {
    if (const auto number = number_in(name, kChunkPrefix)) {
      const auto loan = host_.adopt(names_.open(name));
      if (!loan) {
        server::log_error("the data of evicted programs is lost: the budget of host memory has changed",
                          {{"chunk", name}});
        return drop();
      }
      loans_[*number] = *loan;
    }
    if (const auto number = number_in(name, kSeatPrefix)) {
      const auto its = numbers_of(names_.read(name));
      if (its.size() == 3) add_seat({static_cast<pid_t>(its[0]), its[1], static_cast<std::uint32_t>(its[2])}, *number);
    }
  }
  slots_ = static_cast<std::uint32_t>(static_cast<std::uint64_t>(facts.st_size) / kMostBytesPerSlot);
  books_ = std::move(books);
  server::log_info("an earlier daemon's host memory is taken over",
                   {{"chunks", loans_.size()}, {"seats", seats_.size()}});
  // Its copies would go on into slots that the next mover takes for free.
  Process earlier;
  if (const auto its = numbers_of(names_.read(kMoverName)); its.size() == 2) {
    auto pidfd = os::open_pidfd(static_cast<pid_t>(its[0]));
    const auto info = server::process_info(static_cast<pid_t>(its[0]));
    if (pidfd && info && info->start_time == its[1]) earlier = {static_cast<pid_t>(its[0]), std::move(*pidfd)};
    earlier.kill();
  }
  rest(std::move(earlier));
}

// ---- its end

void NodeMover::on(const wire::MoverReady& ready, os::FileDescriptor) {
  if (auto* const starting = std::get_if<Starting>(&state_)) {
    state_ = Serving{.process = std::move(starting->process), .answers = ready.answers != 0};
  } else if (auto* const taken = std::get_if<TakingOver>(&state_)) {
    if (ready.connects == 0) return lost("it is of an earlier version, which does not make connections");
    for (const auto& [seat, known] : seats_) {
      if (known.number != 0 && known.most != 0) send(wire::MoverBound{.seat = known.number, .most = known.most});
    }
    server::log_info("the earlier daemon's mover serves", {{"pid", taken->process.pid}, {"seats", seats_.size()}});
    state_ = Serving{.process = std::move(taken->process), .answers = ready.answers != 0};
    again_.cancel();
  } else {
    return;
  }
  pause_ = kRestartPause;
  if (!why_not_.empty()) {
    server::log_info("the mover serves again");
    why_not_.clear();
    on_why_not_();
  }
  on_may_connect_();
}

// Two movers must not have the same slots: the next one is started when this one has ended, with its copies.
void NodeMover::lost(std::string_view why) {
  socket_.close();
  unsent_.clear();
  for (auto& [seat, known] : seats_) {
    if (known.connection == Connection::kGiven) known.connection = Connection::kNone;
    if (known.connection == Connection::kAsked) known.connection = Connection::kAwaited;
  }
  if (auto* const serving = std::get_if<Serving>(&state_)) {
    server::log_error("the mover has ended, and is started again", {{"pid", serving->process.pid}, {"why", why}});
    serving->process.kill();
    rest(std::move(serving->process));
  } else if (auto* const starting = std::get_if<Starting>(&state_)) {
    starting->process.kill();
    fail(program_ + " ends before it serves, and has said why on the daemon's standard error");
    rest(std::move(std::get<Starting>(state_).process));
  } else if (auto* const taken = std::get_if<TakingOver>(&state_)) {
    server::log_error("the earlier daemon's mover is not taken over, and stays with the seats that it has",
                      {{"pid", taken->process.pid}, {"why", why}});
    drop();
  }
}

// Until a mover serves.
void NodeMover::say_why(std::string why) {
  if (!why_not_.empty()) return;
  server::log_error("the mover cannot be started: until it can, the memory of its seats stays where it is",
                    {{"why", why}});
  why_not_ = std::move(why);
  on_why_not_();
}

void NodeMover::fail(std::string why) {
  pause_ = std::min<base::Duration>(2 * pause_, kLongestRestartPause);
  say_why(std::move(why));
}

void NodeMover::rest(Process process) {
  state_ = Resting{std::move(process), os::now()};
  wait_to_start(pause_);
}

void NodeMover::wait_to_start(base::Duration pause) {
  again_.expires_after(pause);
  again_.async_wait([this](const boost::system::error_code& error) {
    if (!error) rested();
  });
}

void NodeMover::rested() {
  auto& resting = std::get<Resting>(state_);
  if (!resting.process.has_ended()) {
    if (os::now() - resting.since > kLongestEnd)
      say_why("process " + std::to_string(resting.process.pid) +
              ", the last mover, does not end although it was killed: look at what it waits for in the kernel");
    return wait_to_start(kRestartPause);
  }
  const auto started = start();
  if (started) return;
  fail(started.error().message());
  rest({});
}

// ---- seats

bool NodeMover::has_connection(const Seat& seat) const {
  const auto known = seats_.find(seat);
  return known != seats_.end() && known->second.connection >= Connection::kAsked;
}

bool NodeMover::knows(const Seat& seat) const {
  const auto known = seats_.find(seat);
  return known != seats_.end() && (known->second.number != 0 || known->second.connection != Connection::kNone);
}

bool NodeMover::has_seat() const {
  return std::any_of(seats_.begin(), seats_.end(), [this](const auto& one) { return knows(one.first); });
}

void NodeMover::connect(const Seat& seat, base::TenantId asker, const base::GpuUuid& gpu, std::uint64_t account,
                        const std::string& domain) {
  Known& known = seats_[seat];
  known.asker = asker;
  if (known.connection == Connection::kAsked) return;
  known.connection = Connection::kAwaited;
  if (unsent_.size() >= kMostUnsent + loans_.size() + seats_.size() || is_taking_over() ||
      std::holds_alternative<Resting>(state_))
    return;
  if (std::holds_alternative<None>(state_)) {
    if (const auto started = start(); !started) {
      fail(started.error().message());
      return rest({});
    }
  }
  known.has_left = false;
  if (known.number == 0) {
    known.number = ++last_number_;
    names_.write(name_of(kSeatPrefix, known.number),
                 std::to_string(seat.pid) + " " + std::to_string(seat.process_start) + " " + std::to_string(seat.slot));
  }
  wire::MoverSeat message = describe(seat, known);
  message.account = account;
  message.connects = 1;
  std::copy(gpu.bytes.begin(), gpu.bytes.end(), std::begin(message.gpu_uuid));
  if (!domain.empty()) {
    const auto [its, is_new] = domains_.emplace(domain, last_domain_ + 1);
    if (is_new) ++last_domain_;
    message.domain = its->second;
  }
  known.connection = Connection::kAsked;
  send(message);
}

void NodeMover::on(const wire::MoverConnected& connected, os::FileDescriptor connection) {
  const auto found = std::find_if(seats_.begin(), seats_.end(), [&](const auto& one) {
    return one.second.number == connected.seat && one.second.connection == Connection::kAsked;
  });
  if (found == seats_.end()) return;  // it has closed
  // Without one it asks again at the next look.
  found->second.connection = connection ? Connection::kGiven : Connection::kAwaited;
  if (connection) on_connected_(Seat(found->first), found->second.asker, connection);
}

bool NodeMover::is_back(const Seat& seat, base::TenantId asker) {
  // The mover may name it later.
  if (is_taking_over()) seats_.try_emplace(seat);
  const auto known = seats_.find(seat);
  if (known == seats_.end()) return false;
  known->second.has_left = false;
  known->second.asker = asker;
  return known->second.number != 0 || is_taking_over();
}

void NodeMover::bound(const Seat& seat, std::uint64_t most) {
  Known& known = seats_[seat];
  if (std::exchange(known.most, most) == most || known.number == 0 || !is_running() || is_taking_over()) return;
  send(wire::MoverBound{.seat = known.number, .most = most});
}

void NodeMover::closed(const Seat& seat) {
  const auto known = seats_.extract(seat);
  if (!known || known.mapped().number == 0) return;
  if (is_running()) send(wire::MoverSeatGone{.seat = known.mapped().number});
  names_.remove(name_of(kSeatPrefix, known.mapped().number));
  if (!has_seat()) domains_.clear();
}

void NodeMover::left(const Seat& seat, base::TenantId asker) {
  const auto known = seats_.find(seat);
  if (known == seats_.end() || known->second.asker != asker) return;
  if (known->second.number == 0) {
    seats_.erase(known);
    return;
  }
  known->second.has_left = true;
  if (known->second.connection != Connection::kGiven) known->second.connection = Connection::kNone;  // it asks again
}

// If the daemon cannot tell (no descriptor is left, say), the process counts as running.
bool NodeMover::has_ended(const Seat& seat) {
  // Without a start that names the process for good, no process can come back for it.
  if (seat.process_start == 0 || (::kill(seat.pid, 0) != 0 && errno == ESRCH)) return true;
  if (const auto process = os::open_pidfd(seat.pid); process && os::has_ended(process->get())) return true;
  const auto info = server::process_info(seat.pid);
  return info && info->start_time != seat.process_start;
}

bool NodeMover::is_its(pid_t pid) const {
  const auto is_now = [pid](const auto& state) {
    if constexpr (requires { state.process; }) return state.process.pid == pid;
    return false;
  };
  return std::visit(is_now, state_) ||
         std::any_of(retired_.begin(), retired_.end(), [pid](const Retired& one) { return one.process.pid == pid; });
}

// Its context takes GPU memory, and no seat needs the host memory that it has.
void NodeMover::retire() {
  auto& serving = std::get<Serving>(state_);
  server::log_info("the mover has no seat, and ends", {{"pid", serving.process.pid}});
  socket_.close();
  unsent_.clear();
  names_.remove_all();
  host_.withdraw();
  retired_.push_back({std::move(serving.process), std::exchange(loans_, {})});
  books_.reset();
  state_ = None{};
}

void NodeMover::look() {
  std::erase_if(retired_, [this](const Retired& one) {
    if (!one.process.has_ended()) return false;
    for (const auto& [number, chunk] : one.loans) host_.returned(chunk);
    return true;
  });
  const auto* const serves = std::get_if<Serving>(&state_);
  const bool is_idle = serves != nullptr && serves->ending_doorkeepers == 0 && !has_seat();
  idle_looks_ = is_idle ? idle_looks_ + 1 : 0;
  if (idle_looks_ >= kIdleLooks) return retire();
  if (auto* const serving = std::get_if<Serving>(&state_); serving != nullptr && serving->answers) ask(*serving);
  if (auto* const starting = std::get_if<Starting>(&state_); starting != nullptr && ++starting->looks == kSilentLooks)
    say_why(program_ + " does not begin to serve: does nvidia-smi answer?");
  for (auto at = seats_.begin(); at != seats_.end();) {
    const auto next = std::next(at);
    if (at->second.has_left && has_ended(at->first)) closed(Seat(at->first));
    at = next;
  }
  const bool one_waits = std::any_of(seats_.begin(), seats_.end(),
                                     [](const auto& one) { return one.second.connection == Connection::kAwaited; });
  if (one_waits && std::holds_alternative<Serving>(state_)) on_may_connect_();
}

void NodeMover::ask(Serving& serving) {
  if (++serving.silent_looks > kSilentLooks) {
    server::log_error("the mover is stopped or hangs, and the daemon ends it",
                      {{"pid", serving.process.pid}, {"looks", kSilentLooks}});
    return lost("it did not answer");
  }
  send(wire::MoverAsked{});
}

void NodeMover::on(const wire::MoverAnswered& answered, os::FileDescriptor) {
  auto* const serving = std::get_if<Serving>(&state_);
  if (serving == nullptr) return;
  serving->silent_looks = 0;
  serving->ending_doorkeepers = answered.ending_doorkeepers;
  if (answered.still_gpus == 0) {
    if (std::exchange(serving->still_looks, 0) >= kSilentLooks) server::log_info("the mover goes on with all GPUs");
  } else if (++serving->still_looks == kSilentLooks) {
    server::log_error(
        "the mover waits for the driver, and memory does not move on some GPU: if that lasts, kill this process",
        {{"pid", serving->process.pid}, {"gpus", answered.still_gpus}});
  }
}

// ---- host memory

void NodeMover::lent(std::uint64_t chunk) {
  std::uint64_t number = 0;
  while (loans_.contains(number)) ++number;
  loans_[number] = chunk;
  names_.give(name_of(kChunkPrefix, number), host_.descriptor_of(chunk));
  if (is_running()) send_chunk(number, chunk);
}

void NodeMover::send_chunk(std::uint64_t number, std::uint64_t loan) {
  send(wire::MoverHost{.number = number, .bytes = host_.chunk_bytes()}, host_.descriptor_of(loan));
}

void NodeMover::on(const wire::MoverHostWanted& wanted, os::FileDescriptor) {
  // The books may be an earlier daemon's, with a smaller budget.
  const std::uint64_t most = slots_ / (host_.chunk_bytes() / kSlotBytes);
  for (std::uint64_t bytes = 0; bytes < wanted.bytes && loans_.size() + host_.awaited() < most;
       bytes += host_.chunk_bytes()) {
    if (host_.awaited() >= kMaxHostRequests) return;
    host_.wanted();
  }
}

void NodeMover::on(const wire::MoverHostReturned& returned, os::FileDescriptor) {
  const auto found = loans_.find(returned.number);
  if (found == loans_.end()) return;
  names_.remove(name_of(kChunkPrefix, returned.number));
  host_.returned(found->second);
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
    auto received = os::receive_message(socket_.native_handle(), buffer);
    if (!received && received.error().system_errno == EAGAIN) return wait_read();
    if (!received) return lost(received.error().message());
    if (received->bytes == 0) return lost("it closed its connection");
    const auto message = wire::decode_to_movers_daemon(std::span(buffer).first(received->bytes));
    if (!message) return lost(message.error().message());
    std::visit([&](const auto& what) { on(what, std::move(received->fd)); }, *message);
    if (!socket_.is_open()) return;
  }
}

}  // namespace gpumux::daemon
