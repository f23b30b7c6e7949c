#!lua flags=no-writes
-- queues [Q...] -> {starts so far, models, {workers of any of the queues}, {workers of the first queue}, ...}
-- The workers are {claiming, draining, jobs of the draining, starting}: `claiming` live and claim, `draining` run jobs and
-- claim nothing more, `starting` were reserved by `start_workers` and have not reported yet. A worker that does one of these
-- in several queues counts once in the first row. `models` is the number of models in the catalogue.
local now, alive = now_us(), {}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers:seen', '(' .. int(now), '+inf')) do
  alive[worker] = true
end

local function size(set)
  local n = 0
  for _ in pairs(set) do n = n + 1 end
  return n
end

local function workers(queues)
  local claims, drains, jobs, comes = {}, {}, 0, {}
  for _, queue in ipairs(queues) do
    for _, worker in ipairs(redis.call('ZRANGEBYSCORE', qkey(queue, 'seen'), '(' .. int(now), '+inf')) do
      claims[worker] = true
    end
  end
  for _, queue in ipairs(queues) do
    for _, name in ipairs(redis.call('SMEMBERS', qkey(queue, 'running'))) do
      local worker = redis.call('HGET', jobkey(split(name)), 'worker')
      if worker and alive[worker] and not claims[worker] then drains[worker], jobs = true, jobs + 1 end
    end
    for _, worker in ipairs(redis.call('ZRANGEBYSCORE', qkey(queue, 'starting'), '(' .. int(now), '+inf')) do
      if not claims[worker] then comes[worker] = true end
    end
  end
  return { size(claims), size(drains), jobs, size(comes) }
end

local rows = { tonumber(redis.call('GET', P .. 'workers:starts') or '0'), redis.call('HLEN', P .. 'catalogue'),
  workers(args.queues) }
for _, queue in ipairs(args.queues) do rows[#rows + 1] = workers({ queue }) end
return rows
