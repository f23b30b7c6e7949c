#!lua flags=allow-oom
-- worker alive_us queues checked(bool) entries {{name, queue, rank, entry(JSON), note(optional)}...} -> ok
-- Publishes all models of a worker, for `alive_us`. The catalogue holds the best entry of each model that a living worker
-- publishes (rank: 4 ready, 3 usable, 2 has a problem, 1 not checked yet). A model that no living worker publishes stays
-- until a worker of its queue has checked all of its models; a model that was published by a worker of other queues stays
-- until any worker has. The time at which a model left is kept for the jobs that still wait. A change of a model's problem
-- is published to those who watch the model.
local worker, now = args.worker, now_us()
local mine, publishers, found = P .. 'published:' .. worker, P .. 'publishers', {}
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', publishers, '-inf', int(now))) do
  redis.call('ZREM', publishers, dead)
  redis.call('DEL', P .. 'published:' .. dead)
end
local serves, published = {}, { queues = json_list(args.queues), checked = args.checked and '1' or '0' }
for _, queue in ipairs(args.queues) do serves[queue] = true end
for _, row in ipairs(args.entries) do
  published['rank:' .. row.name] = row.rank .. (serves[row.queue] and '1' or '0') .. row.queue
  published['entry:' .. row.name] = row.entry
  published['note:' .. row.name] = row.note
end
redis.call('DEL', mine)
redis.call('HSET', mine, unpack(flatten(published)))
redis.call('ZADD', publishers, int(now + args.alive_us), worker)

local checked, any = {}, false
for _, living in ipairs(redis.call('ZRANGE', publishers, 0, -1)) do
  local ranks = table_of(redis.call('HGETALL', P .. 'published:' .. living))
  for field, ranking in pairs(ranks) do
    local name = string.match(field, '^rank:(.*)$')
    if name and (not found[name] or ranking > found[name].ranking) then
      found[name] = { ranking = ranking, entry = ranks['entry:' .. name], note = ranks['note:' .. name] }
    end
  end
  if ranks.checked == '1' then
    any = true
    for _, queue in ipairs(cjson.decode(ranks.queues)) do checked[queue] = true end
  end
end

local old, problems = table_of(redis.call('HGETALL', P .. 'catalogue:ranks')), {}
for name in pairs(old) do problems[name] = problem_of(name) end
for name in pairs(found) do problems[name] = problem_of(name) end
local living, notes = P .. 'catalogue:living', P .. 'catalogue:notes'
redis.call('DEL', living)
for name, best in pairs(found) do
  redis.call('HSET', living, name, string.sub(best.ranking, 1, 1))
  redis.call('HDEL', P .. 'catalogue:left', name)
  local rank, before = string.sub(best.ranking, 1, 1), old[name] or ''
  if rank == '1' and string.sub(before, 1, 1) >= '3' then
    redis.call('HSET', P .. 'catalogue:ranks', name, '3' .. string.sub(before, 2))
  else
    redis.call('HSET', P .. 'catalogue', name, best.entry)
    redis.call('HSET', P .. 'catalogue:ranks', name, best.ranking)
    if best.note then redis.call('HSET', notes, name, best.note) else redis.call('HDEL', notes, name) end
  end
end
redis.call('PEXPIRE', living, math.ceil(args.alive_us / 1000))  -- so that it does not outlive the last one that writes it
for _, name in ipairs(redis.call('HKEYS', P .. 'catalogue')) do
  local before = old[name] or '30'
  if not found[name] then
    if checked[string.sub(before, 3)] or (any and string.sub(before, 2, 2) == '0') then
      redis.call('HDEL', P .. 'catalogue', name)
      redis.call('HDEL', P .. 'catalogue:ranks', name)
      redis.call('HDEL', notes, name)
      redis.call('HSET', P .. 'catalogue:left', name, int(now))
    elseif string.sub(before, 1, 1) == '4' then
      redis.call('HSET', P .. 'catalogue:ranks', name, '3' .. string.sub(before, 2))
    end
  end
end
for name in pairs(found) do old[name] = old[name] or '' end
for name in pairs(old) do
  if problem_of(name) ~= (problems[name] or false) then redis.call('PUBLISH', P .. 'changes', 'model:' .. name) end
end
return 'ok'
