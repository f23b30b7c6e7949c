#!lua flags=allow-oom
-- worker about(JSON) more(JSON) busy_us lines(JSON; none = as before) alive_us lines_us -> 1 | 0 where the lines of before are
-- gone. `busy_us` are those of each second in which the worker's device computes.
-- Stores a worker's description of itself, which is valid for `alive_us`, and its latest log lines, for `lines_us`.
local now, seen, about = now_us(), P .. 'workers:seen', P .. 'workers'
redis.call('HSET', about, args.worker, args.about)
local alive_ms, at = math.max(1, math.ceil(args.alive_us / 1000)), about .. ':at:' .. args.worker
redis.call('SET', about .. ':more:' .. args.worker, args.more, 'PX', alive_ms)
local before = redis.call('GET', at)
redis.call('SET', at, int(now), 'PX', alive_ms)
if before then
  local lived = now - before
  count_up(P .. 'counts:workers', { lived_us = lived, busy_us = math.floor(lived * args.busy_us / 1000000) })
end
redis.call('ZADD', seen, int(now + args.alive_us), args.worker)
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', int(now))) do
  redis.call('ZREM', seen, dead)
  redis.call('HDEL', about, dead)
end
local lines, lines_ms = about .. ':lines:' .. args.worker, math.max(1, math.ceil(args.lines_us / 1000))
if not args.lines then return redis.call('PEXPIRE', lines, lines_ms) end
redis.call('SET', lines, args.lines, 'PX', lines_ms)
return 1
