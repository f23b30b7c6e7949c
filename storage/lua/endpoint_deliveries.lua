#!lua flags=no-writes
-- tenant endpoint before_us(or '') before_id limit -> {{delivery...}, next_us or '', next_id}: the latest first, those of
-- one moment by their ids. The page begins behind the delivery `before_id` of `before_us`.
local key, now, limit = tkey(ARGV[1], 'endpoint:' .. ARGV[2] .. ':deliveries'), now_us(), tonumber(ARGV[5])
local rows, skip = {}, 0
local from = ARGV[3] == '' and '+inf' or ARGV[3]
while true do
  local found = redis.call('ZREVRANGEBYSCORE', key, from, '-inf', 'WITHSCORES', 'LIMIT', skip, 100)
  for i = 1, #found, 2 do
    local id, at = found[i], int(tonumber(found[i + 1]))
    if not (at == ARGV[3] and id >= ARGV[4]) and redis.call('EXISTS', rowkey(ARGV[1], id)) == 1 then
      rows[#rows + 1] = delivery(ARGV[1], id, now)
      if #rows == limit then return { rows, at, id } end
    end
  end
  if #found < 200 then return { rows, '', '' } end
  skip = skip + 100
end
