#!lua flags=allow-oom
-- queue worker slots alive_us -> ok. A worker claimed or tried to claim; it counts for so long.
local queue, now = ARGV[1], now_us()
redis.call('SADD', P .. 'queues', queue)
redis.call('ZADD', qkey(queue, 'seen'), int(now + ARGV[4]), ARGV[2])
redis.call('HSET', qkey(queue, 'workers'), ARGV[2], ARGV[3])
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', qkey(queue, 'seen'), '-inf', int(now))) do
  redis.call('ZREM', qkey(queue, 'seen'), dead)
  redis.call('HDEL', qkey(queue, 'workers'), dead)
end
return 'ok'
