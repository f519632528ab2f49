// SPDX-License-Identifier: Apache-2.0
// Fuzzes what the daemon reads from tenants: the messages, and the order in which several of them come from several
// tenants.
//
// The input is a script: each record is an operation byte, a length byte and that many bytes. Low bits of the operation
// choose one of three tenants, the others an action. A tenant connects, says Hello with a good or bad page, or leaves.
// It sends the bytes as they are or as a well-formed message of a type. It lets time pass, stops reading, or is
// suspended or resumed with the others of one run. A well-formed message about memory has sizes that mean something.
// After each record the invariants of the lease core, the planner and host memory must hold. Every message to a tenant
// must be readable, and its page must never grant more than the core does.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include "daemon/tenants/translate.h"
#include "server/loop/log.h"
#include "wire/messages.h"

namespace gpumux::daemon {
namespace {

constexpr std::size_t kTenants = 3;
constexpr std::size_t kGpus = 2;
constexpr std::size_t kPageBytes = 8192;
constexpr uid_t kUser = 1000;
constexpr char kRun[] = "r";
// Of messages from tenants, those that are none of theirs included.
constexpr std::uint32_t kTypes = static_cast<std::uint32_t>(wire::Type::kMoverWanted) + 1;

class ManualClock final : public base::Clock {
 public:
  base::TimePoint now() const override { return now_; }
  void pass(base::Duration duration) { now_ += duration; }

