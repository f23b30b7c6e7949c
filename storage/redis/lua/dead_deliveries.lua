#!lua flags=no-writes
-- tenant endpoint(optional) limit -> {{delivery...}, more(1 or 0)} of deliveries that failed for good, latest first
local rows, limit, now = {}, tonumber(args.limit), now_us()
for _, id in ipairs(redis.call('ZREVRANGE', tkey(args.tenant, 'deliveries:dead'), 0, 4999)) do
  if not args.endpoint or redis.call('HGET', rowkey(args.tenant, id), 'endpoint') == args.endpoint then
    if #rows == limit then return { rows, 1 } end
    rows[#rows + 1] = delivery(args.tenant, id, now)
  end
end
return { rows, 0 }
