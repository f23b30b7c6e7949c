#!lua flags=no-writes
-- queue -> {now_us, waiting, running, oldest_rank, done_5min, workers, slots, {model, speed_us...}, known, mode,
-- dead letters}
local queue, now = ARGV[1], now_us()
local oldest = redis.call('ZRANGE', qkey(queue, 'waiting'), 0, 0)[1]
local created = false
if oldest then
  local tenant, id = split(oldest)
  created = redis.call('HGET', jobkey(tenant, id), 'created_us')
end
local done, minute = 0, math.floor(now / 60000000)
for back = 1, 5 do done = done + (redis.call('GET', qkey(queue, 'done:' .. int(minute - back))) or 0) end
local workers = redis.call('ZCOUNT', qkey(queue, 'seen'), int(now - 60000000), '+inf')
return { int(now), redis.call('ZCARD', qkey(queue, 'waiting')), redis.call('SCARD', qkey(queue, 'running')), created, done, workers, slots_of(queue, now),
  redis.call('HGETALL', qkey(queue, 'speed')), redis.call('SISMEMBER', P .. 'queues', queue),
  redis.call('GET', qkey(queue, 'mode')) or 'open', redis.call('ZCARD', qkey(queue, 'dead')) }
