#!lua flags=allow-oom
-- tenant id outcome(JSON) announce_within_us -> record | 1 gone
-- Makes the record what the stored `outcome.json` says, whatever it was before; a record that Redis lost is made anew.
-- Only who put that object, or read it, may call this. A terminal record stays as it is.
local tenant, id = ARGV[1], ARGV[2]
local job = load(tenant, id)
if job and TERMINAL[job.state] then return flatten(job) end
if not job and redis.call('EXISTS', tkey(tenant, 'gone:' .. id)) == 1 then return 1 end
local outcome = cjson.decode(ARGV[3])
local fields = outcome.record
local completed = tonumber(fields.completed_us)
fields.revision, fields.delivery = nil, nil
if not job then
  job = { name = tenant .. '/' .. id, tenant = tenant, id = id, model = fields.model, queue = fields.queue, revision = '0' }
  fields.delivery = 'none'
  redis.call('ZADD', tkey(tenant, 'jobs'), fields.created_us, id)
  redis.call('SADD', P .. 'queues', job.queue)
  if now_us() - completed > tonumber(ARGV[4]) then
    fields.webhook = ''
  else
    for _, row in ipairs(outcome.deliveries) do
      local flat = {}
      for k, v in pairs(row) do flat[#flat + 1] = k; flat[#flat + 1] = v end
      redis.call('HSET', tkey(tenant, 'delivery:' .. row.id), unpack(flat))
      redis.call('RPUSH', jobkey(tenant, id) .. ':deliveries', row.id)
      redis.call('ZADD', P .. 'outbox', int(now_us()), tenant .. '/' .. row.id)
      fields.delivery = 'pending'
    end
  end
end
terminate(job, fields.state, fields, completed)
return flatten(job)
