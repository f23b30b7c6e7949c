#!lua flags=allow-oom
-- limit max_proposals lost_error timeout_error expired_error
-- -> {{requeued, poisoned, canceled, timed_out, due, expired}, {{T/ID, proposal}...}, {queue...}}
-- What time alone does to jobs: leases, deadlines, delays and queue TTLs that ended. Durable jobs that end are proposed,
-- as far as `max_proposals` goes, and proposed again by the next sweep until their end is committed. The queues are those
-- into which jobs came back.
local limit, room, now = tonumber(ARGV[1]), tonumber(ARGV[2]), now_us()
local counts, proposals, queues = { 0, 0, 0, 0, 0, 0 }, {}, {}
local function count(i) counts[i] = counts[i] + 1 end

local function each(index, state, act)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. index, '-inf', int(now), 'LIMIT', 0, limit)) do
    local tenant, id = split(name)
    local job = load(tenant, id)
    if job and state[job.state] then act(job) else redis.call('ZREM', P .. index, name) end
  end
end

local function back(job, fields, data)
  requeue(job, fields, 'job.requeued', data, now)
  queues[job.queue] = true
end

local function ends(job, state, fields, cause)
  if job.durable == '1' and #proposals >= room then return end
  local proposal = finish(job, state, fields, now)
  if proposal then proposals[#proposals + 1] = { job.name, proposal } end
  count(cause)
end

each('deadlines', { running = true }, function(job) ends(job, 'failed', { error = ARGV[4] }, 4) end)
each('leases', { running = true }, function(job)
  if tonumber(job.deadline_us) <= now then return end
  -- An attempt that stored a checkpoint got further than the one before: its crash is the first again.
  local crashes = int((tonumber(job.checkpoints or '0') > 0 and 0 or job.crashes) + 1)
  if job.cancel == '1' then
    ends(job, 'canceled', { crashes = crashes }, 3)
  elseif tonumber(crashes) >= tonumber(job.max_crashes) then
    ends(job, 'failed', { crashes = crashes, error = ARGV[3] }, 2)
  else
    back(job, { crashes = crashes }, { reason = 'lease_lost', crashes = tonumber(crashes) })
    count(1)
  end
end)
each('delayed', { delayed = true }, function(job)
  back(job, {}, { reason = 'due' })
  count(5)
end)
each('expiring', { queued = true, delayed = true, reserved = true }, function(job)
  if job.cancel == '1' then ends(job, 'canceled', {}, 3) else ends(job, 'expired', { error = ARGV[5] }, 6) end
end)
local names = {}
for queue in pairs(queues) do names[#names + 1] = queue end
return { counts, proposals, names }
