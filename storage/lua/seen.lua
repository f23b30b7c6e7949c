#!lua flags=allow-oom
-- queue worker slots -> ok. A worker claimed or tried to claim.
local now = now_us()
redis.call('SADD', P .. 'queues', ARGV[1])
redis.call('ZADD', qkey(ARGV[1], 'seen'), int(now), ARGV[2])
redis.call('HSET', qkey(ARGV[1], 'workers'), ARGV[2], ARGV[3])
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', qkey(ARGV[1], 'seen'), '-inf', int(now - 3600000000))) do
  redis.call('ZREM', qkey(ARGV[1], 'seen'), dead)
  redis.call('HDEL', qkey(ARGV[1], 'workers'), dead)
end
return 'ok'
