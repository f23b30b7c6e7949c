#!lua flags=allow-oom
-- tenant id delivery -> {{delivery}} | 0 unknown job | 1 gone | 2 unknown delivery. A delivery that is settled is due again.
local job = load(ARGV[1], ARGV[2])
if not job then return redis.call('EXISTS', tkey(ARGV[1], 'gone:' .. ARGV[2])) end
local key = tkey(ARGV[1], 'delivery:' .. ARGV[3])
if redis.call('HGET', key, 'job') ~= ARGV[2] then return 2 end
if redis.call('HGET', key, 'state') ~= 'pending' then
  redis.call('HSET', key, 'state', 'pending')
  redis.call('ZADD', P .. 'outbox', int(now_us()), ARGV[1] .. '/' .. ARGV[3])
  write(job, { delivery = 'pending' })
  emit(job, 'delivery.pending', {})
end
return { { redis.call('HGETALL', key) } }
