#!lua flags=no-writes
-- queues [Q...] -> {starts so far, claiming, draining, starting, models}: the workers of these queues
-- `claiming` live and claim, `draining` run jobs and claim nothing more, `starting` were reserved by `start_workers` and
-- have not reported yet. `models` is the number of models in the catalogue.
local now, claims, comes, runs, draining, claiming, starting = now_us(), {}, {}, {}, 0, 0, 0
for _, queue in ipairs(args.queues) do
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', qkey(queue, 'seen'), '(' .. int(now), '+inf')) do
    if not claims[worker] then claims[worker] = true; claiming = claiming + 1 end
  end
  for _, name in ipairs(redis.call('SMEMBERS', qkey(queue, 'running'))) do
    local worker = redis.call('HGET', jobkey(split(name)), 'worker')
    if worker then runs[worker] = true end
  end
end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers:seen', '(' .. int(now), '+inf')) do
  if runs[worker] and not claims[worker] then draining = draining + 1 end
end
for _, queue in ipairs(args.queues) do
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', qkey(queue, 'starting'), '(' .. int(now), '+inf')) do
    if not (claims[worker] or comes[worker]) then comes[worker] = true; starting = starting + 1 end
  end
end
local starts = tonumber(redis.call('GET', P .. 'workers:starts') or '0')
return { starts, claiming, draining, starting, redis.call('HLEN', P .. 'catalogue') }
