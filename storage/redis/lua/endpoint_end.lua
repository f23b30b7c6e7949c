#!lua flags=allow-oom
-- tenant endpoint limit -> more(1 or 0). Ends the deliveries of a deleted endpoint. A try that
-- is under way may still arrive.
local key, ended, now = tkey(args.tenant, 'endpoint:' .. args.endpoint .. ':deliveries'), 0, now_us()
for _, id in ipairs(redis.call('ZRANGE', key, 0, args.limit - 1)) do
  local row = table_of(redis.call('HGETALL', rowkey(args.tenant, id)))
  if row.state == 'pending' then give_up(row, 'endpoint_deleted', now) end
  redis.call('ZREM', tkey(args.tenant, 'deliveries:dead'), id)
  redis.call('ZREM', key, id)
  ended = ended + 1
end
return ended == tonumber(args.limit) and 1 or 0
