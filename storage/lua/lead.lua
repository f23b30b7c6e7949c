#!lua flags=allow-oom
-- who lease_ms -> 1 if `who` is the active keeper until the lease ends
local key = P .. 'keeper'
local holder = redis.call('GET', key)
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
return 1
