// SPDX-License-Identifier: Apache-2.0
#include "daemon/test_support.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "daemon/loop/log.h"
#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "wire/lease_page.h"

namespace gpumux::daemon::testing {
namespace {

class FakeInventory final : public Inventory {
 public:
  FakeInventory(std::size_t count, std::uint8_t first) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto uuid = test_uuid(static_cast<std::uint8_t>(first + i));
      gpus_.push_back(
          {uuid, uuid.to_string(), "Test GPU", "0000:0" + std::to_string(i) + ":00.0", "default", 80ull << 30});
    }
  }
  const std::vector<GpuInfo>& gpus() const override { return gpus_; }
  const DriverInfo& driver() const override { return driver_; }
  std::vector<GpuUse> read_use() override {
    return std::vector<GpuUse>(gpus_.size(), GpuUse{1 << 20, {{1, "init", 1 << 20}, {::getpid(), "tenant", 0}}});
  }

 private:
  std::vector<GpuInfo> gpus_;
  DriverInfo driver_{"13.0", "580.0", true};
};

int to_poll_ms(std::chrono::nanoseconds duration) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

}  // namespace

bool eventually(const std::function<bool()>& condition, std::chrono::nanoseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

base::GpuUuid test_uuid(std::uint8_t number) {
  base::GpuUuid uuid;
  const pid_t pid = ::getpid();
  std::memcpy(uuid.bytes.data(), &pid, sizeof pid);
  uuid.bytes[8] = 0xda;
  uuid.bytes[15] = number;
  return uuid;
}

std::unique_ptr<Inventory> fake_inventory(std::size_t gpus, std::uint8_t first_number) {
  return std::make_unique<FakeInventory>(gpus, first_number);
}

DaemonOptions TestDaemon::options_in(const std::string& runtime_dir) {
  DaemonOptions options;
  options.runtime_dir = runtime_dir;
  options.config_file = runtime_dir + "/gpumux.toml";
  options.handle_signals = false;
  return options;
}

TestDaemon::TestDaemon(DaemonOptions options, std::unique_ptr<Inventory> inventory) {
  // What a failing test prints is read whole, or not at all.
  set_log_level(std::getenv("GPUMUX_TEST_LOG") != nullptr ? LogLevel::kDebug : LogLevel::kError);
  auto made = Daemon::make(std::move(options), std::move(inventory));
  if (!made) {
    std::fprintf(stderr, "the test's daemon does not start: %s\n", made.error().error.message().c_str());
    std::abort();
  }
  daemon_ = std::move(*made);
  thread_ = std::thread([this] { exit_code_ = daemon_->run(); });
}

TestDaemon::~TestDaemon() { stop(); }

void TestDaemon::stop() {
  if (!thread_.joinable()) return;
  daemon_->stop();
  wait();
}

void TestDaemon::crash() {
  if (!thread_.joinable()) return;
  daemon_->crash();
  wait();
}

ExitCode TestDaemon::wait() {
  if (thread_.joinable()) thread_.join();
  daemon_.reset();
  return exit_code_;
}

OtherProcess::OtherProcess(std::function<int()> body) {
  // One that has been joined may be listed for a moment.
  const bool is_alone =
      eventually([] { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}) == 1; });
  int ends[2];
  if (!is_alone || ::pipe2(ends, O_CLOEXEC) != 0) {
    std::fprintf(stderr, "another process must be born before the test's threads\n");
    std::abort();
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[1]);
    char byte;
    ::_exit(::read(ends[0], &byte, 1) == 1 ? body() : EXIT_FAILURE);
  }
  ::close(ends[0]);
  start_ = os::FileDescriptor(ends[1]);
}

OtherProcess::~OtherProcess() { kill(); }

void OtherProcess::begin() {
  if (::write(start_.get(), "b", 1) != 1) std::abort();
}

int OtherProcess::wait() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(std::exchange(pid_, -1), &status, 0) < 0 || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

void OtherProcess::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  wait();
}

