#!lua flags=allow-oom
-- worker about(JSON) alive_us -> ok. What a worker is and does, for people; it counts for so long.
local now, seen, about = now_us(), P .. 'workers:seen', P .. 'workers'
redis.call('HSET', about, ARGV[1], ARGV[2])
redis.call('ZADD', seen, int(now + ARGV[3]), ARGV[1])
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', int(now))) do
  redis.call('ZREM', seen, dead)
  redis.call('HDEL', about, dead)
end
return 'ok'
