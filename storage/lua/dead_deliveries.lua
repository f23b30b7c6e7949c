#!lua flags=no-writes
-- tenant endpoint(or '') limit -> {{delivery...}, more(1 or 0)}: those that failed for good, the latest first
local rows, limit, now = {}, tonumber(ARGV[3]), now_us()
for _, id in ipairs(redis.call('ZREVRANGE', tkey(ARGV[1], 'deliveries:dead'), 0, 4999)) do
  if ARGV[2] == '' or redis.call('HGET', rowkey(ARGV[1], id), 'endpoint') == ARGV[2] then
    if #rows == limit then return { rows, 1 } end
    rows[#rows + 1] = delivery(ARGV[1], id, now)
  end
end
return { rows, 0 }
