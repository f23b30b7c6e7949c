#!lua flags=allow-oom
-- tenant endpoint limit -> more(1 or 0). Ends the deliveries of a deleted endpoint; a try that is under way may arrive.
local key, ended, now = tkey(ARGV[1], 'endpoint:' .. ARGV[2] .. ':deliveries'), 0, now_us()
for _, id in ipairs(redis.call('ZRANGE', key, 0, ARGV[3] - 1)) do
  local row = table_of(redis.call('HGETALL', rowkey(ARGV[1], id)))
  if row.state == 'pending' then give_up(row, 'endpoint_deleted', now) end
  redis.call('ZREM', tkey(ARGV[1], 'deliveries:dead'), id)
  redis.call('ZREM', key, id)
  ended = ended + 1
end
return ended == tonumber(ARGV[3]) and 1 or 0
