#!lua flags=allow-oom
-- tenant id fence outcome(succeeded|failed|canceled|retry) text data artifacts error metrics retry_delay_us done total unit
-- -> {ok | already | fenced, proposal or false}
local job, why = held(ARGV[1], ARGV[2], ARGV[3])
if not job then return { why, false } end
local now = now_us()
local outcome = ARGV[4]
local fields = { ended_by = ARGV[3], metrics = ARGV[9], total = ARGV[12], unit = ARGV[13] }
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
    expire_at(job, due + job.ttl_us)
    emit(job, 'job.retrying', { attempt = tonumber(job.attempt), delay_s = ARGV[10] / 1000000 }, ARGV[8])
    return { 'ok', false }
  end
end
fields.error = outcome == 'failed' and ARGV[8] or ''
if outcome == 'succeeded' then
  fields.text, fields.data, fields.artifacts = ARGV[5], ARGV[6], ARGV[7]
  if ARGV[12] ~= '' then fields.done = ARGV[12] end  -- prompts that were not needed are done too
end
return { 'ok', finish(job, outcome, fields, now) or false }
