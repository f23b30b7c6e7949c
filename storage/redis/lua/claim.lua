#!lua
-- queue slot nonce lease_us max_tenant_running worker models dry(bool) caps {tenant: max_tenant_running} version
-- fetches_none(bool) full_tenants {tenant...} full_hosts {host...}
-- -> the claim as JSON; '' where no job can be claimed. `more` in a claim: other jobs wait in the queue, and a hint must be
-- sent for them. `may_be_old`: as the function of this name.
-- A claim leases one job, round robin over the lanes (models of tenants). A job whose next crash is the last is claimed only
-- by a worker that runs nothing else (`dry`), so that no job fails because of a neighbour. A busy worker that finds such a
-- job claims nothing more until it is dry; the other busy workers skip the job. A job with a record of a format above
-- `version`, or in a state that is not known here, is skipped, and so is one whose end was requested or whose time in the
-- queue is over.
-- A job with `fetch_hosts` names media on the web. It is skipped where the worker fetches for no further job, for none of its
-- tenant, or from none of one of its hosts (in the last two cases its `message` says so). Jobs behind it are looked at, within
-- a bound.
local queue, lease, cap = args.queue, tonumber(args.lease_us), tonumber(args.max_tenant_running)
local memo = P .. 'claim:' .. args.slot .. ':' .. args.nonce
local again = redis.call('GET', memo)
if again then return again end
if redis.call('GET', qkey(queue, 'mode')) == 'paused' then return '' end
local now = now_us()
local served = {}
for _, name in ipairs(args.models) do served[name] = true end
local full_tenants, full_hosts = {}, {}
for _, name in ipairs(args.full_tenants) do full_tenants[name] = true end
for _, name in ipairs(args.full_hosts) do full_hosts[name] = true end
local WAITS = 'waiting to fetch its media until those of other jobs of its tenant, or from its host, are fetched'

-- Return true where the worker fetches for no further job of a tenant, or from one of the hosts.
local function is_full(tenant, hosts)
  for host in string.gmatch(hosts, '%S+') do
    if full_hosts[host] then return true end
  end
  return full_tenants[tenant]
end

-- Return true where a job must wait to fetch its media; its record says why, unless it is only for a moment.
local function waits(tenant, id, hosts, said)
  if (hosts or '') == '' then return false end
  if not is_full(tenant, hosts) then return args.fetches_none end
  if said == WAITS then return true end
  write({ tenant = tenant, id = id, revision = redis.call('HGET', jobkey(tenant, id), 'revision') }, { message = WAITS })
  redis.call('PUBLISH', P .. 'changes', tenant .. '/' .. id)
  return true
end

local function last_chance(crashes, max_crashes)
  return tonumber(crashes) > 0 and tonumber(crashes) >= tonumber(max_crashes) - 1
end

local function take(tenant, id)
  local job = load(tenant, id)
  if not job or job.state ~= 'queued' then return nil end
  local parent = is_part(job) and load(tenant, job.parent)
  if is_part(job) and (not parent or has_ended(parent)) then
    end_part(job, 'canceled', {}, now)
    return nil
  end
  -- The end of such a job is due, and its outcome may be stored already, without this attempt: `sweep` ends it.
  if tonumber(redis.call('ZSCORE', P .. 'expiring', job.name) or '+inf') <= now then return nil end
  if not parent and (job.after or '') ~= '' and chained(job, now) then return nil end
  local fence, given_back = int(math.max(tonumber(job.fence) + 1, now)), job.given_back == '1'
  dequeue(job)
  redis.call('ZREM', P .. 'expiring', job.name)
  redis.call('ZADD', P .. 'leases', int(now + lease), job.name)
  redis.call('ZADD', P .. 'deadlines', int(now + job.execution_us), job.name)
  redis.call('SADD', tkey(tenant, 'running'), id)
  redis.call('SADD', qkey(queue, 'running'), job.name)
  write(job, {
    state = 'running', phase = 'loading', fence = fence, started_us = int(now),
    lease_us = int(now + lease), deadline_us = int(now + job.execution_us), worker = args.worker,
    attempt = int(job.attempt + (given_back and 0 or 1)), given_back = '',
    done = job.done or '0', total = job.total or '', unit = job.unit or 'prompts', own_done = '0',
    past_done = job.done or '0', past_total = job.total or '', past_unit = job.unit or 'prompts',
    message = '', due_us = '', reported_us = '0', ended_by = '', checkpoints = '0', waited_us = '0',
    phases = '',
  })
  emit(job, 'job.started', { attempt = tonumber(job.attempt), worker = args.worker, fence = fence })
  if not given_back then announce(job, 'job.started', now) end  -- once per attempt
  local part = parent and { id = id, digest = job.part_digest, first = job.part_first, last = job.part_last } or nil
  -- While parts live, because an older keeper has put their job back, the job may be split: then it waits for them.
  local parts = (job.parts or '') ~= '' and not parts_live(job) and tonumber(job.parts) or 0
  return { submission = (parent or job).submission, part = part, parts = parts, attempt = tonumber(job.attempt),
    crashes = tonumber(job.crashes), fetch_hosts = job.fetch_hosts or '',
    last_chance = last_chance(job.crashes, job.max_crashes), fence = fence, claimed_us = int(now), lease_us = int(lease),
    durable = (parent or job).durable == '1', upstreams = results_of(parent or job) }
