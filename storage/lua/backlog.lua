#!lua flags=no-writes
-- -> queue, waiting, ...: the queues that have waiting jobs
local rows = {}
for _, queue in ipairs(redis.call('SMEMBERS', P .. 'queues')) do
  local waiting = redis.call('ZCARD', qkey(queue, 'waiting'))
  if waiting > 0 then rows[#rows + 1] = queue; rows[#rows + 1] = waiting end
end
return rows
