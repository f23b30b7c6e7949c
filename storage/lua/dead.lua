#!lua flags=no-writes
-- queue tenant limit -> {record...} of the tenant's dead letters, newest first
local rows = {}
for _, name in ipairs(redis.call('ZREVRANGE', qkey(ARGV[1], 'dead'), 0, 4999)) do
  local tenant, id = split(name)
  local job = tenant == ARGV[2] and load(tenant, id)
  if job then rows[#rows + 1] = flatten(job) end
  if #rows == tonumber(ARGV[3]) then break end
end
return rows
