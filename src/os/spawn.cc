// SPDX-License-Identifier: Apache-2.0
#include "os/spawn.h"

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

namespace gpumux::os {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

base::Result<pid_t> spawn(const std::string& program, std::vector<std::string> arguments,
                          std::vector<std::string> environment, int standard_input) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  // dup2 within the child: the copy stays open over exec.
  ::posix_spawn_file_actions_adddup2(&actions, standard_input, STDIN_FILENO);
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  pid_t pid = 0;
  const int failure = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, pointers_to(arguments).data(),
                                    pointers_to(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) return base::fail_errno(failure, "cannot start " + program);
  return pid;
}

}  // namespace gpumux::os
