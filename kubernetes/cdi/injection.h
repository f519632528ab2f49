// SPDX-License-Identifier: Apache-2.0
// The description of an injection, which makes a container's programs tenants. Both ways of injection are made from it.
//
//   by CDI                specification.h writes it for the runtime; the hook lists the library
//   by the environment    environment_only(); for runtimes without CDI
//
// Folders are mounted, never files. A daemon that starts again makes a new socket, and an upgrade of gpumux a new
// library: a mounted file would stay the old one. The library's folder has a folder for each version, so that a running
// container keeps the one that its list names.
//
// Plain values; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "containers/record.h"

namespace gpumux::kubernetes {

enum class Access {
  kRead,     // nothing in it can be executed
  kExecute,  // libraries lie there
  kWrite,    // also for reading
};

// A folder of the host's in the container.
struct Mount {
  std::string host_path;
  std::string container_path;
  Access access = Access::kRead;
};

struct Variable {
  std::string name;
  std::string value;
};

struct Injection {
  std::vector<Mount> mounts;
  std::vector<Variable> variables;
  std::string library;      // of libgpumux.so, in the container
  std::string records;      // the folder of containers' records, on the host (containers/record.h)
  containers::Claim claim;  // whose memory and time the container's programs take; without a uid: of none
};

// A simulated driver instead of NVIDIA's, for tests and demonstrations.
struct SimulatedDriver {
  std::string libraries;  // the folder with libcuda.so.1 and libnvidia-ml.so.1
  std::string machine;    // GPUMUX_SIM_DIR
};

// Where things are on this node. All paths are absolute.
struct Node {
  std::string libraries;    // has a folder for each version, with libgpumux.so in it
  std::string version;      // that new containers get
  std::string runtime_dir;  // the daemon's, /run/gpumux
  std::optional<SimulatedDriver> simulated;
};

// Where they are in a container.
inline constexpr char kLibrariesInside[] = "/usr/lib/gpumux/containers";
inline constexpr char kRuntimeDirInside[] = "/run/gpumux";
inline constexpr char kSimulatedLibrariesInside[] = "/usr/lib/gpumux/sim";
inline constexpr char kSimulatedMachineInside[] = "/run/gpumux-sim";

// `variables`: what else the container's programs are told. kInvalid: a path is not absolute, the version is no name of
// a folder, or check() does not take it.
base::Result<Injection> make_injection(const Node& node, std::vector<Variable> variables = {},
                                       containers::Claim claim = {});

// Checks that runtimes, the loader and the CDI specification take it as it is meant. kInvalid says what is wrong:
// - a path that is not absolute or has ".." in it, or two mounts at one place;
// - a variable without a name or given twice, or control characters;
// - a library whose path has a character that ends an entry of the loader's list;
// - quotas or shares of no claim or no GPU.
base::Status check(const Injection& injection);

// The same without a hook: LD_PRELOAD names the library, instead of the image's own LD_PRELOAD if it has one. In an
// image with musl no program starts. Such a container has no record: the daemon knows neither its pod nor its claim.
// kInvalid: as check(), or the injection sets LD_PRELOAD already.
struct PlainInjection {
  std::vector<Mount> mounts;
  std::vector<Variable> variables;
};
base::Result<PlainInjection> environment_only(const Injection& injection);

}  // namespace gpumux::kubernetes
