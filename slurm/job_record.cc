// SPDX-License-Identifier: Apache-2.0
#include "slurm/job_record.h"

#include "containers/control_group.h"
#include "os/durable_file.h"
#include "os/runtime_dir.h"

namespace gpumux::slurm {
namespace {

base::Result<os::FileDescriptor> records(const std::string& runtime_dir) {
  return os::open_directory(runtime_dir + "/" + os::kContainersDir);
}

}  // namespace

base::Result<containers::Record> record_of(std::uint32_t job, const std::string& control_group, containers::Part part) {
  const std::string id = containers::slurm_id(job);
  // The daemon knows a tenant's job by its control group alone.
  if (containers::container_id_in(control_group) != id) {
    return base::fail(base::Code::kUnsupported, "the control group " + control_group +
                                                    " is not named by the job: ProctrackType=proctrack/cgroup is "
                                                    "needed, and no container around Slurm");
  }
  return containers::Record{.id = id,
                            .control_group = std::string(containers::container_group_in(control_group)),
                            .claims = {{.uid = id, .on_each = part}}};
}

base::Status keep_record(const std::string& runtime_dir, std::uint32_t job, pid_t task, containers::Part part) {
  const auto record = record_of(job, containers::control_group_of(task), part);
  if (!record) return tl::unexpected(record.error());
  const auto folder = records(runtime_dir);
  if (!folder) return tl::unexpected(folder.error());
  return containers::write_record(folder->get(), *record);
}

base::Status forget_record(const std::string& runtime_dir, std::uint32_t job) {
  const auto folder = records(runtime_dir);
  if (!folder) return folder.error().code == base::Code::kNotFound ? base::Status() : tl::unexpected(folder.error());
  return containers::remove_record(folder->get(), containers::slurm_id(job));
}

}  // namespace gpumux::slurm
