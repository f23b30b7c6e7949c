#!lua
-- tenant id created_us fields {name: value} -> view | 1 gone. Creates a batch, once. A reserved batch waits for its
-- manifest in the object store.
local tenant, id, key = args.tenant, args.id, bkey(args.tenant, args.id)
if redis.call('EXISTS', tkey(tenant, 'batchgone:' .. id)) == 1 then return 1 end
if redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, unpack(flatten(args.fields)))
  redis.call('ZADD', tkey(tenant, 'batches'), args.created_us, id)
  redis.call('ZADD', P .. 'batches', args.created_us, tenant .. '/' .. id)
end
local found, missing = batch_view(tenant, id)
return found or missing
