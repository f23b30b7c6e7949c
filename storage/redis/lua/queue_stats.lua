#!lua flags=no-writes
-- queue -> {now_us, waiting, oldest created_us or false, done, since_us or false, workers, known, mode, dead letters, pace}
-- `done` jobs have succeeded since `since_us`: enough for a speed. The pace is that of the last waiting job.
local queue, now = args.queue, now_us()

local function waiting(place, field)
  local name = redis.call('ZRANGE', qkey(queue, 'waiting'), place, place)[1]
  if not name then return false end
  local tenant, id = split(name)
  return redis.call('HGET', jobkey(tenant, id), field)
end

local function lately()
  local done, since = 0, false
  for back = 0, 30 do
    local row = redis.call('HMGET', qkey(queue, 'done:' .. int(math.floor(now / 10000000) - back)), 'n', 'since_us')
    if row[1] then done, since = done + row[1], row[2] end
    if done >= 20 then break end
  end
  return done, since
end

local done, since = lately()
return { int(now), redis.call('ZCARD', qkey(queue, 'waiting')), waiting(0, 'created_us'), done, since,
  redis.call('ZCOUNT', qkey(queue, 'seen'), int(now), '+inf'), redis.call('SISMEMBER', P .. 'queues', queue),
  redis.call('GET', qkey(queue, 'mode')) or 'open', redis.call('ZCARD', qkey(queue, 'dead')),
  pace(queue, waiting(-1, 'model'), now) }
