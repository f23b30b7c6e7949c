#!lua flags=allow-oom
-- worker alive_us queues(JSON) checked(1 or 0) {name queue rank entry(JSON)} ... -> ok
-- All that a worker exported of its models; it counts for so long. The catalogue is what the living publish, of two the
-- better one (rank: 4 ready, 3 usable, 2 has a problem, 1 not known yet). What none of them publishes stays while its
-- workers may come back: until a worker of its queue, or of those that told of it without serving its queue, any worker,
-- has checked all of its models. When a model left is kept, because its jobs wait on. Whoever waits with a model hears
-- when its problem is another.
local worker, now = ARGV[1], now_us()
local mine, publishers, found = P .. 'published:' .. worker, P .. 'publishers', {}
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', publishers, '-inf', int(now))) do
  redis.call('ZREM', publishers, dead)
  redis.call('DEL', P .. 'published:' .. dead)
end
local serves, fields = {}, { queues = ARGV[3], checked = ARGV[4] }
for _, queue in ipairs(cjson.decode(ARGV[3])) do serves[queue] = true end
for i = 5, #ARGV, 4 do
  fields['rank:' .. ARGV[i]] = ARGV[i + 2] .. (serves[ARGV[i + 1]] and '1' or '0') .. ARGV[i + 1]
  fields['entry:' .. ARGV[i]] = ARGV[i + 3]
end
redis.call('DEL', mine)
redis.call('HSET', mine, unpack(flatten(fields)))
redis.call('ZADD', publishers, int(now + ARGV[2]), worker)

local checked, any = {}, false
for _, living in ipairs(redis.call('ZRANGE', publishers, 0, -1)) do
  local ranks = table_of(redis.call('HGETALL', P .. 'published:' .. living))
  for field, said in pairs(ranks) do
    local name = string.match(field, '^rank:(.*)$')
    if name and (not found[name] or said > found[name].said) then
      found[name] = { said = said, entry = ranks['entry:' .. name] }
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
for name, best in pairs(found) do
  redis.call('HDEL', P .. 'catalogue:left', name)
  local rank, before = string.sub(best.said, 1, 1), old[name] or ''
  if rank == '1' and string.sub(before, 1, 1) >= '3' then
    redis.call('HSET', P .. 'catalogue:ranks', name, '3' .. string.sub(before, 2))
  else
    redis.call('HSET', P .. 'catalogue', name, best.entry)
    redis.call('HSET', P .. 'catalogue:ranks', name, best.said)
  end
end
for _, name in ipairs(redis.call('HKEYS', P .. 'catalogue')) do
  local before = old[name] or '30'
  if not found[name] then
    if checked[string.sub(before, 3)] or (any and string.sub(before, 2, 2) == '0') then
      redis.call('HDEL', P .. 'catalogue', name)
      redis.call('HDEL', P .. 'catalogue:ranks', name)
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
