#!lua flags=allow-oom
-- tenant id name value ... -> view | 0 unknown | 1 gone. Notes what is known of a batch that is not over.
local tenant, id = ARGV[1], ARGV[2]
local key = bkey(tenant, id)
if redis.call('EXISTS', key) == 1 and redis.call('HEXISTS', key, 'end') == 0 then
  redis.call('HSET', key, unpack(ARGV, 3))
  batch_changed(tenant, id)
end
local found, missing = batch_view(tenant, id)
return found or missing
