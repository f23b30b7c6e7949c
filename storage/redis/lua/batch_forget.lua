#!lua flags=allow-oom
-- tenant id gone_s -> 1. Purges a batch and, unless `gone_s` is 0, leaves a marker: the API answers 410.
local tenant, id = args.tenant, args.id
local key = bkey(tenant, id)
redis.call('DEL', key, key .. ':counts', key .. ':jobs', key .. ':live')
redis.call('ZREM', tkey(tenant, 'batches'), id)
redis.call('ZREM', P .. 'batches', tenant .. '/' .. id)
redis.call('ZREM', P .. 'batches:finished', tenant .. '/' .. id)
if tonumber(args.gone_s) > 0 then redis.call('SET', tkey(tenant, 'batchgone:' .. id), '1', 'EX', args.gone_s) end
redis.call('PUBLISH', P .. 'changes', tenant .. '/' .. id)
return 1