 private:
  base::TimePoint now_{std::chrono::seconds(1000)};
};

[[noreturn]] void broken(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

os::FileDescriptor make_page(bool good) {
  os::FileDescriptor fd(::memfd_create("fuzz-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(good ? kPageBytes : 100)) != 0) broken("cannot make a page");
  if (good) ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

class Tenant final : public Carrier {
 public:
  bool send(std::span<const std::byte> message, int /*fd*/) override {
    const auto read = wire::decode_from_daemon(message);
    if (!read) broken("the daemon has sent what cannot be read");
    if (const auto* room = std::get_if<wire::Room>(&*read)) room_sequence = room->sequence;
    return reads;
  }
  void kill() override {}

  bool reads = true;
  std::uint32_t room_sequence = 0;  // of the newest bound
  std::optional<Session> session;
};

server::AccessRules everybody() {
  auto rules = server::AccessRules::make(settings::DaemonSettings(), 0, false);
  if (!rules) broken(rules.error().message());
  return *rules;
}

class Machine {
 public:
  Machine()
      : leases_(clock_, trace_),
        access_(everybody()),
        trials_(leases_),
        parts_(leases_, access_, host_),
        translator_(leases_, trials_, access_, parts_, settings::OnDaemonLoss::kWait) {
    leases_.apply(node::HostBudget{std::uint64_t{20} << 30, std::uint64_t{256} << 20, 0});
    for (std::size_t i = 0; i < kGpus; ++i) {
      GpuInfo gpu;
      gpu.uuid.bytes[0] = static_cast<std::uint8_t>(i);
      gpu.memory_total = std::uint64_t{80} << 30;
      leases_.add_gpu(std::move(gpu), {}, "");
    }
  }

  void step(std::uint8_t operation, std::span<const std::uint8_t> data) {
    Tenant& tenant = tenants_[operation % kTenants];
    switch (operation / kTenants % 8) {
      case 0: connect(tenant); break;
      case 1: hello(tenant, data); break;
      case 2: deliver(tenant, std::as_bytes(data), {}); break;
      case 3: well_formed(tenant, data); break;
      case 4: disconnect(tenant); break;
      case 5: pass(data); break;
      case 6:
        if (data.size() != 1) {
          tenant.reads = !tenant.reads;
        } else if (data[0] % 2 == 0) {
          parts_.suspension.set_suspended({kUser, kRun}, true);
        } else {
          parts_.suspension.set_suspended({kUser, kRun}, false);
        }
        break;
      default: deliver(tenant, std::as_bytes(data), make_page(true)); break;
    }
    settle();
  }

  void finish() {
    for (Tenant& tenant : tenants_) disconnect(tenant);
    settle();
    if (!parts_.table.sessions().empty()) broken("a session is left over");
  }

 private:
  void connect(Tenant& tenant) {
    if (tenant.session) return;
    tenant.reads = true;
    tenant.session.emplace(base::TenantId{next_++}, server::Peer{0, kUser, {kUser}}, tenant);
    parts_.table.add(*tenant.session);
  }

  void disconnect(Tenant& tenant) {
    if (!tenant.session) return;
    translator_.ended(*tenant.session, "left");
    tenant.session.reset();
  }

  void deliver(Tenant& tenant, std::span<const std::byte> message, os::FileDescriptor fd) {
    if (!tenant.session || tenant.session->ended()) return;
    if (const auto read = wire::decode_from_tenant(message)) {
      if (const auto* hello = std::get_if<wire::Hello>(&*read)) gangs_ = gangs_ || !wire::text_of(hello->gang).empty();
      gangs_ = gangs_ || std::holds_alternative<wire::GangJoin>(*read);
    }
    if (!translator_.receive(*tenant.session, message, ForeignDescriptor(std::move(fd)))) disconnect(tenant);
  }

  void hello(Tenant& tenant, std::span<const std::uint8_t> data) {
    connect(tenant);
    wire::Hello hello{.protocol = wire::kProtocolVersion,
                      .oldest_protocol = wire::kOldestProtocolVersion,
                      .gang_world = data.size() > 1 ? data[1] % 4u : 0u};
    if (data.size() > 4) hello.memory_limit = std::uint64_t{data[4]} << 28;
    if (data.size() > 5) wire::set_text(hello.run, data[5] % 2 == 0 ? kRun : "");
    if (data.size() > 2) {
      wire::set_text(hello.gang, data[2] % 2 == 0 ? "a" : "b");
      gangs_ = true;
    }
    deliver(tenant, wire::encode(hello).bytes(), make_page(data.empty() || data[0] % 8 != 0));
  }

  // The bytes as the body of a message: its type is the first of them, small numbers are made likely.
  void well_formed(Tenant& tenant, std::span<const std::uint8_t> data) {
    if (data.empty()) return;
    std::array<std::byte, base::kMaxMessageBytes> message{};
    wire::Header header{data[0] % kTypes, 0};
    if (header.type == static_cast<std::uint32_t>(wire::Type::kMemory)) return say_memory(tenant, data.subspan(1));
    if (header.type == static_cast<std::uint32_t>(wire::Type::kRoomWanted)) return want_room(tenant, data.subspan(1));
    std::size_t body = 40;
    if (header.type == static_cast<std::uint32_t>(wire::Type::kGangJoin)) body = 64;
    if (header.type == static_cast<std::uint32_t>(wire::Type::kNote)) body = 8 + base::kMaxNoteBytes;
    header.bytes = static_cast<std::uint32_t>(sizeof header + body);
    std::memcpy(message.data(), &header, sizeof header);
    const auto rest = data.subspan(1);
    for (std::size_t i = 0; i < std::min(rest.size(), body); ++i) message[sizeof header + i] = std::byte{rest[i]};
    // A message that names an epoch mostly names the one that the seat has.
    const bool has_epoch =
        (header.type >= 5 && header.type <= 8) || header.type == static_cast<std::uint32_t>(wire::Type::kIdling);
    if (has_epoch && tenant.session && rest.size() > 8 && rest[8] % 4 != 0) {
      if (const Slot* slot = tenant.session->slot(rest[0])) {
        std::memcpy(message.data() + sizeof header + 8, &slot->epoch.value, sizeof slot->epoch.value);
      }
    }
    deliver(tenant, std::span<const std::byte>(message).first(header.bytes), {});
  }

  // Sizes that programs have: a byte counts 512 MiB, and 255 is more than there is anywhere.
  static std::uint64_t size_of(std::span<const std::uint8_t> data, std::size_t at) {
    const std::uint8_t byte = at < data.size() ? data[at] : 0;
    return byte == 255 ? ~std::uint64_t{0} : std::uint64_t{byte} << 29;
  }

  // The tenant says how much memory it has, and mostly that the newest bound is in force.
  void say_memory(Tenant& tenant, std::span<const std::uint8_t> data) {
    wire::Memory memory{.slot = data.empty() ? 0u : data[0] % 4u,
                        .room_sequence = tenant.room_sequence,
                        .resident = size_of(data, 1),
                        .evicted = size_of(data, 2)};
    memory.allocated = memory.resident + memory.evicted;
    memory.unpageable[0] = size_of(data, 3);
    if (data.size() > 4) memory.flags = data[4];
    if (data.size() > 5 && data[5] % 2 == 1) memory.room_sequence = data[5] / 2;
    if (data.size() > 6) memory.allocated = size_of(data, 6);
    deliver(tenant, wire::encode(memory).bytes(), {});
  }

  void want_room(Tenant& tenant, std::span<const std::uint8_t> data) {
    const wire::RoomWanted wanted{.slot = data.empty() ? 0u : data[0] % 4u,
                                  .ticket = data.size() > 1 ? data[1] : 1u,
                                  .room = size_of(data, 2),
                                  .commitment = size_of(data, 3)};
    deliver(tenant, wire::encode(wanted).bytes(), {});
  }

  void pass(std::span<const std::uint8_t> data) {
    clock_.pass(std::chrono::microseconds(data.empty() ? 1 : 1u << (data[0] % 25)));
    leases_.apply(sched::TimePassed{});
  }

  void settle() {
    leases_.rest();
    if (trials_.look()) leases_.rest();
    parts_.suspension.look();
    for (const base::TenantId id : parts_.mail.take_unwritable()) {
      for (Tenant& tenant : tenants_) {
        if (tenant.session && tenant.session->id == id) disconnect(tenant);
      }
    }
    if (const std::string violated = leases_.machine().check_invariants(); !violated.empty()) broken(violated);
    // An exclusive lease is granted to one slot of a GPU at most, unless a gang holds it together.
    if (gangs_) return;
    std::array<int, kGpus> exclusive{};
    for (Tenant& tenant : tenants_) {
      for (std::uint32_t i = 0; tenant.session && i < base::kMaxSeatsPerTenant; ++i) {
        const Slot* slot = tenant.session->slot(i);
        if (slot != nullptr && slot->granted && slot->exclusive && ++exclusive[slot->gpu.value] > 1) {
          broken("two tenants were told that they hold one GPU exclusively");
        }
      }
    }
  }

  ManualClock clock_;
  Trace trace_{64};
  Leases leases_;
  server::AccessRules access_;
  Trials trials_;
  // Nothing is made, and nothing runs elsewhere.
  boost::asio::io_context loop_;
  boost::asio::thread_pool pool_{1};
  HostMemory host_{loop_, pool_, 0};
  TenantParts parts_;
  Translator translator_;
  std::array<Tenant, kTenants> tenants_;
  std::uint64_t next_ = 1;
  bool gangs_ = false;  // a tenant has joined one
};

}  // namespace
}  // namespace gpumux::daemon

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpumux::daemon;
  // Lines about a fuzzer's tenants are of no interest; errors of ours would be.
  gpumux::server::set_log_level(gpumux::server::LogLevel::kError);
  Machine machine;
  std::span<const std::uint8_t> rest(data, size);
  while (rest.size() >= 2) {
    const std::uint8_t operation = rest[0];
    const std::size_t length = std::min<std::size_t>(rest[1], rest.size() - 2);
    machine.step(operation, rest.subspan(2, length));
    rest = rest.subspan(2 + length);
  }
  machine.finish();
  return 0;
}
