#!lua flags=no-writes
-- tenant id -> {delivery...} | 0 unknown | 1 gone
local job, missing = find(ARGV[1], ARGV[2])
if not job then return missing end
local rows, now = {}, now_us()
for _, id in ipairs(redis.call('LRANGE', jobkey(ARGV[1], ARGV[2]) .. ':deliveries', 0, -1)) do
  rows[#rows + 1] = delivery(ARGV[1], id, now)
end
return { rows }
