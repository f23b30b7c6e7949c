#!lua flags=no-writes
-- tenant id -> {delivery...} | 0 unknown | 1 gone
local key = jobkey(ARGV[1], ARGV[2])
if redis.call('EXISTS', key) == 0 then return redis.call('EXISTS', tkey(ARGV[1], 'gone:' .. ARGV[2])) end
local rows = {}
for _, id in ipairs(redis.call('LRANGE', key .. ':deliveries', 0, -1)) do
  rows[#rows + 1] = redis.call('HGETALL', tkey(ARGV[1], 'delivery:' .. id))
end
return { rows }
