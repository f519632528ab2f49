// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps/mps_door.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/mps/visible_gpus.h"
#include "os/runtime_dir.h"
#include "server/loop/log.h"

namespace gpumux::daemon {

MpsDoor::MpsDoor(boost::asio::io_context& io, boost::asio::thread_pool& pool, MpsPort& port, const TenantTable& table,
                 Leases& leases)
    : table_(table), leases_(leases), servers_(io, pool) {
  port.asked = [this](Session& session, const wire::MpsAsked& asked) { return on(session, asked); };
  port.servers = [this] { return servers_.view(); };
}

void MpsDoor::open(const std::string& runtime_dir, bool is_private, std::string control,
                   const Environment& environment) {
  folder_ = runtime_dir + "/" + os::kMpsDir;
  MpsServers::Places places;
  places.folder = folder_;
  places.users_folder = runtime_dir + "/" + os::kMpsUsersDir;
  places.control = std::move(control);
  // The loader's path to the driver, and the simulated machine.
  for (const char* name : {"LD_LIBRARY_PATH", "GPUMUX_SIM_DIR"}) {
    if (const char* value = environment(name)) places.environment.push_back(std::string(name) + "=" + value);
  }
  if (auto runners = runners::runner_places(folder_ + "/runners", is_private)) {
    places.runners = std::move(*runners);
  } else {
    places.why_not = runners.error().message();
  }
  servers_.open(std::move(places));
  invite();
  leases_.on_settings_changed([this] { invite(); });
}

void MpsDoor::invite() {
  const auto& gpus = leases_.gpus();
  const bool is_on = std::any_of(gpus.begin(), gpus.end(), [](const Gpu& gpu) {
    return gpu.refused.empty() && gpu.settings.mps == settings::Mps::kOn;
  });
  const std::string invitation = folder_ + "/" + os::kMpsInvitation;
  if (!is_on) {
    ::unlink(invitation.c_str());
    return;
  }
  if (::mkdir(folder_.c_str(), 0711) == 0) static_cast<void>(::chmod(folder_.c_str(), 0711));
  const os::FileDescriptor file(::open(invitation.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file)
    server::log_warning("programs are not invited to MPS", {{"file", invitation}, {"why", std::strerror(errno)}});
}

base::Status MpsDoor::on(Session& session, const wire::MpsAsked& asked) {
  if (asked.server != 0) {
    if (why_not(session).empty() && servers_.has_client(asked.server, session.peer))
      session.mps = {.server = asked.server, .thread_percentage = asked.thread_percentage};
    return {};
  }
  const std::string visible(wire::text_of(asked.visible_gpus));
  const auto refuse = [&](const std::string& why) {
    wire::MpsAnswered none;
    wire::set_text(none.why, why);
    session.send(none);
    return base::Status();
  };
  if (asked.is_wanted == 0 && !is_on_for_all(visible)) return refuse("");
  if (const std::string why = why_not(session); !why.empty()) return refuse(why);
  // It may be gone when the server is ready.
  servers_.join(session.peer, [this, tenant = session.id, visible](const MpsServers::Answer& answer) {
    Session* const asker = table_.find(tenant);
    if (asker == nullptr) return;
    wire::MpsAnswered told;
    wire::set_text(told.why, answer.why);
    if (answer.number != 0) {
      told.server = answer.number;
      told.thread_percentage = thread_percentage(*asker, visible);
      wire::set_text(told.pipe_directory, answer.pipe_directory);
      asker->mps = {.server = told.server, .thread_percentage = told.thread_percentage};
    }
    asker->send(told);
  });
  return {};
}

std::string MpsDoor::why_not(const Session& session) const {
  if (session.peer.is_contained) return "MPS does not serve programs in containers";
  if (session.peer.uid == 0) return "MPS is not started for root";
  if (session.peer.process == nullptr) return "this kernel cannot watch processes (MPS needs Linux 5.3)";
  return {};
}

std::vector<bool> MpsDoor::visible_to(std::string_view list) const {
  std::vector<std::string> uuids;
  for (const Gpu& gpu : leases_.gpus()) uuids.push_back(gpu.info.uuid_text);
  return visible_gpus(list, uuids);
}

bool MpsDoor::is_on_for_all(std::string_view visible) const {
  const std::vector<bool> sees = visible_to(visible);
  bool sees_any = false;
  for (std::size_t i = 0; i < sees.size(); ++i) {
    if (!sees[i]) continue;
    const Gpu& gpu = leases_.gpus()[i];
    if (!gpu.refused.empty() || gpu.settings.mps != settings::Mps::kOn) return false;
    sees_any = true;
  }
  return sees_any;
}

// Where all run at once, only the part of the threads can tell shares apart. A program has as much of them as its share
// is of the largest share, and at most its cap. Where programs take turns, a share is a part of the time.
std::uint32_t MpsDoor::thread_percentage(const Session& session, std::string_view visible) const {
  const std::vector<bool> sees = visible_to(visible);
  for (std::size_t i = 0; i < sees.size(); ++i) {
    if (sees[i] && leases_.gpus()[i].settings.mode != settings::Mode::kConcurrent) return 100;
  }
  std::uint32_t largest = session.standing.share;
  for (const auto& [id, other] : table_.sessions()) {
    if (other->mps.server != 0 && other->peer.uid == session.peer.uid)
      largest = std::max(largest, other->standing.share);
  }
  const std::uint32_t of_share = 100 * session.standing.share / largest;
  return std::max(1u, std::min(of_share, 100 * session.standing.max_share / base::kWholeGpu));
}

}  // namespace gpumux::daemon
