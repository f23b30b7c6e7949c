#!lua
-- tenant id manifest(JSON) created_us retention_us reserved(1 or 0) line offset requests invalid cancel(1 or 0)
-- -> view | 1 gone. Makes a batch known, once; a reserved one waits for its manifest in the object store.
local tenant, id, key = ARGV[1], ARGV[2], bkey(ARGV[1], ARGV[2])
if redis.call('EXISTS', tkey(tenant, 'batchgone:' .. id)) == 1 then return 1 end
if redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, 'manifest', ARGV[3], 'created_us', ARGV[4], 'retention_us', ARGV[5], 'reserved', ARGV[6],
    'line', ARGV[7], 'offset', ARGV[8], 'requests', ARGV[9], 'invalid', ARGV[10], 'cancel', ARGV[11], 'closed', '0')
  redis.call('ZADD', tkey(tenant, 'batches'), ARGV[4], id)
  redis.call('ZADD', P .. 'batches', ARGV[4], tenant .. '/' .. id)
end
local found, missing = batch_view(tenant, id)
return found or missing
