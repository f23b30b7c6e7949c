#!lua flags=allow-oom
-- queue worker slots alive_us -> ok. A worker claimed or tried to claim; it counts as alive for `alive_us`, and is no longer
-- starting.
local queue, now = args.queue, now_us()
redis.call('SADD', P .. 'queues', queue)
redis.call('ZADD', qkey(queue, 'seen'), int(now + args.alive_us), args.worker)
redis.call('HSET', qkey(queue, 'workers'), args.worker, args.slots)
redis.call('ZREM', qkey(queue, 'starting'), args.worker)
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', qkey(queue, 'seen'), '-inf', int(now))) do
  redis.call('ZREM', qkey(queue, 'seen'), dead)
  redis.call('HDEL', qkey(queue, 'workers'), dead)
end
return 'ok'
