#!lua flags=no-writes
-- tenant endpoint before_us before_id(both optional) limit -> {{delivery...}, next_us or '', next_id}
-- Latest first; deliveries of one time by their ids. The page begins after the delivery `before_id` of `before_us`.
local key, now, limit = tkey(args.tenant, 'endpoint:' .. args.endpoint .. ':deliveries'), now_us(), tonumber(args.limit)
local rows, skip = {}, 0
local from = args.before_us or '+inf'
while true do
  local found = redis.call('ZREVRANGEBYSCORE', key, from, '-inf', 'WITHSCORES', 'LIMIT', skip, 100)
  for i = 1, #found, 2 do
    local id, at = found[i], int(tonumber(found[i + 1]))
    if not (at == args.before_us and id >= args.before_id) and redis.call('EXISTS', rowkey(args.tenant, id)) == 1 then
      rows[#rows + 1] = delivery(args.tenant, id, now)
      if #rows == limit then return { rows, at, id } end
    end
  end
  if #found < 200 then return { rows, '', '' } end
  skip = skip + 100
end
