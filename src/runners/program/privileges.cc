// SPDX-License-Identifier: Apache-2.0
#include "runners/program/privileges.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace gpumux::runners {
namespace {

using base::Code;
using base::Status;

Status set_capabilities(std::uint64_t keep) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  for (int i = 0; i < 2; ++i) {
    data[i].effective = static_cast<std::uint32_t>(keep >> (32 * i));
    data[i].permitted = data[i].effective;
  }
  if (::syscall(SYS_capset, &header, data) != 0) return base::fail_errno(errno, "cannot drop capabilities");
  return {};
}

Status check_no_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return base::fail_errno(errno, "cannot read capabilities");
  for (const auto& part : data) {
    if ((part.effective | part.permitted | part.inheritable) != 0)
      return base::fail(Code::kDenied, "capabilities are left after becoming the job's user");
  }
  return {};
}

Status set_groups(const wire::RunnerSpec& spec) {
  static_assert(sizeof(gid_t) == sizeof(std::uint32_t));
  if (::setgroups(spec.groups.size(), spec.groups.data()) != 0)
    return base::fail_errno(errno, "cannot take the job's groups");
  return {};
}

base::Result<std::vector<gid_t>> read_groups() {
  const int count = ::getgroups(0, nullptr);
  if (count < 0) return base::fail_errno(errno, "cannot read the process's groups");
  std::vector<gid_t> has(static_cast<std::size_t>(count));
  if (count > 0 && ::getgroups(count, has.data()) != count) return base::fail(Code::kInternal, "its groups change");
  return has;
}

// Of a runner that is not root: it is the job's user already, and cannot give groups or take them away.
Status check_is_the_user(const wire::RunnerSpec& spec) {
  uid_t uids[3];
  if (::getresuid(&uids[0], &uids[1], &uids[2]) != 0) return base::fail_errno(errno, "cannot read the process's ids");
  for (const uid_t uid : uids) {
    if (uid != spec.uid)
      return base::fail(Code::kDenied, "the job is for user " + std::to_string(spec.uid) +
                                           ", and its runner is not root but user " + std::to_string(uid));
  }
  auto has = read_groups();
  if (!has) return tl::unexpected(has.error());
  has->push_back(::getegid());
  for (const gid_t group : *has) {
    if (group == spec.gid || std::find(spec.groups.begin(), spec.groups.end(), group) != spec.groups.end()) continue;
    return base::fail(Code::kDenied, "the process that submitted the job was not in group " + std::to_string(group) +
                                         ", and its runner, which is not root, is: submit from a process with the "
                                         "daemon's groups");
  }
  return {};
}

Status check_ids(const wire::RunnerSpec& spec) {
  uid_t uids[3];
  gid_t gids[3];
  if (::getresuid(&uids[0], &uids[1], &uids[2]) != 0 || ::getresgid(&gids[0], &gids[1], &gids[2]) != 0)
    return base::fail_errno(errno, "cannot read the process's ids");
  for (const uid_t uid : uids) {
    if (uid != spec.uid) return base::fail(Code::kDenied, "is not the job's user after becoming it");
  }
  for (const gid_t gid : gids) {
    if (gid != spec.gid) return base::fail(Code::kDenied, "is not in the job's group after becoming its user");
  }
  return {};
}

Status check_groups(const wire::RunnerSpec& spec) {
  auto read = read_groups();
  if (!read) return tl::unexpected(read.error());
  std::vector<gid_t>& has = *read;
  std::vector<gid_t> wanted(spec.groups.begin(), spec.groups.end());
  std::sort(has.begin(), has.end());
  std::sort(wanted.begin(), wanted.end());
  if (has != wanted) return base::fail(Code::kDenied, "does not have exactly the job's groups");
  return {};
}

// Every way back that there is. One of them working is worse than not starting.
Status check_no_way_back(const wire::RunnerSpec& spec) {
  const bool back = ::setuid(0) == 0 || ::seteuid(0) == 0 || ::setresuid(0, 0, 0) == 0 ||
                    (spec.gid != 0 && (::setgid(0) == 0 || ::setegid(0) == 0)) || ::setgroups(0, nullptr) == 0;
  if (back) return base::fail(Code::kDenied, "could become root again after becoming the job's user");
  return {};
}

// As the submitter's: a job must not gain by set-user-ID programs what the process could not that submitted it.
Status keep_no_new_privs(const wire::RunnerSpec& spec) {
  if (!spec.no_new_privs) return {};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
    return base::fail_errno(errno, "cannot keep the job from new privileges");
  return {};
}

}  // namespace

Status become_user(const wire::RunnerSpec& spec) {
  GPUMUX_TRY(keep_no_new_privs(spec));
  if (::geteuid() != 0) return check_is_the_user(spec);
  GPUMUX_TRY(set_groups(spec));
  if (::setresgid(spec.gid, spec.gid, spec.gid) != 0) return base::fail_errno(errno, "cannot become the job's group");
  if (::setresuid(spec.uid, spec.uid, spec.uid) != 0) return base::fail_errno(errno, "cannot become the job's user");
  GPUMUX_TRY(check_ids(spec));
  GPUMUX_TRY(check_groups(spec));
  // Root's or the daemon's session keyring is not for the job. Where keyrings do not exist or are forbidden
  // (containers), there is none to inherit.
  ::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr);
  if (spec.uid == 0) return {};
  // Leaving uid 0 has emptied all sets but the inheritable one, unless securebits are set.
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  GPUMUX_TRY(set_capabilities(0));
  GPUMUX_TRY(check_no_capabilities());
  return check_no_way_back(spec);
}

Status keep_only_signalling(bool needs_proc) {
  if (::geteuid() != 0) return {};
  std::uint64_t keep = 1ull << CAP_KILL;
  if (needs_proc) keep |= 1ull << CAP_SYS_PTRACE;
  // Of what there is: in a container some are missing.
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return base::fail_errno(errno, "cannot read capabilities");
  keep &= data[0].permitted | static_cast<std::uint64_t>(data[1].permitted) << 32;
  GPUMUX_TRY(set_capabilities(keep));
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return base::fail_errno(errno, "cannot give up new privileges");
  return {};
}

}  // namespace gpumux::runners
