#!lua flags=allow-oom
-- tenant id fence outcome(succeeded|failed|canceled|retry) text data artifacts error metrics retry_delay_us done total unit
-- -> {ok | already | fenced, proposal or false}
local job, why = held(ARGV[1], ARGV[2], ARGV[3])
if not job then return { why, false } end
local now = now_us()
local outcome = ARGV[4]
local fields = progress(job, ARGV[11], ARGV[12], ARGV[13])
fields.ended_by, fields.metrics = ARGV[3], ARGV[9]
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
    local said = '{"attempt":%s,"delay_s":%.6f,"metrics":%s}'
    emit(job, 'job.retrying', string.format(said, job.attempt, ARGV[10] / 1000000, ARGV[9]), ARGV[8])
    return { 'ok', false }
  end
end
fields.error = outcome == 'failed' and ARGV[8] or ''
if outcome == 'succeeded' then
  fields.text, fields.data, fields.artifacts = ARGV[5], ARGV[6], ARGV[7]
  local total = fields.total or job.total
  if total ~= '' then fields.done = total end  -- prompts that were not needed are done too
end
return { 'ok', finish(job, outcome, fields, now) or false }
