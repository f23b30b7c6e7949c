#!lua flags=allow-oom
-- tenant id end(JSON) completed_us deleted(1 or 0) -> 1, or 0 for an unknown batch. The batch is over, as its stored outcome
-- says; a deleted one is purged at once.
local tenant, id = ARGV[1], ARGV[2]
local key = bkey(tenant, id)
if redis.call('EXISTS', key) == 0 then return 0 end
if redis.call('HEXISTS', key, 'end') == 0 then
  redis.call('HSET', key, 'end', ARGV[3], 'completed_us', ARGV[4], 'closed', '1')
end
redis.call('ZREM', P .. 'batches', tenant .. '/' .. id)
local purge = redis.call('HGET', key, 'completed_us') + redis.call('HGET', key, 'retention_us')
if ARGV[5] == '1' or redis.call('HGET', key, 'deleted') == '1' then
  redis.call('HSET', key, 'deleted', '1')
  redis.call('ZREM', tkey(tenant, 'batches'), id)
  purge = 0
end
redis.call('ZADD', P .. 'batches:finished', int(purge), tenant .. '/' .. id)
batch_changed(tenant, id)
return 1
