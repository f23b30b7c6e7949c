#!lua
-- tenant endpoint delivery url body -> {{delivery}}. A delivery of an event of no job, to be tried once.
local now = now_us()
if redis.call('EXISTS', rowkey(ARGV[1], ARGV[3])) == 0 then
  local row = { id = ARGV[3], tenant = ARGV[1], job = '', event = 'webhook.test', url = ARGV[4], endpoint = ARGV[2],
    created_us = int(now), tries = '0', state = 'pending', log = '[]', body = ARGV[5] }
  local listed = tkey(ARGV[1], 'endpoint:' .. ARGV[2] .. ':deliveries')
  for _, id in ipairs(redis.call('ZRANGE', listed, 0, 99)) do
    if redis.call('EXISTS', rowkey(ARGV[1], id)) == 0 then redis.call('ZREM', listed, id) end  -- of an old test
  end
  keep(row, now)
  hasten(row, now)
  redis.call('EXPIRE', rowkey(ARGV[1], ARGV[3]), 86400)
end
return { { delivery(ARGV[1], ARGV[3], now) } }
