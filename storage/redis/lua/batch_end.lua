#!lua flags=allow-oom
-- tenant id result(JSON) completed_us deleted(bool) -> 1 | 0 unknown. Ends a batch by its stored outcome. A deleted
-- batch is purged at once.
local tenant, id = args.tenant, args.id
local key = bkey(tenant, id)
if redis.call('EXISTS', key) == 0 then return 0 end
if redis.call('HEXISTS', key, 'end') == 0 then
  redis.call('HSET', key, 'end', args.result, 'completed_us', args.completed_us, 'closed', '1')
end
redis.call('ZREM', P .. 'batches', tenant .. '/' .. id)
local purge = redis.call('HGET', key, 'completed_us') + redis.call('HGET', key, 'retention_us')
if args.deleted or redis.call('HGET', key, 'deleted') == '1' then
  redis.call('HSET', key, 'deleted', '1')
  redis.call('ZREM', tkey(tenant, 'batches'), id)
  purge = 0
end
redis.call('ZADD', P .. 'batches:finished', int(purge), tenant .. '/' .. id)
batch_changed(tenant, id)
return 1
