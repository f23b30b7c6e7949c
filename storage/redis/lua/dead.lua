#!lua flags=no-writes
-- queue tenant limit -> {record...} of the tenant's dead letters, newest first
local rows = {}
for _, name in ipairs(redis.call('ZREVRANGE', qkey(args.queue, 'dead'), 0, 4999)) do
  local tenant, id = split(name)
  local job = tenant == args.tenant and load(tenant, id)
  if job then rows[#rows + 1] = flatten(job) end
  if #rows == tonumber(args.limit) then break end
end
return rows
