#!lua flags=allow-oom
-- tenant id gone_s(0 = as if it had never been) -> 1. Forgets a batch and leaves a marker for 410.
local tenant, id = ARGV[1], ARGV[2]
local key = bkey(tenant, id)
redis.call('DEL', key, key .. ':counts', key .. ':jobs', key .. ':live')
redis.call('ZREM', tkey(tenant, 'batches'), id)
redis.call('ZREM', P .. 'batches', tenant .. '/' .. id)
redis.call('ZREM', P .. 'batches:finished', tenant .. '/' .. id)
if tonumber(ARGV[3]) > 0 then redis.call('SET', tkey(tenant, 'batchgone:' .. id), '1', 'EX', ARGV[3]) end
redis.call('PUBLISH', P .. 'changes', tenant .. '/' .. id)
return 1
