#!lua flags=allow-oom
-- worker about(JSON) more(JSON) lines(JSON; none = as before) alive_us lines_us -> 1 | 0 where the lines of before are gone.
-- Stores a worker's description of itself, which is valid for `alive_us`, and its latest log lines, for `lines_us`.
local now, seen, about = now_us(), P .. 'workers:seen', P .. 'workers'
redis.call('HSET', about, args.worker, args.about)
redis.call('SET', about .. ':more:' .. args.worker, args.more, 'PX', math.max(1, math.ceil(args.alive_us / 1000)))
redis.call('ZADD', seen, int(now + args.alive_us), args.worker)
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', int(now))) do
  redis.call('ZREM', seen, dead)
  redis.call('HDEL', about, dead)
end
local lines, lines_ms = about .. ':lines:' .. args.worker, math.max(1, math.ceil(args.lines_us / 1000))
if not args.lines then return redis.call('PEXPIRE', lines, lines_ms) end
redis.call('SET', lines, args.lines, 'PX', lines_ms)
return 1
