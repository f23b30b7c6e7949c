#!lua
-- queue slot nonce n lease_us max_tenant_running worker models(JSON list) dry(1|0) caps(JSON) -> JSON list of claims
-- caps: tenant -> its own max_tenant_running. A claim tells whether others wait (more).
-- One model a claim, round robin over its tenants. A job with a crash behind it is claimed alone. One whose next crash is
-- the last also runs alone, in a worker that runs nothing else (`dry` is 1), so that nobody fails for what a neighbour
-- did. A busy worker that meets one first runs dry for it: its claims end there. The others pass it by.
local queue, n, lease, cap = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local memo = P .. 'claim:' .. ARGV[2] .. ':' .. ARGV[3]
local again = redis.call('GET', memo)
if again then return again end
if redis.call('GET', qkey(queue, 'mode')) == 'paused' then return '[]' end
local now = now_us()
local caps = cjson.decode(ARGV[10])
local served = {}
for _, name in ipairs(cjson.decode(ARGV[8])) do served[name] = true end

local function last_chance(crashes, max_crashes)
  return tonumber(crashes) > 0 and tonumber(crashes) >= tonumber(max_crashes) - 1
end

local function take(tenant, id)
  local job = load(tenant, id)
  if not job or job.state ~= 'queued' then return nil end
  local fence = int(math.max(tonumber(job.fence) + 1, now))
  dequeue(job)
  redis.call('ZREM', P .. 'expiring', job.name)
  redis.call('ZADD', P .. 'leases', int(now + lease), job.name)
  redis.call('ZADD', P .. 'deadlines', int(now + job.execution_us), job.name)
  redis.call('SADD', tkey(tenant, 'running'), id)
  redis.call('SADD', qkey(queue, 'running'), job.name)
  write(job, {
    state = 'running', phase = 'loading', fence = fence, started_us = int(now),
    lease_us = int(now + lease), deadline_us = int(now + job.execution_us), worker = ARGV[7],
    attempt = int(job.attempt + (job.given_back == '1' and 0 or 1)), given_back = '',
    done = job.done or '0', total = job.total or '', unit = job.unit or 'prompts', own_done = '0',
    past_done = job.done or '0', past_total = job.total or '', past_unit = job.unit or 'prompts',
    message = '', due_us = '', reported_us = '0', ended_by = '', checkpoints = '0',
  })
  emit(job, 'job.started', { attempt = tonumber(job.attempt), worker = ARGV[7], fence = fence })
  announce(job, 'job.started', now)
  return { submission = job.submission, attempt = tonumber(job.attempt), crashes = tonumber(job.crashes),
    last_chance = last_chance(job.crashes, job.max_crashes), fence = fence, claimed_us = int(now), lease_us = int(lease) }
end

local claims, chosen, alone = {}, nil, false

-- Whether this worker is the one that runs dry for a job.
local function dries(name)
  local key = P .. 'dry:' .. name
  local who = redis.call('GET', key)
  if who and who ~= ARGV[7] then return false end
  redis.call('SET', key, ARGV[7], 'PX', 60000)
  return true
end

-- The next job of a lane, and whether it wants to be alone.
local function pick(lanekey, tenant)
  for _, id in ipairs(redis.call('ZRANGE', lanekey, 0, 9)) do
    local counts = redis.call('HMGET', jobkey(tenant, id), 'crashes', 'max_crashes')
    local crashes = tonumber(counts[1] or '0')
    if crashes == 0 then return id, false end
    if #claims == 0 then
      if ARGV[9] == '1' or not last_chance(crashes, counts[2]) then return id, true end
      if dries(tenant .. '/' .. id) then
        alone = true
        return nil
      end
    end
  end
end

local moved = true
while moved and #claims < n and not alone do
  moved = false
  for _, lane in ipairs(redis.call('ZRANGE', qkey(queue, 'lanes'), 0, -1)) do
    local model, tenant = split(lane)
    if #claims < n and not alone and served[model] and (not chosen or chosen == model)
      and redis.call('SCARD', tkey(tenant, 'running')) < (caps[tenant] or cap) then
      local lanekey = qkey(queue, 'lane:' .. lane)
      local id, lonely = pick(lanekey, tenant)
      if id then
        local claim = take(tenant, id)
        moved = true
        if claim then
          claims[#claims + 1] = claim
          chosen, alone = model, lonely
          if lonely then redis.call('DEL', P .. 'dry:' .. tenant .. '/' .. id) end
          if redis.call('EXISTS', lanekey) == 1 then
            redis.call('ZADD', qkey(queue, 'lanes'), int(now + #claims), lane)
          end
        else
          dequeue({ model = model, tenant = tenant, queue = queue, id = id, name = tenant .. '/' .. id })
        end
      end
    end
  end
end
local more = redis.call('ZCARD', qkey(queue, 'waiting')) > 0
for _, claim in ipairs(claims) do claim.more = more end
local reply = json_list(claims)
if #claims > 0 then redis.call('SET', memo, reply, 'PX', int(lease / 1000)) end
return reply
