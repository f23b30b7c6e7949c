#!lua flags=no-writes
-- queue -> {now_us, waiting, oldest created_us or false, done, since_us or false, workers, known, mode, dead letters, pace,
--   busy workers, {jobs that wait, speed_us or false, growth or false, {bytes of the media or '' ...}, ... of each model}}
-- The bytes are those of at most about LOOKS jobs, evenly spread over the lanes of models whose growth is known.
-- `done` jobs have succeeded since `since_us`: enough for a speed. The pace is that of the last waiting job.
local queue, now = args.queue, now_us()
local LOOKS = 64

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

-- Return the number of workers that hold a job of the queue.
local function busy()
  local found, count = {}, 0
  for _, name in ipairs(redis.call('SMEMBERS', qkey(queue, 'running'))) do
    local worker = redis.call('HGET', jobkey(split(name)), 'worker')
    if worker and not found[worker] then found[worker], count = true, count + 1 end
  end
  return count
end

-- Return the bytes of the media of every n-th job of each lane, by model.
local function sizes(growths)
  local found, every = {}, math.max(1, redis.call('ZCARD', qkey(queue, 'waiting')) / LOOKS)
  for _, lane in ipairs(redis.call('ZRANGE', qkey(queue, 'lanes'), 0, -1)) do
    local model, tenant = split(lane)
    local looked = found[model] or {}
    found[model] = looked
    for n = 0, growths[model] and math.ceil(redis.call('ZCARD', qkey(queue, 'lane:' .. lane)) / every) - 1 or -1 do
      local place = math.floor(n * every)
      local id = redis.call('ZRANGE', qkey(queue, 'lane:' .. lane), place, place)[1]
      looked[#looked + 1] = id and redis.call('HGET', jobkey(tenant, id), 'media_bytes') or ''
    end
  end
  return found
end

local function backlog()
  local rows, growths = {}, table_of(redis.call('HGETALL', qkey(queue, 'growth')))
  local looked = sizes(growths)
  for model, each in pairs(backlog_of(queue)) do
    rows[#rows + 1], rows[#rows + 2] = each.jobs, each.speed_us
    rows[#rows + 1], rows[#rows + 2] = growths[model] or false, looked[model] or {}
  end
  return rows
end

local done, since = lately()
return { int(now), redis.call('ZCARD', qkey(queue, 'waiting')), waiting(0, 'created_us'), done, since,
  redis.call('ZCOUNT', qkey(queue, 'seen'), int(now), '+inf'), redis.call('SISMEMBER', P .. 'queues', queue),
  redis.call('GET', qkey(queue, 'mode')) or 'open', redis.call('ZCARD', qkey(queue, 'dead')),
  pace(queue, waiting(-1, 'model'), now), busy(), backlog() }
