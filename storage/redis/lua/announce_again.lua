#!lua flags=allow-oom
-- limit -> number of events. Makes the deliveries of events that happened while Redis did not know the endpoints.
local found = redis.call('ZRANGE', P .. 'unannounced', 0, args.limit - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local tenant, rest = split(found[i])
  local id, event = split(rest)
  local job = load(tenant, id)
  if job then
    for _, to in ipairs(receivers(job, event, tonumber(found[i + 1]))) do
      add_delivery(job, event, to, number_of(job, event), tonumber(found[i + 1]))
    end
    if redis.call('EXISTS', jobkey(tenant, id) .. ':deliveries') == 1 then sum_up(job) end
  end
  redis.call('ZREM', P .. 'unannounced', found[i])
end
return #found / 2
