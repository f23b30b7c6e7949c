#!lua flags=allow-oom
-- limit max_proposals lost_error timeout_error expired_error upstream_error(with two %s) look_us
-- -> {{requeued, poisoned, canceled, timed_out, due, expired, released, upstream_failed}, {{T/ID, proposal}...}, {queue...},
-- {{T/ID, {id of an upstream that Redis does not have...}}...}}
-- Moves the jobs whose lease, deadline, delay or queue TTL is over. The ends of durable jobs are proposed, at most
-- `max_proposals` of them, and proposed again by each sweep until they are committed. The queues are those into which jobs
-- came back. Jobs that only newer processes change stay where they are.
local PAGES = 20  -- of `limit` rows, read in search of other jobs behind them
local limit, room, now = tonumber(args.limit), tonumber(args.max_proposals), now_us()
local counts, proposals, queues, unsure = { 0, 0, 0, 0, 0, 0, 0, 0 }, {}, {}, {}
redis.call('SET', P .. 'swept', int(now))
local function count(i) counts[i] = counts[i] + 1 end

local function each(index, state, act)
  local found, read = {}, 0
  for _ = 1, PAGES do
    local names = redis.call('ZRANGEBYSCORE', P .. index, '-inf', int(now), 'LIMIT', read, limit - #found)
    for _, name in ipairs(names) do
      local tenant, id = split(name)
      local row = redis.call('HMGET', jobkey(tenant, id), 'state', 'version')
      if not (row[1] and is_newer({ state = row[1], version = row[2] or nil })) then found[#found + 1] = name end
    end
    read = read + #names
    if #names == 0 or #found >= limit then break end
  end
  for _, name in ipairs(found) do
    local tenant, id = split(name)
    local job = load(tenant, id)
    if job and state[job.state] then act(job) else redis.call('ZREM', P .. index, name) end
  end
end

local function back(job, fields, data, outcome)
  requeue(job, fields, 'job.requeued', data, now, outcome)
  queues[job.queue] = true
end

local function ends(job, state, fields, cause)
  if job.durable == '1' and #proposals >= room then return end
  local proposal = finish(job, state, fields, now)
  if proposal then proposals[#proposals + 1] = { job.name, proposal } end
  count(cause)
end

each('deadlines', { running = true }, function(job) ends(job, 'failed', { error = args.timeout_error }, 4) end)
each('leases', { running = true }, function(job)
  if tonumber(job.deadline_us) <= now then return end
  -- An attempt that stored a checkpoint got further than the one before: its crash is the first again.
  local crashes = int((tonumber(job.checkpoints or '0') > 0 and 0 or job.crashes) + 1)
  redis.call('HINCRBY', P .. 'counts:lost', job.model, 1)
  if job.cancel == '1' then
    ends(job, 'canceled', { crashes = crashes }, 3)
  elseif tonumber(crashes) >= tonumber(job.max_crashes) then
    ends(job, 'failed', { crashes = crashes, error = args.lost_error }, 2)
  else
    back(job, { crashes = crashes }, { reason = 'lease_lost', crashes = tonumber(crashes), late_ms = math.floor((now - job.lease_us) / 1000) }, 'lost')
    count(1)
  end
end)
each('delayed', { delayed = true }, function(job)
  if has_parts(job) and parts_live(job) then  -- the last part puts it back
    redis.call('ZADD', P .. 'delayed', int(now + args.look_us), job.name)
    return
  end
  back(job, {}, { reason = 'due' })
  count(5)
end)
each('expiring', { queued = true, delayed = true, reserved = true }, function(job)
  if job.cancel == '1' then ends(job, 'canceled', {}, 3) else ends(job, 'expired', { error = args.expired_error }, 6) end
end)
-- A sweep without room for proposals cannot have the object store asked for an upstream either: it leaves followers alone.
if room > 0 then
  each('chained', { delayed = true }, function(job)
    local id, state = string.match(job.doomed or '', '^(%S+) (%S+)$')
    if id and job.cancel ~= '1' then
      local how = ({ gone = 'was deleted', canceled = 'was canceled' })[state] or state
      local error = string.format(args.upstream_error, id, how)
      return ends(job, state == 'canceled' and 'canceled' or 'failed', { error = error }, 8)
    end
    if judge_again(job, now) then
      queues[job.queue] = true
      return count(7)
    end
    local verdict, ids = judge(job)
    if job.chained == '1' and verdict == 'unsure' then unsure[#unsure + 1] = { job.name, ids } end
  end)
end
-- What older releases have left of the indexes of names goes once nothing waits.
for _, queue in ipairs(redis.call('SMEMBERS', P .. 'queues')) do
  if redis.call('EXISTS', qkey(queue, 'lanes')) == 0 then redis.call('DEL', qkey(queue, 'names')) end
end
local names = {}
for queue in pairs(queues) do names[#names + 1] = queue end
return { counts, proposals, names, unsure }