end

-- Jobs of a lane that a claim looks at, and rows of the lane that it reads in search of them.
local LOOKS, READ = 10, 1000
-- Jobs that wait for their media which a claim passes, of one lane and in all.
local PASSES_LANE, PASSES = 100, 500
local claimed, runs_dry, passes = nil, false, 0

-- Return true where this worker is the one that runs dry for a job.
local function dries(name)
  local key = P .. 'dry:' .. name
  local who = redis.call('GET', key)
  if who and who ~= args.worker then return false end
  redis.call('SET', key, args.worker, 'PX', 60000)
  return true
end

-- Return the next job of a lane, and true where the job has crashed before.
local function pick(lanekey, tenant)
  local looked, place, last_pass = 0, 0, math.min(PASSES, passes + PASSES_LANE)
  while looked < LOOKS and place < READ do
    local ids = redis.call('ZRANGE', lanekey, place, place + LOOKS - looked - 1)
    if #ids == 0 then return nil end
    place = place + #ids
    for _, id in ipairs(ids) do
      local counts = redis.call('HMGET', jobkey(tenant, id), 'crashes', 'max_crashes', 'version', 'state', 'fetch_hosts',
        'message')
      local crashes, newer = tonumber(counts[1] or '0'), tonumber(counts[3] or '1') > tonumber(args.version)
      if not newer and (not counts[4] or is_known(counts[4])) then  -- others are for newer workers
        local passed = waits(tenant, id, counts[5], counts[6])
        if passed then
          if passes >= last_pass then return nil end
          passes = passes + 1
        else
          looked = looked + 1
        end
        if not passed then
          if crashes == 0 then return id, false end
          if args.dry or not last_chance(crashes, counts[2]) then return id, true end
          if dries(tenant .. '/' .. id) then
            runs_dry = true
            return nil
          end
        end
      end
    end
  end
end

-- Lanes of a page. A lane whose next job could not be taken may be gone now: those behind it have moved.
local PAGE = 50
local all_lanes, passed, moved = qkey(queue, 'lanes'), 0, false

local function try(lane)
  local model, tenant = split(lane)
  if not served[model] or redis.call('SCARD', tkey(tenant, 'running')) >= (tonumber(args.caps[tenant]) or cap) then return end
  local lanekey = qkey(queue, 'lane:' .. lane)
  local id, has_crashed = pick(lanekey, tenant)
  if not id then return end
  claimed = take(tenant, id)
  if not claimed then
    moved = true
    return dequeue({ model = model, tenant = tenant, queue = queue, id = id, name = tenant .. '/' .. id })
  end
  if has_crashed then redis.call('DEL', P .. 'dry:' .. tenant .. '/' .. id) end
  if redis.call('EXISTS', lanekey) == 1 then redis.call('ZADD', all_lanes, int(now + 1), lane) end
end

-- Try some lanes; return the number of those that gave no job.
local function try_all(lanes)
  local without = 0
  for _, lane in ipairs(lanes) do
    if claimed or runs_dry then break end
    try(lane)
    if not claimed then without = without + 1 end
  end
  return without
end

-- The most lanes of one model that `names` is asked for; ms between two comparisons of `names` with the lanes.
local OWN, COMPARE_MS = 1000, 30000
local names = qkey(queue, 'names')

-- Return the lanes of the models that this claim may take, in the order of `lanes`; nil where one model has too many.
local function own_lanes()
  local found, scored = {}, {}
  for _, model in ipairs(args.models) do
    local some = redis.call('ZRANGEBYLEX', names, '[' .. model .. '/', '(' .. model .. '0', 'LIMIT', 0, OWN + 1)
    if #some > OWN then return nil end
    local scores = #some > 0 and redis.call('ZMSCORE', all_lanes, unpack(some)) or {}
    for i, lane in ipairs(some) do
      if scores[i] then
        found[#found + 1], scored[lane] = lane, tonumber(scores[i])
      else
        redis.call('ZREM', names, lane)  -- an older release emptied it
      end
    end
  end
  table.sort(found, function(a, b) if scored[a] ~= scored[b] then return scored[a] < scored[b] end return a < b end)
  return found
end

-- Try the lanes of the own models; return true where the others need not be looked at. From time to time they are all
-- looked at, because older releases do not keep `names`.
local function tried_own()
  if redis.call('SET', qkey(queue, 'compared'), '1', 'NX', 'PX', COMPARE_MS) then return false end
  local lanes = own_lanes()
  if lanes then try_all(lanes) end
  return lanes ~= nil
end

-- The first page holds a job for most claims. Behind it only the lanes of the own models are looked at.
local compares = false
while not claimed and not runs_dry do
  local lanes = redis.call('ZRANGE', all_lanes, passed, passed + PAGE - 1)
  if #lanes == 0 and not moved then break end
  if #lanes == 0 then passed, moved = 0, false end
  if passed >= PAGE and not compares then
    if tried_own() then break end
    compares = true
  end
  for _, lane in ipairs(compares and lanes or {}) do redis.call('ZADD', names, 0, lane) end
  passed = passed + try_all(lanes)
end
if not claimed then return '' end
claimed.more, claimed.may_be_old = redis.call('EXISTS', all_lanes) == 1, may_be_old()
local reply = cjson.encode(claimed)
redis.call('SET', memo, reply, 'PX', int(lease / 1000))
return reply
