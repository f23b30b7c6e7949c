#!lua flags=allow-oom
-- Small writes that must succeed even while Redis is out of memory: `args.op` names one.
local ops = {}

-- who lease_ms -> 1 if `who` is the active keeper until the lease ends
function ops.lead()
  local holder = redis.call('GET', P .. 'keeper')
  if holder and holder ~= args.who then return 0 end
  redis.call('SET', P .. 'keeper', args.who, 'PX', args.lease_ms)
  return 1
end

-- who -> 1 if `who` was the active keeper and no longer is
function ops.step_down()
  if redis.call('GET', P .. 'keeper') ~= args.who then return 0 end
  return redis.call('DEL', P .. 'keeper')
end

-- who -> 1. A recovery begins. The entry expires if its keeper dies.
function ops.begin_recovery()
  redis.call('SET', P .. 'recovering', args.who, 'PX', 86400000)
  return 1
end

-- who -> 1 | 0 if Redis was emptied meanwhile, or another recovery has begun
function ops.end_recovery()
  if redis.call('GET', P .. 'recovering') ~= args.who then return 0 end
  redis.call('DEL', P .. 'recovering', P .. 'unannounced')
  redis.call('SET', P .. 'alive', args.who)
  return 1
end

-- run reads -> 1 | 0 in another run of the server. The jobs were compared with the object store, up to a format.
function ops.compared()
  if args.run ~= run_id() then return 0 end
  redis.call('SET', P .. 'run', args.run)
  redis.call('SET', P .. 'run:reads', args.run .. ' ' .. args.reads)
  return 1
end

-- for_ms -> 1. Leftovers were deleted.
function ops.tidied()
  redis.call('SET', P .. 'tidied', '1', 'PX', args.for_ms)
  return 1
end

-- tenant id chars for_ms -> 1. Characters of a job's text that its client has, for clients that ask in turns.
function ops.streamed()
  redis.call('SET', jobkey(args.tenant, args.id) .. ':streamed', args.chars, 'PX', args.for_ms)
  return 1
end

-- queue tenant id -> 1 if the job was among the queue's dead letters and no longer is
function ops.remove_dead_letter()
  return redis.call('ZREM', qkey(args.queue, 'dead'), args.tenant .. '/' .. args.id)
end

-- queue mode(open|paused|draining) -> ok
function ops.queue_mode()
  if args.mode == 'open' then
    redis.call('DEL', qkey(args.queue, 'mode'))
  else
    redis.call('SET', qkey(args.queue, 'mode'), args.mode)
  end
  return 'ok'
end

-- queue worker -> ok. The worker claims nothing more.
function ops.leave()
  redis.call('ZREM', qkey(args.queue, 'seen'), args.worker)
  redis.call('HDEL', qkey(args.queue, 'workers'), args.worker)
  redis.call('ZREM', P .. 'publishers', args.worker)
  redis.call('DEL', P .. 'published:' .. args.worker)
  return 'ok'
end

-- queues [Q...] worker -> ok. A worker of these queues that was to start no longer does.
function ops.forget_start()
  for _, queue in ipairs(args.queues) do redis.call('ZREM', qkey(queue, 'starting'), args.worker) end
  return 'ok'
end

-- queues [Q...] alive_ms -> ok. A driver starts workers of these queues when jobs want them.
function ops.pool()
  for _, queue in ipairs(args.queues) do redis.call('SET', qkey(queue, 'pool'), '1', 'PX', args.alive_ms) end
  return 'ok'
end

-- tenant delivery body -> the body that every try sends, which is the first one noted | false for an unknown delivery
function ops.delivery_body()
  local key = rowkey(args.tenant, args.delivery)
  if redis.call('EXISTS', key) == 0 then return false end
  redis.call('HSETNX', key, 'body', args.body)
  return redis.call('HGET', key, 'body')
end

-- tenant endpoint -> ok. Forgets a deleted endpoint, even that it was deleted.
function ops.forget_endpoint()
  local known = endpoint_of(args.tenant, args.endpoint)
  if known and known.deleted then redis.call('HDEL', tkey(args.tenant, 'endpoints'), args.endpoint) end
  return 'ok'
end

-- counts {"SOURCE OUTCOME": n} -> ok
function ops.count_drops()
  for name, n in pairs(args.counts) do redis.call('HINCRBY', P .. 'counts:drops', name, n) end
  return 'ok'
end

-- name(rule or "queue ADDRESS") pass(JSON) -> 1. The latest listing of a rule, or the problem of an SQS queue.
function ops.note_pass()
  redis.call('HSET', P .. 'drops:passes', args.name, args.pass, args.name .. ' at_us', int(now_us()))
  return 1
end

-- slot queues -> the queue of a ring that came meanwhile | false. The slot listens no more.
function ops.stop_listening()
  for _, queue in ipairs(args.queues) do redis.call('ZREM', qkey(queue, 'listening'), args.slot) end
  return redis.call('LPOP', P .. 'bell:' .. args.slot)
end

-- slot queue -> 1. A worker wakes a slot of its own.
function ops.ring()
  redis.call('RPUSH', P .. 'bell:' .. args.slot, args.queue)
  return redis.call('PEXPIRE', P .. 'bell:' .. args.slot, RING_MS)
end

return ops[args.op]()
