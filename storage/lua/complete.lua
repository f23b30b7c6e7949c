#!lua flags=allow-oom
-- tenant id fence outcome(succeeded|failed|canceled|retry) text data artifacts error metrics retry_delay_us done total
-- -> ok | already | fenced, and the state
local job, why = held(ARGV[1], ARGV[2], ARGV[3])
if not job then return { why, '' } end
local now = now_us()
local outcome = ARGV[4]
local fields = { ended_by = ARGV[3], metrics = ARGV[9], total = ARGV[12] }
if tonumber(ARGV[11]) > tonumber(job.done or '0') then fields.done = ARGV[11] end
if outcome == 'retry' then
  if job.cancel == '1' then
    outcome = 'canceled'
  elseif tonumber(job.attempt) >= tonumber(job.max_attempts) then
    outcome = 'failed'
  else
    local due = now + ARGV[10]
    unlease(job)
    fields.state, fields.phase, fields.error, fields.due_us = 'delayed', 'waiting', ARGV[8], int(due)
    write(job, fields)
    redis.call('ZADD', P .. 'delayed', int(due), job.name)
    redis.call('ZADD', P .. 'expiring', int(due + job.ttl_us), job.name)
    emit(job, 'job.retrying', { attempt = tonumber(job.attempt), error = cjson.decode(ARGV[8]), delay_s = ARGV[10] / 1000000 })
    return { 'ok', 'delayed' }
  end
end
fields.error = outcome == 'failed' and ARGV[8] or ''
if outcome == 'succeeded' then
  fields.text, fields.data, fields.artifacts = ARGV[5], ARGV[6], ARGV[7]
  if ARGV[12] ~= '' then fields.done = ARGV[12] end  -- prompts that were not needed are done too
  local speed, took = qkey(job.queue, 'speed'), now - job.started_us
  local before = redis.call('HGET', speed, job.model)
  redis.call('HSET', speed, job.model, int(before and 0.8 * before + 0.2 * took or took))
  local minute = qkey(job.queue, 'done:' .. int(math.floor(now / 60000000)))
  redis.call('INCR', minute)
  redis.call('EXPIRE', minute, 900)
end
finish(job, outcome, fields, now)
return { 'ok', outcome }
