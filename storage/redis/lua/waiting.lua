#!lua flags=no-writes
-- queue tenant limit model -> {T/ID...} of the tenant's jobs that wait in a queue for a worker or for another attempt;
-- with a model its jobs only
local names = {}
local function collect(found, queue)
  for _, name in ipairs(found) do
    if #names >= tonumber(args.limit) then return end
    local tenant, id = split(name)
    local row = tenant == args.tenant and redis.call('HMGET', jobkey(tenant, id), 'queue', 'parent', 'model')
    if row and (not queue or row[1] == queue) and (row[2] or '') == ''
      and (args.model == '' or row[3] == args.model) then
      names[#names + 1] = name
    end
  end
end
collect(redis.call('ZRANGE', qkey(args.queue, 'waiting'), 0, 4999))
collect(redis.call('ZRANGE', P .. 'delayed', 0, 4999), args.queue)
return names
