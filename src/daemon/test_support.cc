// SPDX-License-Identifier: Apache-2.0
#include "daemon/test_support.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "server/loop/log.h"
#include "wire/lease_page.h"

namespace gpumux::daemon::testing {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;

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
  // One like a whole GPU, then one like a MIG instance.
  std::vector<GpuLoad> read_load() override {
    std::vector<GpuLoad> load(gpus_.size(), {.power_milliwatts = 312'500, .temperature_celsius = 61});
    load[0].utilization_percent = 97;
    load[0].power_limit_milliwatts = 700'000;
    return load;
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
  options.starts_mover = false;
  return options;
}

TestDaemon::TestDaemon(DaemonOptions options, std::unique_ptr<Inventory> inventory) {
  // A reader takes the output of a failing test whole, or not at all.
  server::set_log_level(std::getenv("GPUMUX_TEST_LOG") != nullptr ? server::LogLevel::kDebug
                                                                  : server::LogLevel::kError);
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
  // A thread that has been joined may be listed for a moment.
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
  hello.flags = wire::kKnowsMover;
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
  asio::io_context io;
  asio::local::stream_protocol::socket socket(io);
  error_code error;
  socket.connect(runtime_dir + "/" + socket_name, error);
  if (error) return {};
  // A daemon that does not answer fails the test, and does not hang it.
  const auto run = [&](auto&& start) {
    error_code result = asio::error::timed_out;
    start([&result](error_code of, std::size_t) { result = of; });
    io.restart();
    io.run_for(kPatience);
    if (!io.stopped()) socket.close();
    io.run();  // the handler of what is cancelled refers to this frame
  };
  beast::http::request<beast::http::string_body> request;
  request.method_string(method);
  request.target(target);
  request.set(beast::http::field::host, "gpumux");
  request.keep_alive(false);
  request.body() = body;
  request.prepare_payload();
  // A refusal may be there already, and the connection closed: that this fails says nothing yet.
  run([&](auto handler) { beast::http::async_write(socket, request, handler); });
  beast::flat_buffer buffer;
  beast::http::response_parser<beast::http::string_body> parser;
  parser.body_limit(boost::none);
  parser.skip(method == "HEAD");
  run([&](auto handler) { beast::http::async_read(socket, buffer, parser, handler); });
  if (!parser.is_header_done()) return {};
  std::ostringstream head;
  head << parser.get().base();
  return {static_cast<int>(parser.get().result_int()), std::move(parser.get().body()), head.str()};
}

nlohmann::json get_json(const std::string& runtime_dir, const std::string& target) {
  const HttpAnswer answer = http(runtime_dir, "GET", target);
  if (answer.status != 200) {
    throw std::runtime_error("GET " + target + " is answered with " + std::to_string(answer.status) + ": " +
                             answer.body);
  }
  return nlohmann::json::parse(answer.body);
}

nlohmann::json json_of(const HttpAnswer& answer) { return nlohmann::json::parse(answer.body, nullptr, false); }

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace gpumux::daemon::testing
