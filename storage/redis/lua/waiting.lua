#!lua flags=no-writes
-- queue tenant limit -> {T/ID...} of the tenant's jobs that wait in a queue for a worker or for another attempt
local names = {}
local function collect(found, queue)
  for _, name in ipairs(found) do
    if #names >= tonumber(args.limit) then return end
    local tenant, id = split(name)
    if tenant == args.tenant and (not queue or redis.call('HGET', jobkey(tenant, id), 'queue') == queue) then
      names[#names + 1] = name
    end
  end
end
collect(redis.call('ZRANGE', qkey(args.queue, 'waiting'), 0, 4999))
collect(redis.call('ZRANGE', P .. 'delayed', 0, 4999), args.queue)
return names
