#!lua flags=allow-oom
-- worker about(JSON) more(JSON) alive_us -> ok. Stores a worker's description of itself, which is valid for `alive_us`.
local now, seen, about = now_us(), P .. 'workers:seen', P .. 'workers'
redis.call('HSET', about, args.worker, args.about)
redis.call('SET', about .. ':more:' .. args.worker, args.more, 'PX', math.max(1, math.ceil(args.alive_us / 1000)))
redis.call('ZADD', seen, int(now + args.alive_us), args.worker)
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', int(now))) do
  redis.call('ZREM', seen, dead)
  redis.call('HDEL', about, dead)
end
return 'ok'
