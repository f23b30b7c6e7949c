#!lua flags=no-writes
-- tenant id after count -> entries of the job's event stream after an id | 0 unknown | 1 gone
local key = jobkey(ARGV[1], ARGV[2])
if redis.call('EXISTS', key) == 0 then return redis.call('EXISTS', tkey(ARGV[1], 'gone:' .. ARGV[2])) end
return { redis.call('XRANGE', key .. ':events', '(' .. ARGV[3], '+', 'COUNT', ARGV[4]) }
