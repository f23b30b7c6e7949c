#!lua flags=no-writes
-- tenant id after count -> entries of the job's event stream after an id | 0 unknown | 1 gone
local job, missing = find(ARGV[1], ARGV[2])
if not job then return missing end
return { redis.call('XRANGE', jobkey(ARGV[1], ARGV[2]) .. ':events', '(' .. ARGV[3], '+', 'COUNT', ARGV[4]) }