os::FileDescriptor make_page(std::size_t bytes, bool sealed) {
  os::FileDescriptor fd(::memfd_create("test-lease-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) std::abort();
  if (sealed && ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) std::abort();
  return fd;
}

TestTenant::TestTenant(const std::string& runtime_dir, std::string program)
    : program_(std::move(program)), page_fd_(make_page(wire::kLeasePageBytes, true)) {
  if (auto socket = os::connect_seqpacket(runtime_dir + "/" + os::kTenantSocket)) socket_ = std::move(*socket);
  void* memory = ::mmap(nullptr, wire::kLeasePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd_.get(), 0);
  if (memory == MAP_FAILED) std::abort();
  page_ = static_cast<wire::LeasePage*>(memory);
}

TestTenant::TestTenant(const std::string& runtime_dir, TestTenant&& former)
    : program_(former.program_), page_fd_(std::move(former.page_fd_)), page_(std::exchange(former.page_, nullptr)) {
  if (auto socket = os::connect_seqpacket(runtime_dir + "/" + os::kTenantSocket)) socket_ = std::move(*socket);
}

TestTenant::~TestTenant() {
  if (page_ != nullptr) ::munmap(page_, wire::kLeasePageBytes);
}

bool TestTenant::send_bytes(std::span<const std::byte> bytes, int fd) {
  return os::send_message(socket_.get(), bytes, fd).has_value();
}

std::optional<wire::DaemonMessage> TestTenant::receive(std::chrono::nanoseconds patience) {
  pollfd poller{socket_.get(), POLLIN, 0};
  if (!socket_ || ::poll(&poller, 1, to_poll_ms(patience)) != 1) return std::nullopt;
  std::array<std::byte, base::kMaxMessageBytes> buffer;
  const auto received = os::receive_message(socket_.get(), buffer);
  if (!received || received->bytes == 0) {
    socket_.reset();
    return std::nullopt;
  }
  const auto message = wire::decode_from_daemon(std::span<const std::byte>(buffer).first(received->bytes));
  if (!message) std::abort();  // the daemon must never say what cannot be read
  return *message;
}

bool TestTenant::is_dropped(std::chrono::nanoseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (socket_ && std::chrono::steady_clock::now() < deadline) static_cast<void>(receive(100ms));
  return !socket_;
}

bool TestTenant::join(const std::string& gang) {
  wire::Hello hello{.protocol = wire::kProtocolVersion, .oldest_protocol = wire::kOldestProtocolVersion};
  wire::set_text(hello.program, program_);
  wire::set_text(hello.gang, gang);
  return send(hello, page_fd_.get()) && receive_a<wire::Welcome>().has_value();
}

bool TestTenant::open_seat(std::uint32_t slot, const base::GpuUuid& uuid) {
  wire::SeatOpen open{.slot = slot};
  std::memcpy(open.gpu_uuid, uuid.bytes.data(), uuid.bytes.size());
  return open_seat(open);
}

bool TestTenant::open_seat(const wire::SeatOpen& open) {
  return send(open) && receive_a<wire::SeatOpened>().has_value();
}

std::uint32_t TestTenant::word(std::uint32_t slot) const {
  return page_->slots[slot].word.load(std::memory_order_acquire);
}
bool TestTenant::is_granted(std::uint32_t slot) const { return (word(slot) & wire::kGranted) != 0; }
bool TestTenant::wait_granted(std::uint32_t slot) const {
  return eventually([&] { return is_granted(slot); });
}
std::uint64_t TestTenant::epoch(std::uint32_t slot) const {
  return page_->slots[slot].epoch.load(std::memory_order_relaxed);
}

bool TestTenant::release(std::uint32_t slot) {
  page_->slots[slot].word.fetch_and(~wire::kGranted, std::memory_order_relaxed);
  return send(wire::Drained{.slot = slot, .epoch = epoch(slot)});
}

bool TestTenant::yield(std::chrono::nanoseconds patience) {
  const auto revoke = receive_a<wire::Revoke>(patience);
  return revoke && send(wire::RevokeSeen{.slot = revoke->slot, .epoch = revoke->epoch}) &&
         send(wire::GateClosed{.slot = revoke->slot, .epoch = revoke->epoch}) &&
         send(wire::Drained{.slot = revoke->slot, .epoch = revoke->epoch});
}

HttpAnswer http(const std::string& runtime_dir, const std::string& method, const std::string& target,
                const std::string& body, const char* socket_name) {
  const os::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = runtime_dir + "/" + socket_name;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  // A daemon that does not answer fails the test, and does not hang it.
  const timeval patience{std::chrono::seconds(kPatience).count(), 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const std::string request =
      method + " " + target +
      " HTTP/1.1\r\nHost: gpumux\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
      body;
  // A refusal may be there already, and the connection closed.
  static_cast<void>(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL));
  std::string text;
  char buffer[65536];
  for (ssize_t got; (got = ::recv(socket.get(), buffer, sizeof buffer, 0)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  HttpAnswer answer;
  std::sscanf(text.c_str(), "HTTP/1.1 %d", &answer.status);
  const std::size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos) return answer;
  std::string_view rest = std::string_view(text).substr(end + 4);
  if (text.substr(0, end).find("chunked") == std::string::npos) {
    answer.body = rest;
    return answer;
  }
  while (!rest.empty()) {
    const auto length = static_cast<std::size_t>(std::strtoul(std::string(rest.substr(0, 16)).c_str(), nullptr, 16));
    rest.remove_prefix(std::min(rest.find("\r\n") + 2, rest.size()));
    if (length == 0 || length > rest.size()) break;
    answer.body += rest.substr(0, length);
    rest.remove_prefix(std::min(length + 2, rest.size()));
  }
  return answer;
}

}  // namespace gpumux::daemon::testing
