// SPDX-License-Identifier: Apache-2.0
// What a container is given, as the sources that ship say it, for scenarios to hand to a runtime.
//
//   injection cdi FOLDER HOOK ID LIBRARIES VERSION RUNTIME_DIR SIM_LIBRARIES SIM_MACHINE [CLAIM [GPU BYTES [CORES
//             [PRIORITY]]]]
//       writes the specification of container ID into FOLDER, and prints the device's name
//   injection env LIBRARIES VERSION RUNTIME_DIR SIM_LIBRARIES SIM_MACHINE
//       prints the same without a hook, as a specification's containerEdits
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kubernetes/cdi/injection.h"
#include "kubernetes/cdi/specification.h"

namespace {

using namespace gpumux;

int fail(const base::Error& error) {
  std::fprintf(stderr, "injection: %s\n", error.message().c_str());
  return 1;
}

base::Result<kubernetes::Injection> injection_of(const std::vector<std::string>& words) {
  containers::Claim claim;
  if (words.size() > 5) claim.uid = words[5];
  if (words.size() > 7) claim.quotas.push_back({words[6], std::strtoull(words[7].c_str(), nullptr, 10)});
  if (words.size() > 8) claim.shares.push_back({words[6], std::strtoull(words[8].c_str(), nullptr, 10)});
  if (words.size() > 9) claim.priority = std::atoi(words[9].c_str());
  return kubernetes::make_injection({words[0], words[1], words[2], kubernetes::SimulatedDriver{words[3], words[4]}}, {},
                                    claim);
}

int write_specification(const std::vector<std::string>& words) {
  const auto injection = injection_of({words.begin() + 3, words.end()});
  if (!injection) return fail(injection.error());
  auto folder = kubernetes::SpecificationFolder::open(words[0]);
  if (!folder) return fail(folder.error());
  const auto device = folder->write({kubernetes::Owner::Kind::kContainer, words[2]}, *injection, words[1]);
  if (!device) return fail(device.error());
  std::printf("%s\n", device->c_str());
  return 0;
}

int print_plain(const std::vector<std::string>& words) {
  const auto injection = injection_of(words);
  if (!injection) return fail(injection.error());
  const auto plain = kubernetes::environment_only(*injection);
  if (!plain) return fail(plain.error());
  nlohmann::json edits;
  for (const auto& variable : plain->variables) edits["env"].push_back(variable.name + "=" + variable.value);
  for (const auto& mount : plain->mounts) {
    edits["mounts"].push_back(
        {{"hostPath", mount.host_path},
         {"containerPath", mount.container_path},
         {"options", {mount.access == kubernetes::Access::kWrite ? "rw" : "ro", "bind", "rprivate"}}});
  }
  std::printf("%s\n", edits.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() >= 9 && words[0] == "cdi") return write_specification({words.begin() + 1, words.end()});
  if (words.size() == 6 && words[0] == "env") return print_plain({words.begin() + 1, words.end()});
  std::fprintf(stderr, "injection: wrong arguments\n");
  return 2;
}
