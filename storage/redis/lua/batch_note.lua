#!lua flags=allow-oom
-- tenant id fields {name: value} -> view | 0 unknown | 1 gone. Writes fields of a batch that is not over.
local tenant, id = args.tenant, args.id
local key = bkey(tenant, id)
if redis.call('EXISTS', key) == 1 and redis.call('HEXISTS', key, 'end') == 0 then
  redis.call('HSET', key, unpack(flatten(args.fields)))
  batch_changed(tenant, id)
end
local found, missing = batch_view(tenant, id)
return found or missing
