#!lua flags=allow-oom
-- queues [Q...] after(starts so far) workers [id...] alive_us -> 1 if these workers may be started, 0 if others were started meanwhile
-- A driver reads the fleet, decides, and reserves its starts here. Of two drivers that saw the same need, the first one
-- starts its workers, and the second one looks again and counts them.
local now, starts = now_us(), P .. 'workers:starts'
if redis.call('ZSCORE', qkey(args.queues[1], 'starting'), args.workers[1]) then return 1 end  -- the answer was lost
if tonumber(redis.call('GET', starts) or '0') ~= tonumber(args.after) then return 0 end
for _, queue in ipairs(args.queues) do
  local starting = qkey(queue, 'starting')
  redis.call('ZREMRANGEBYSCORE', starting, '-inf', int(now))
  for _, worker in ipairs(args.workers) do redis.call('ZADD', starting, int(now + args.alive_us), worker) end
end
redis.call('INCR', starts)
return 1
