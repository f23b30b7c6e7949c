#!lua
-- tenant endpoint delivery url body -> {{delivery}}. Adds a delivery of a test event, which is tried once.
local now = now_us()
if redis.call('EXISTS', rowkey(args.tenant, args.delivery)) == 0 then
  local row = { id = args.delivery, tenant = args.tenant, job = '', event = 'webhook.test', url = args.url, endpoint = args.endpoint,
    created_us = int(now), tries = '0', state = 'pending', log = '[]', body = args.body }
  local listed = tkey(args.tenant, 'endpoint:' .. args.endpoint .. ':deliveries')
  for _, id in ipairs(redis.call('ZRANGE', listed, 0, 99)) do
    if redis.call('EXISTS', rowkey(args.tenant, id)) == 0 then redis.call('ZREM', listed, id) end  -- of an old test
  end
  keep(row, now)
  hasten(row, now)
  redis.call('EXPIRE', rowkey(args.tenant, args.delivery), 86400)
end
return { { delivery(args.tenant, args.delivery, now) } }
