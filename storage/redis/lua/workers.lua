#!lua flags=no-writes
-- -> {{about(JSON), running jobs, worker, more(JSON) or false}...} of the living workers
local running, rows = {}, {}
for _, queue in ipairs(redis.call('SMEMBERS', P .. 'queues')) do
  for _, name in ipairs(redis.call('SMEMBERS', qkey(queue, 'running'))) do
    local tenant, id = split(name)
    local worker = redis.call('HGET', jobkey(tenant, id), 'worker')
    if worker then running[worker] = (running[worker] or 0) + 1 end
  end
end
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers:seen', '(' .. int(now_us()), '+inf')) do
  local about, more = redis.call('HGET', P .. 'workers', worker), redis.call('GET', P .. 'workers:more:' .. worker)
  if about then rows[#rows + 1] = { about, running[worker] or 0, worker, more } end
end
return rows
