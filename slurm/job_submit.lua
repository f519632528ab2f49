-- SPDX-License-Identifier: Apache-2.0
-- Refuses jobs that want more shards of one GPU than a GPU has. Slurm would let them wait for ever.
--
-- For slurm.conf's JobSubmitPlugins=lua: a copy of this file is job_submit.lua beside slurm.conf. A site with a
-- job_submit.lua of its own says in it
--     dofile("/usr/share/doc/gpumux/job_submit.lua")
-- and then calls gpumux_refuses(job_desc) in its own functions.

-- What gres.conf gives to each GPU: Count of Name=shard, for each File.
gpumux_shards_per_gpu = gpumux_shards_per_gpu or 10

-- srun, sbatch and salloc take a job's gres from these fields. Each of them asks for one node, socket or task.
local fields = { "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }

-- "gres:shard:15", "gres/shard=15", "gres:shard:h100:15,gres:gpu:1"
local function shards_in(request)
  local most = 0
  for one in string.gmatch(request, "[^,]+") do
    local rest = string.match(one, "^gres[:/]shard(.*)$") or string.match(one, "^shard(.*)$")
    if rest ~= nil then
      local count = string.match(rest, "[:=](%d+)$")
      if count == nil then count = 1 end
      most = math.max(most, tonumber(count))
    end
  end
  return most
end

-- Whether the job is refused. Its user is told why.
function gpumux_refuses(job_desc)
  for _, field in ipairs(fields) do
    local request = job_desc[field]
    local shards = request ~= nil and shards_in(request) or 0
    if shards > gpumux_shards_per_gpu then
      slurm.log_user(string.format(
        "shard:%d is refused: the shards of a job are of one GPU, and a GPU has %d. Ask for at most shard:%d, or for "
          .. "whole GPUs (--gres=gpu:N)",
        shards, gpumux_shards_per_gpu, gpumux_shards_per_gpu))
      return true
    end
  end
  return false
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  if gpumux_refuses(job_desc) then return slurm.ERROR end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  if gpumux_refuses(job_desc) then return slurm.ERROR end
  return slurm.SUCCESS
end

return slurm.SUCCESS
