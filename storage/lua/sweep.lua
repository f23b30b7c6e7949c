#!lua flags=allow-oom
-- limit lost_error timeout_error expired_error -> {requeued, poisoned, canceled, timed_out, due, expired}
-- What time alone does to jobs: leases, deadlines, delays and queue TTLs that ended.
local limit, now = tonumber(ARGV[1]), now_us()
local counts = { 0, 0, 0, 0, 0, 0 }
local function count(i) counts[i] = counts[i] + 1 end

local function each(index, state, act)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. index, '-inf', int(now), 'LIMIT', 0, limit)) do
    local tenant, id = split(name)
    local job = load(tenant, id)
    if job and state[job.state] then act(job) else redis.call('ZREM', P .. index, name) end
  end
end

each('deadlines', { running = true }, function(job)
  finish(job, 'failed', { error = ARGV[3] }, now)
  count(4)
end)
each('leases', { running = true }, function(job)
  local crashes = int(job.crashes + 1)
  if job.cancel == '1' then
    finish(job, 'canceled', { crashes = crashes }, now)
    count(3)
  elseif tonumber(crashes) >= tonumber(job.max_crashes) then
    finish(job, 'failed', { crashes = crashes, error = ARGV[2] }, now)
    count(2)
  else
    requeue(job, { crashes = crashes }, 'job.requeued', { reason = 'lease_lost', crashes = tonumber(crashes) }, now)
    count(1)
  end
end)
each('delayed', { delayed = true }, function(job)
  requeue(job, {}, 'job.requeued', { reason = 'due' }, now)
  count(5)
end)
each('expiring', { queued = true, delayed = true }, function(job)
  finish(job, 'expired', { error = ARGV[4] }, now)
  count(6)
end)
return counts
