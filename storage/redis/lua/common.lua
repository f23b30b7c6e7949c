-- The data model, and the functions that all scripts share. Stands before each script, after its first line.
--
-- penstock:tenant:T:job:ID             hash    the record: the truth about a job
-- penstock:tenant:T:job:ID:events      stream  the job's events (SSE, trace), at most about 1000 entries
-- penstock:tenant:T:job:ID:logs        list    FENCE:NUMBER:ATTEMPT:LINES:CUT|JSON, parts of its lines (add.lua)
-- penstock:tenant:T:job:ID:streamed    string  characters of its text that a client has who asks in turns; expires
-- penstock:tenant:T:job:ID:deliveries  list    ids of its webhook deliveries
-- penstock:tenant:T:job:ID:followers   zset    jobs that wait for this one (chain.lua)
-- penstock:tenant:T:job:ID:parts       set     ids of its live parts. A part has a record too, and leases, but stands in no
--                                              list and counts as no job; its record goes when it ends
-- penstock:tenant:T:delivery:ID        hash    one webhook delivery (outbox.lua has the model of webhooks)
-- penstock:tenant:T:jobs               zset    job id by creation time (listing)
-- penstock:tenant:T:live               set     ids of jobs that are not terminal (the tenant's limit)
-- penstock:tenant:T:running            set     ids of leased jobs (the tenant's running cap)
-- penstock:tenant:T:batches            zset    batch id by creation time (listing)
-- penstock:tenant:T:batch:ID           hash    a batch: manifest end (JSON) created_us retention_us completed_us line offset
--                                              requests invalid cancel reserved closed deleted revision, and
--                                              more (JSON): fields of the manifest that older releases reject in it
-- penstock:tenant:T:batch:ID:counts    hash    state -> number of members in this state
-- penstock:tenant:T:batch:ID:jobs      zset    members by creation time; :live is the set of members that are not terminal
-- penstock:tenant:T:batchgone:ID       string  a purged batch (410), expires
-- penstock:batches                     zset    T/ID of the batches that are not over, by creation time
-- penstock:batches:finished            zset    T/ID of ended batches by the time of their purge
-- penstock:tenant:T:gone:ID            string  a purged job (410), expires
-- penstock:tenant:T:result:DIGEST      string  id of the latest job with this result, for models with a cache; expires
-- penstock:queue:Q:waiting             zset    T/ID by rank: depth and position
-- penstock:queue:Q:lane:M/T            zset    the waiting ids of one model and tenant by rank. M of a part is MODEL:KIND,
--                                              and only machines of this kind claim it
-- penstock:queue:Q:lanes               zset    M/T by the time it was last served: round robin. A lane that was never served
--                                              has half of the creation time of its first job: new lanes come first, by
--                                              time. Older releases write 0 for a new lane. Lanes that are near in time are
--                                              also near in the other indexes
-- penstock:queue:Q:names               zset    the same M/T by name: the lanes of a model (claim.lua). Older releases do not
--                                              keep it; penstock:queue:Q:compared: it was compared with the lanes, expires
-- penstock:queue:Q:speed               hash    model -> moving average of the execution time in us
-- penstock:queue:Q:growth              hash    model -> how the execution time grows with the media (learn_growth)
-- penstock:queue:Q:device              hash    model, or "MODEL media" -> how the device time grows with the media (learn_device)
-- penstock:queue:Q:done:N              hash    n: jobs that succeeded in the N-th ten seconds; since_us: when their work
--                                              began. Expires; penstock:queue:Q:done_us is when the latest job succeeded
-- penstock:queue:Q:workers             hash    worker -> its slots; penstock:queue:Q:seen zset by the end of its time as
--                                              a living worker
-- penstock:queue:Q:starting            zset    workers that a driver starts, by the end of their time to report
-- penstock:queue:Q:pool                string  a driver starts workers of the queue when jobs want them; expires
-- penstock:queue:Q:listening :bell:SLOT        of workers of the release before; both expire
-- penstock:queue:Q:reserved            set     T/ID of its reservations
-- penstock:queue:Q:running             set     T/ID of its leased jobs
-- penstock:queue:Q:dead                zset    T/ID of its dead letters (failed as worker_lost) by the time of their end
-- penstock:queue:Q:mode                string  paused (nothing is claimed) or draining (nothing is accepted)
-- penstock:queues                      set     every queue that ever had a job or a worker
-- penstock:catalogue                   hash    model -> its entry (JSON), the best that a living worker publishes;
--                                              penstock:catalogue:ranks: RANK SERVED QUEUE without spaces (publish.lua);
--                                              penstock:catalogue:left: model that no worker serves any more -> since when;
--                                              penstock:catalogue:living hash: model -> best rank of a living worker;
--                                              penstock:catalogue:notes hash: model -> its entry's note, which older
--                                              releases reject in the entry
-- penstock:load:MODEL                  hash    machine -> its latest load that ended its process (JSON), until one succeeds
--                                              there or `penstock models retry`; penstock:loads hash: model -> the same in
--                                              words, and the number of machines (JSON)
-- penstock:loads:passed                hash    "MODEL CLASS" -> digest of the record and software whose load ended well in a
--                                              process of its own on a machine of the class
-- penstock:publishers                  zset    worker by the end of the validity of its entries; penstock:published:WORKER
--                                              hash: queues, checked, rank:MODEL, entry:MODEL, note:MODEL
-- penstock:workers                     hash    worker -> its state (JSON), for people; penstock:workers:seen zset by the
--                                              end of its validity; penstock:workers:more:WORKER string: fields that
--                                              older releases reject in the state (JSON), expires;
-- penstock:workers:lines:WORKER        string  its latest log lines (JSON), expires an hour after its end
-- penstock:workers:starts              string  number of reservations of starts so far (start_workers.lua)
-- penstock:reserved                    zset    T/ID of reservations (jobs without a manifest) by their time
-- penstock:tidied                      string  leftovers of the object store were deleted, expires
-- penstock:recovering                  string  the keeper that recovers
-- penstock:alive                       string  id of this store, a new one with each recovery; missing = Redis was emptied,
--                                              and the keeper recovers from the manifests
-- penstock:run                         string  run of the server (`run_id`) in which the jobs were last compared with the
--                                              object store: a server that has started anew may have older data
-- penstock:leases :deadlines :delayed :expiring :finished :chained   zset  T/ID by the time at which `sweep` acts
-- penstock:dry:T/ID                   string  the worker that runs dry to claim a job on its last chance, expires
-- penstock:counts:ended                hash    "MODEL STATUS" -> jobs; penstock:counts:tries "OUTCOME" -> tries of webhooks;
--                                              penstock:counts:phases "MODEL PHASE BOUND|sum" -> attempts up to that bound
--                                              and above the previous bound | us. Never decrease, until Redis is emptied
-- penstock:drops:ended :events        zset    objects (JSON) that the keeper must process, because their jobs ended or an
--                                              event named them, by the time of the next try; penstock:drops:since hash:
--                                              object -> time of its first lease; penstock:drops:passes hash: rule -> its
--                                              latest listing, "queue ADDRESS" -> its problem (JSON)
-- penstock:counts:drops                hash    "SOURCE OUTCOME" -> events of buckets
-- penstock:counts:cache                hash    "MODEL CACHE OUTCOME" -> look-ups by jobs that ended: encoder, result; hit, miss
-- penstock:counts:lost :retried        hash    model -> attempts that ended with their lease, attempts that are tried again
-- penstock:counts:workers              hash    lived_us, busy_us: time of all workers, and of their devices at work
-- penstock:workers:at:W                string  time of a worker's latest report, expires with it
-- penstock:swept                       string  time of the latest sweep
-- penstock:counts:used                 hash    "MODEL MEASURE" -> sum over the jobs that ended (USED), of all tenants
-- penstock:tenant:T:usage:DAY          hash    "MODEL MEASURE" -> sum over the jobs that ended on that day (UTC, days since
--                                              the epoch); a measure is a terminal state (jobs) or one of USED
-- penstock:tenant:T:usage:folded       set     stored sums of purged jobs (usage_ledger.py) that the sums here include
-- penstock:tenant:T:kept:uploads       set     ids of the uploads that `added` includes; expires
-- penstock:usage:days                  zset    T/DAY of each of these hashes, by DAY
-- penstock:tenant:T:kept               hash    bytes: of the tenant's objects, as last listed; added: bytes of results
--                                              and announced uploads since then, less those of purged jobs; expires
-- penstock:spans:wanted                string  a keeper exports spans (spans.lua), expires
-- penstock:spans:ended                 zset    T/ID whose spans are still to be exported, by the time of their end
-- penstock:claim:SLOT:NONCE            string  a claim's reply, for a client that lost it, expires
--
-- penstock:run:reads                   string  "RUN FORMAT": the newest format that could be read in that comparison
-- penstock:run:modes                   string  run of the server in which the queues last got their stored modes
--
-- Other releases run their own scripts on the same keys. Rules for every script: a field that it does not know stays as it
-- is; a job in a state that it does not know, or of a format above READS, stays where it is, in every index; a job of a
-- format above the worker's own is not claimed (docs/decisions/0045).
--
-- The fields of the record are in the table of storage/redis/record.py, and tests compare that table with the scripts.
--
-- A job with durable = '1' ends in two steps, because `outcome.json` in the object store decides its end: a script that
-- would end the job returns the proposal of an outcome instead, the caller puts the proposal unless an outcome is stored
-- already, and `commit` sets the record to the stored outcome.
--
-- Rank = creation time minus a head start for high priority: priorities age by themselves, and a job that comes back
-- after a crash has its old place. All times are Redis TIME in microseconds, exact in a double until 2255.

local P = 'penstock:'
-- The arguments by name, from one JSON object. Numbers are decimal strings (see scripts.py).
local args = cjson.decode(ARGV[1])
local TERMINAL = { succeeded = true, failed = true, canceled = true, expired = true }
local WAITING = { reserved = true, queued = true, delayed = true }
-- The newest format that is read, as in penstock.formats.
local READS = 3

local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function int(n) return string.format('%.0f', n) end
local function tkey(tenant, rest) return P .. 'tenant:' .. tenant .. ':' .. rest end
local function qkey(queue, rest) return P .. 'queue:' .. queue .. ':' .. rest end
local function jobkey(tenant, id) return tkey(tenant, 'job:' .. id) end

local function table_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

local function load(tenant, id)
  local flat = redis.call('HGETALL', jobkey(tenant, id))
  if #flat == 0 then return nil end
  local job = table_of(flat)
  job.name = tenant .. '/' .. id
  return job
end

local function flatten(job)
  local flat = {}
  for k, v in pairs(job) do flat[#flat + 1] = k; flat[#flat + 1] = v end
  return flat
end

local function is_known(state) return TERMINAL[state] or WAITING[state] or state == 'running' end

-- Return true for a record that only newer processes change.
local function is_newer(job) return tonumber(job.version or '1') > READS or not is_known(job.state) end

-- Return true where a job has ended, also in a state that is not known here.
local function has_ended(job)
  return TERMINAL[job.state] or (not is_known(job.state) and (job.completed_us or '') ~= '')
end

local function followers_key(tenant, id) return jobkey(tenant, id) .. ':followers' end

-- Return true while a job that waits for this one, or reads its files, has not ended (chain.lua).
local function is_followed(tenant, id) return redis.call('ZCOUNT', followers_key(tenant, id), '1', '1') > 0 end

-- Return true where a job is terminal and its retention is over. A job with live followers is kept until they have ended.
local function over(job, now)
  return has_ended(job) and now >= job.completed_us + job.retention_us and not is_followed(job.tenant, job.id)
end

local function split(name)
  local slash = string.find(name, '/', 1, true)
  return string.sub(name, 1, slash - 1), string.sub(name, slash + 1)
end

-- Return true for a part of a job.
local function is_part(job) return (job.parent or '') ~= '' end

-- Return the model of a lane, without the kind of machines that parts want.
local function plain(model) return string.match(model, '^[^:]*') end

-- Return true while a job's parts do its work.
local function has_parts(job)
  return job.state == 'delayed' and (tonumber(job.parts or '') or 0) > (tonumber(job.parts_ended or '') or 0)
end

-- Return a job that users may read; or nil, and 0 for an unknown job or 1 for a job after its retention, purged or not.
local function find(tenant, id)
  local job = load(tenant, id)
  if not job or is_part(job) then return nil, redis.call('EXISTS', tkey(tenant, 'gone:' .. id)) end
  if over(job, now_us()) then return nil, 1 end
  return job
end

-- Return the id of the server's run: each start of a server has its own, that of a replica too.
local function run_id() return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') end

-- Return true where a keeper has compared the jobs with the object store in another run of the server, and in this one not
-- yet: the records may be older than what the object store has.
local function may_be_old()
  local run = redis.call('GET', P .. 'run')
  return run ~= false and run ~= run_id()
end

-- Return the number of slots of the queue's living workers, which is looked up once in a script.
local SLOTS = {}
local function slots_of(queue, now)
  if SLOTS[queue] then return SLOTS[queue] end
  local slots, workers = 0, redis.call('ZRANGEBYSCORE', qkey(queue, 'seen'), int(now), '+inf')
  for first = 1, #workers, 1000 do
    local some = redis.call('HMGET', qkey(queue, 'workers'), unpack(workers, first, math.min(#workers, first + 999)))
    for _, each in ipairs(some) do slots = slots + tonumber(each or '0') end
  end
  SLOTS[queue] = slots
  return slots
end

-- Return {jobs that wait, speed_us or false} of each model that has waiting jobs in a queue.
local function backlog_of(queue)
  local speeds, found = table_of(redis.call('HGETALL', qkey(queue, 'speed'))), {}
  for _, lane in ipairs(redis.call('ZRANGE', qkey(queue, 'lanes'), 0, -1)) do
    local model = split(lane)
    found[model] = found[model] or { jobs = 0, speed_us = speeds[model] or false }
    found[model].jobs = found[model].jobs + redis.call('ZCARD', qkey(queue, 'lane:' .. lane))
  end
  return found
end

-- Return the basis of estimates: {speed_us of the model or false, mean speed_us of the jobs that wait or false, slots,
-- running, paused (1 or 0)}. A `quick` one does not look at the jobs that wait.
local function pace(queue, model, now, quick)
  local waiting, sum = 0, 0
  for _, each in pairs(quick and {} or backlog_of(queue)) do
    if each.speed_us then waiting, sum = waiting + each.jobs, sum + each.jobs * each.speed_us end
  end
  local speed_us = model and redis.call('HGET', qkey(queue, 'speed'), model) or false
  return { speed_us, waiting > 0 and int(sum / waiting) or false, slots_of(queue, now),
    redis.call('SCARD', qkey(queue, 'running')), redis.call('GET', qkey(queue, 'mode')) == 'paused' and 1 or 0 }
end

local function waits(job) return job.state == 'queued' or job.state == 'delayed' end

-- Return the reason why no worker can run a model (publish.lua) or has loaded it, or {us} since when no worker serves it, or
-- false.
local function problem_of(model)
  local rank = redis.call('HGET', P .. 'catalogue:ranks', model)
  if not rank then
    local left_us = redis.call('HGET', P .. 'catalogue:left', model)
    return left_us and { left_us }
  end
  local failing = rank < '4' and redis.call('HGET', P .. 'loads', model)
  if failing then return cjson.decode(failing).how end
  if rank >= '3' then return false end
  return cjson.decode(redis.call('HGET', P .. 'catalogue', model)).problem
end

-- Return a waiting job's places, {among all jobs of its queue, among its tenant's}, from 0; false for any other job.
-- Tenants see the second only: the first would tell them how many jobs others have. A `quick` answer lacks the second.
local function places(job, quick)
  local place = job.state == 'queued' and redis.call('ZRANK', qkey(job.queue, 'waiting'), job.name)
  if not place then return false end
  if quick then return { place, false } end
  local own = 0
  for _, lane in ipairs(redis.call('ZRANGE', qkey(job.queue, 'lanes'), 0, -1)) do
    local _, tenant = split(lane)
    if tenant == job.tenant then
      own = own + redis.call('ZCOUNT', qkey(job.queue, 'lane:' .. lane), '-inf', '(' .. job.rank)
    end
  end
  return { place, own }
end

-- Return the reason why no worker that lives, and none that a driver would start, takes jobs of a model; or false. Workers
-- of older releases do not write `catalogue:living`.
local function unserved(queue, model, now)
  if redis.call('ZCOUNT', qkey(queue, 'seen'), '(' .. int(now), '+inf') > 0 then
    local living = P .. 'catalogue:living'
    return redis.call('EXISTS', living) == 1 and redis.call('HEXISTS', living, model) == 0
      and 'none of the workers of this queue has its model'
  end
  return redis.call('EXISTS', qkey(queue, 'pool')) == 0 and 'no worker serves this queue'
end

-- Return the reason why a job waits although it could run, as `problem_of`.
local function obstacle(job, now) return waits(job) and (problem_of(job.model) or unserved(job.queue, job.model, now)) end

-- Most models and tenants with waiting jobs (lanes) that an answer looks at: of a submit, of a list for each job, and of a
-- read. Beyond them a place among the tenant's own jobs is not told, and an estimate takes all jobs for like ones.
local SUBMIT_LANES, LIST_LANES, READ_LANES = 16, 100, 1000
local function has_many_lanes(queue, most) return redis.call('ZCARD', qkey(queue, 'lanes')) > most end

-- Return the basis of a job's estimate: {now_us, places or false, pace, problem or false}.
local function outlook(job, lanes)
  local now, quick = now_us(), has_many_lanes(job.queue, lanes or READ_LANES)
  return { int(now), places(job, quick), pace(job.queue, job.model, now, quick), obstacle(job, now) }
end

-- Return a record with the basis of its estimate: {record, the four of `outlook`}.
local function view(job, lanes) return { flatten(job), unpack(outlook(job, lanes)) } end

-- Return a key of a batch. A job that is no member has no batch, or ''.
local function bkey(tenant, batch, rest) return tkey(tenant, 'batch:' .. batch .. (rest and ':' .. rest or '')) end
local function batch_of(job) return (job.batch or '') ~= '' and job.batch or nil end

-- Change a batch's count of members in a state.
local function recount(job, batch, state, by)
  if state then redis.call('HINCRBY', bkey(job.tenant, batch, 'counts'), state, by) end
end

-- Put a job into the listings, at the time of its creation, or take it out.
local function enlist(job, at)
  redis.call('ZADD', tkey(job.tenant, 'jobs'), at, job.id)
  if batch_of(job) then redis.call('ZADD', bkey(job.tenant, job.batch, 'jobs'), at, job.id) end
end

local function unlist(job)
  redis.call('ZREM', tkey(job.tenant, 'jobs'), job.id)
  if batch_of(job) then redis.call('ZREM', bkey(job.tenant, job.batch, 'jobs'), job.id) end
end

-- Write fields of a record, in Redis and in the table, and increment the revision.
local function write(job, fields)
  local batch = batch_of(job) or batch_of(fields)
  if batch and fields.state and fields.state ~= job.state then
    recount(job, batch, job.state, -1)
    recount(job, batch, fields.state, 1)
  end
  fields.revision = int((tonumber(job.revision) or 0) + 1)
  local flat = {}
  for k, v in pairs(fields) do job[k] = v; flat[#flat + 1] = k; flat[#flat + 1] = v end
  redis.call('HSET', jobkey(job.tenant, job.id), unpack(flat))
end

-- Return a list as JSON: cjson encodes an empty table as an object.
local function json_list(rows) return #rows == 0 and '[]' or cjson.encode(rows) end

-- Append to the job's event stream and wake those who wait for a change. JSON of users is never decoded and encoded again
-- here, because cjson changes it (empty lists, numbers of more than 14 digits): `data` may be JSON text, and an error
-- report (JSON text or '') has a field of its own.
local function emit(job, kind, data, report)
  redis.call('XADD', jobkey(job.tenant, job.id) .. ':events', 'MAXLEN', '~', 1000, '*',
    'type', kind, 'data', type(data) == 'string' and data or cjson.encode(data), 'error', report or '')
  redis.call('PUBLISH', P .. 'changes', job.name)
end

-- Have `sweep` end a waiting job: at the end of its TTL, or at once if its end was requested.
local function expire_at(job, at)
  redis.call('ZADD', P .. 'expiring', job.cancel == '1' and '0' or int(at), job.name)
end

local function enqueue(job)
  local lane = job.model .. '/' .. job.tenant
  redis.call('ZADD', qkey(job.queue, 'waiting'), job.rank, job.name)
  redis.call('ZADD', qkey(job.queue, 'lane:' .. lane), job.rank, job.id)
  redis.call('ZADD', qkey(job.queue, 'lanes'), 'NX', int(job.created_us / 2), lane)
  redis.call('ZADD', qkey(job.queue, 'names'), 0, lane)
end

local function dequeue(job)
  local lane = job.model .. '/' .. job.tenant
  redis.call('ZREM', qkey(job.queue, 'waiting'), job.name)
  redis.call('ZREM', qkey(job.queue, 'lane:' .. lane), job.id)
  if redis.call('EXISTS', qkey(job.queue, 'lane:' .. lane)) == 0 then
    redis.call('ZREM', qkey(job.queue, 'lanes'), lane)
    redis.call('ZREM', qkey(job.queue, 'names'), lane)
  end
end

local function unlease(job)
  redis.call('ZREM', P .. 'leases', job.name)
  redis.call('ZREM', P .. 'deadlines', job.name)
  redis.call('SREM', tkey(job.tenant, 'running'), job.id)
  redis.call('SREM', qkey(job.queue, 'running'), job.name)
end

-- In outbox.lua: make the deliveries of an event; return the pending deliveries of a job.
local announce, undelivered

-- Update what is known of a model's jobs with media of known size, as `Growth.after` in src/penstock/scaling.py: the number
-- of these jobs, and moving averages of the bytes, the seconds, their variance and covariance, and the units of a job.
local function learn_growth(job, took_s)
  local bytes, units = tonumber(job.media_bytes or ''), math.max(1, tonumber(job.total or '') or 1)
  if not bytes then return end
  local key, known = qkey(job.queue, 'growth'), {}
  for number in string.gmatch(redis.call('HGET', key, job.model) or '0 0 0 0 0 0', '%S+') do
    known[#known + 1] = tonumber(number)
  end
  local part = math.max(0.1, 1 / (known[1] + 1))
  local more, longer = bytes - known[2], took_s - known[3]
  redis.call('HSET', key, job.model, string.format('%d %.17g %.17g %.17g %.17g %.17g', math.min(10, known[1] + 1),
    known[2] + part * more, known[3] + part * longer, (1 - part) * (known[4] + part * more * more),
    (1 - part) * (known[5] + part * more * longer), known[6] + part * (units - known[6])))
end

-- Update what is known of the device time of a model's jobs, as `DeviceRate.after` in storage/redis/dry_runs.py: the number
-- of jobs, and moving averages of the logarithms of bytes and seconds, of their variances and of their covariance. Jobs
-- with media of known size count apart from the others.
local function learn_device(job)
  local device_us, bytes = tonumber(job.device_us or '') or 0, tonumber(job.media_bytes or '') or 0
  if device_us <= 0 then return end
  local field, known = bytes > 0 and job.model .. ' media' or job.model, {}
  for number in string.gmatch(redis.call('HGET', qkey(job.queue, 'device'), field) or '0 0 0 0 0 0', '%S+') do
    known[#known + 1] = tonumber(number)
  end
  local part = math.max(0.05, 1 / (known[1] + 1))
  local more = (bytes > 0 and math.log(bytes) or 0) - known[2]
  local longer = math.log(device_us / 1000000) - known[3]
  redis.call('HSET', qkey(job.queue, 'device'), field, string.format('%d %.17g %.17g %.17g %.17g %.17g',
    math.min(20, known[1] + 1), known[2] + part * more, known[3] + part * longer,
    (1 - part) * (known[4] + part * more * more), (1 - part) * (known[5] + part * longer * longer),
    (1 - part) * (known[6] + part * more * longer)))
end

-- Update the execution time of a model's jobs, or of its parts.
local function learn_speed(job, took)
  local speed = qkey(job.queue, 'speed')
  local before = redis.call('HGET', speed, job.model)
  redis.call('HSET', speed, job.model, int(before and 0.8 * before + 0.2 * took or took))
end

-- Update the speed of a queue: the execution time of a model's jobs, and the number of jobs that ended in each ten
-- seconds. The work on the first of these began when that job did, or when the job before it ended.
local function count_success(job, at)
  local took = math.max(0, at - job.started_us - (job.waited_us or 0))
  if (job.parts or '') == '' then  -- the last attempt of a job with parts is short, and says nothing about the speed
    learn_speed(job, took)
    learn_growth(job, took / 1000000)
    learn_device(job)
  end
  if now_us() - at > 300000000 then return end  -- the old end of a job that is created again
  local row, last = qkey(job.queue, 'done:' .. int(math.floor(at / 10000000))), qkey(job.queue, 'done_us')
  local before_us = tonumber(redis.call('GET', last) or '0')
  redis.call('HINCRBY', row, 'n', 1)
  redis.call('HSETNX', row, 'since_us', int(math.max(tonumber(job.started_us), before_us)))
  redis.call('EXPIRE', row, 400)
  redis.call('SET', last, int(math.max(at, before_us)), 'EX', 400)
end

-- Return the fields of an attempt's progress. The shown progress never decreases: an attempt counts once it passes what
-- earlier attempts had reached, or the same share where its plan (total or unit) is another. Nothing without a plan.
local function progress(job, done, total, unit)
  local own, past = math.max(tonumber(done), tonumber(job.own_done or '0')), tonumber(job.past_done or '0')
  if own == 0 and total == '' then return {} end
  local of = tonumber(job.past_total or '')
  if total ~= job.past_total and of and of > 0 and total ~= '' then
    past = math.floor(past / of * total)
  elseif unit ~= job.past_unit then
    past = 0
  end
  local fields = { own_done = int(own), done = int(math.max(own, past)), total = total, unit = unit }
  return fields
end

-- Upper bounds of the phases' histogram.
local BOUNDS_MS = { 10, 30, 100, 300, 1000, 2000, 3000, 5000, 10000, 15000, 20000, 30000, 45000, 60000, 100000, 150000, 200000,
  300000, 600000, 1000000, 1800000, 3000000 }

-- Add to counters of a hash, all at once.
local function count_up(key, changes)
  local names, flat = {}, {}
  for name in pairs(changes) do names[#names + 1] = name end
  if #names == 0 then return end
  for n, before in ipairs(redis.call('HMGET', key, unpack(names))) do
    flat[#flat + 1] = names[n]
    flat[#flat + 1] = int((before or 0) + changes[names[n]])
  end
  redis.call('HSET', key, unpack(flat))
end

local function observe(counts, model, phase, ms)
  local bound = 'inf'
  for _, each in ipairs(BOUNDS_MS) do
    if ms <= each then bound = each; break end
  end
  counts[model .. ' ' .. phase .. ' ' .. bound] = 1
  counts[model .. ' ' .. phase .. ' sum'] = math.floor(ms * 1000 + 0.5)
end

local function count_lookups(model, cache, outcomes, n)
  local outcome = ({ hits = 'hit', misses = 'miss' })[outcomes]
  if outcome and n > 0 then redis.call('HINCRBY', P .. 'counts:cache', model .. ' ' .. cache .. ' ' .. outcome, int(n)) end
end

-- Measures of a job's usage, which are fields of its record. A value above 2^53 would lose its last digits.
local USED = { 'device_us', 'bytes_in', 'bytes_out', 'tokens_in', 'tokens_out', 'pixels' }

-- Add what an attempt or a part used to what the job's earlier attempts did, in `fields` that are to be written.
local function add_used(job, fields, used)
  for _, name in ipairs(USED) do
    local more = tonumber(used[name] or '')
    if more then fields[name] = int((tonumber(job[name] or '') or 0) + more) end
  end
end

-- Count a job's end for monitoring and list it for its spans, unless it is the old end of a job that is created again.
local function count_end(job, state, at)
  if now_us() - at > 300000000 then return end
  if redis.call('EXISTS', P .. 'spans:wanted') == 1 then redis.call('ZADD', P .. 'spans:ended', int(at), job.name) end
  redis.call('HINCRBY', P .. 'counts:ended', job.model .. ' ' .. state, 1)
  local counts = {}
  if (job.started_us or '') ~= '' then observe(counts, job.model, 'queue', (job.started_us - job.created_us) / 1000) end
  for name, value in pairs(cjson.decode((job.metrics or '') ~= '' and job.metrics or '{}')) do
    local phase = string.match(name, '^(.+)_ms$')
    if phase then observe(counts, job.model, phase, value) end
    local cache, outcome = string.match(name, '^(encoder)_(.+)$')
    if name == 'cached' then cache, outcome, value = 'result', value == 1 and 'hits' or 'misses', 1 end
    if cache then count_lookups(job.model, cache, outcome, value) end
  end
  count_up(P .. 'counts:phases', counts)
  local used = {}
  for _, name in ipairs(USED) do
    local n = tonumber(job[name] or '') or 0
    if n > 0 then used[job.model .. ' ' .. name] = n end
  end
  count_up(P .. 'counts:used', used)
end

local DAY_US = 86400000000

-- Add a job's end to the sums of its tenant and day. Each job is added once: by `terminate`, or, when Redis has lost both
-- the job and the sums, by whoever creates them again.
local function count_usage(tenant, model, state, at, used)
  local day = int(math.floor(at / DAY_US))
  local key = tkey(tenant, 'usage:' .. day)
  if redis.call('HINCRBY', key, model .. ' ' .. state, 1) == 1 then
    redis.call('ZADD', P .. 'usage:days', day, tenant .. '/' .. day)
  end
  for _, name in ipairs(USED) do
    local n = used[name] or ''
    if n ~= '' and n ~= '0' then redis.call('HINCRBY', key, model .. ' ' .. name, n) end
  end
end

-- Return the device time of the jobs of a tenant that ended today, in us, and the us until the day's end.
local function used_today(tenant, now)
  local day, sum = math.floor(now / DAY_US), 0
  local flat = redis.call('HGETALL', tkey(tenant, 'usage:' .. int(day)))
  for i = 1, #flat, 2 do
    if string.match(flat[i], ' device_us$') then sum = sum + flat[i + 1] end
  end
  return sum, (day + 1) * DAY_US - now
end

-- Return the bytes that a tenant keeps, as far as they are known.
local function kept_bytes(tenant)
  local found = redis.call('HMGET', tkey(tenant, 'kept'), 'bytes', 'added')
  return math.max(0, (found[1] or 0) + (found[2] or 0))
end

-- Have a key of what a tenant keeps expire, so that a tenant of which nothing is listed is not refused for ever.
local KEPT_S = 2 * 86400
local function expire_kept(key)
  if redis.call('TTL', key) == -1 then redis.call('EXPIRE', key, KEPT_S) end
end

-- Count the results that a tenant keeps, until the next listing of its objects.
local function count_kept(tenant, bytes)
  if bytes == 0 then return end
  redis.call('HINCRBY', tkey(tenant, 'kept'), 'added', int(bytes))
  expire_kept(tkey(tenant, 'kept'))
end

-- The record of a job that has ended has no field that is empty, or as it is where it is missing (UNSAID), and none that
-- says nothing of it any more (LIVE).
local UNSAID = { artifacts = '[]', metrics = '{}', unit = 'prompts', checkpoints = '0' }
local LIVE = { rank = true, due_us = true, lease_us = true, deadline_us = true, waited_us = true, given_back = true,
  own_done = true, past_done = true, past_total = true, past_unit = true, reported_us = true, message = true,
  chained = true, doomed = true }

-- Below: end a part, and end the parts of a job. In chain.lua: judge the jobs that wait for one that has ended.
local end_part, end_parts, end_in_chains

-- Put a job into a terminal state: the only way there.
local function terminate(job, state, fields, now)
  if is_part(job) then return end_part(job, state, fields, now) end
  if (job.parts or '') ~= '' then end_parts(job, now) end
  for name in pairs(LIVE) do fields[name] = nil end
  fields.state = state
  fields.phase = 'waiting'
  fields.completed_us = int(now)
  local before = job.state
  write(job, fields)
  if before == 'running' then
    unlease(job)
  elseif before then
    unlease(job)
    dequeue(job)
    for _, index in ipairs({ 'delayed', 'expiring', 'reserved' }) do redis.call('ZREM', P .. index, job.name) end
    redis.call('SREM', qkey(job.queue, 'reserved'), job.name)
  end
  redis.call('SREM', tkey(job.tenant, 'live'), job.id)
  if batch_of(job) then redis.call('SREM', bkey(job.tenant, job.batch, 'live'), job.id) end
  redis.call('ZADD', P .. 'finished', int(now + job.retention_us), job.name)
  announce(job, 'job.' .. state, now)
  local data = { status = state, attempt = tonumber(job.attempt) }
  if (job.error or '') ~= '' then
    local code = cjson.decode(job.error).code
    if code == 'worker_lost' then redis.call('ZADD', qkey(job.queue, 'dead'), int(now), job.name) end
  end
  if state == 'succeeded' and not job.buried then count_success(job, now) end
  count_usage(job.tenant, job.model, state, now, job)
  if state == 'succeeded' then count_kept(job.tenant, tonumber(job.bytes_out or '') or 0) end
  if job.drop then redis.call('ZADD', P .. 'drops:ended', int(now_us()), job.drop) end
  count_end(job, state, now)
  emit(job, 'job.' .. state, data, job.error)
  end_in_chains(job, now_us())
  redis.call('PUBLISH', P .. 'changes', 'ended:' .. job.name)  -- for an API of the release before
  local idle = {}
  for name, value in pairs(job) do
    if value == '' or value == UNSAID[name] or LIVE[name] then idle[#idle + 1] = name end
  end
  for _, name in ipairs(idle) do job[name] = nil end
  if #idle > 0 then redis.call('HDEL', jobkey(job.tenant, job.id), unpack(idle)) end
end

-- End a job. Returns nil, or for a durable job, which stays as it is, the proposal of its outcome (JSON).
local function finish(job, state, fields, now)
  if job.durable ~= '1' then return terminate(job, state, fields, now) end
  local record = {}
  for k, v in pairs(job) do record[k] = v end
  for k, v in pairs(fields) do record[k] = v end
  for name in pairs(LIVE) do record[name] = nil end
  record.state, record.phase, record.completed_us, record.name = state, 'waiting', int(now), nil
  return '{"version":1,"record":' .. cjson.encode(record) .. ',"deliveries":' .. json_list(undelivered(job)) .. '}'
end

-- Return `attempts` of a record with a row for the latest attempt, which ended without ending the job.
local KEPT_ATTEMPTS = 20
local function past_attempts(job, outcome, now)
  local rows = (job.attempts or '') ~= '' and cjson.decode(job.attempts) or {}
  rows[#rows + 1] = { job.fence, job.attempt, job.worker, job.started_us, int(now), outcome, job.phases or '' }
  while #rows > KEPT_ATTEMPTS do table.remove(rows, 1) end
  return cjson.encode(rows)
end

-- Put a job back into its queue, at its old place. `outcome` is that of the attempt which ends with it, if one does.
local function requeue(job, fields, event, data, now, outcome)
  unlease(job)
  if outcome then
    fields.attempts, fields.phases = past_attempts(job, outcome, now), ''
  end
  redis.call('ZREM', P .. 'delayed', job.name)
  fields.state = 'queued'
  fields.phase = 'waiting'
  if (job.message or '') ~= '' then fields.message = '' end
  write(job, fields)
  enqueue(job)
  expire_at(job, now + job.ttl_us)
  emit(job, event, data)
end

local function parts_key(job) return jobkey(job.tenant, job.id) .. ':parts' end

-- Return true where parts of a job live. A part that an older keeper ended may still be in the set: it is taken out.
local function parts_live(job)
  for _, id in ipairs(redis.call('SMEMBERS', parts_key(job))) do
    local part = load(job.tenant, id)
    if not part or has_ended(part) then redis.call('SREM', parts_key(job), id) end
  end
  return redis.call('EXISTS', parts_key(job)) == 1
end

-- Delete all that Redis has of a part.
local function forget_part(tenant, id)
  local key = jobkey(tenant, id)
  redis.call('ZREM', P .. 'finished', tenant .. '/' .. id)
  redis.call('DEL', key, key .. ':events', key .. ':logs', key .. ':deliveries', tkey(tenant, 'gone:' .. id))
end

-- Make the progress of a part that of its job: `units` of the job's are done. Return true where that is more than before.
local function count_part(part, parent, units)
  local more = math.floor(units) - tonumber(part.counted or '0')
  if more <= 0 then return false end
  part.counted = int(math.floor(units))
  local most = tonumber(parent.total or '') or math.huge
  write(parent, { done = int(math.min(most, tonumber(parent.done or '0') + more)) })
  return true
end

-- Put a job whose parts have all ended back into its queue, or have `sweep` end it where its end was requested.
local function join_parts(parent, now)
  if parent.state ~= 'delayed' or parts_live(parent) then return end
  if parent.cancel == '1' then return expire_at(parent, 0) end
  requeue(parent, { due_us = '' }, 'job.requeued', { reason = 'parts' }, now)
end

-- End a part: its record goes, what it used counts for its job, and the last one puts its job back, unless the caller
-- passes the job, because it ends the job.
function end_part(part, state, fields, now, job)
  unlease(part)
  dequeue(part)
  for _, index in ipairs({ 'delayed', 'expiring' }) do redis.call('ZREM', P .. index, part.name) end
  local parent = job or load(part.tenant, part.parent)
  local known = redis.call('SREM', jobkey(part.tenant, part.parent) .. ':parts', part.id) == 1
  forget_part(part.tenant, part.id)
  redis.call('PUBLISH', P .. 'changes', part.name)
  if state == 'succeeded' then learn_speed(part, math.max(0, now - part.started_us - (part.waited_us or 0))) end
  if not (parent and known) or has_ended(parent) then return end
  local changes = { parts_ended = int(tonumber(parent.parts_ended or '0') + 1) }
  local crashes = tonumber(fields.crashes or part.crashes or '0')
  if state == 'failed' and crashes > 0 then  -- what crashed its workers is the job's last chance
    changes.crashes = int(math.max(tonumber(parent.crashes or '0'), crashes - 1))
  end
  local used = {}
  for _, name in ipairs(USED) do used[name] = fields[name] or part[name] end
  used.bytes_out = nil  -- a part has no result
  add_used(parent, changes, used)
  write(parent, changes)
  if state == 'succeeded' then count_part(part, parent, tonumber(part.part_units)) end
  local took_ms = part.state == 'running' and math.floor((now - part.started_us) / 1000) or cjson.null
  emit(parent, 'job.part_ended', { part = part.id, first = tonumber(part.part_first), last = tonumber(part.part_last),
    status = state, worker = part.worker or '', attempt = tonumber(part.attempt), took_ms = took_ms,
    ended = tonumber(parent.parts_ended), parts = tonumber(parent.parts) }, fields.error or '')
  if job then return end
  if state == 'failed' then end_parts(parent, now) end  -- the job itself computes what is left
  join_parts(parent, now)
end

-- End the parts of a job: those that wait at once, those that run when their workers see the request. Return the number of
-- those that still run.
function end_parts(parent, now)
  local running = 0
  for _, id in ipairs(redis.call('SMEMBERS', parts_key(parent))) do
    local part = load(parent.tenant, id)
    if part and part.state == 'running' then
      running = running + 1
      if part.cancel ~= '1' then write(part, { cancel = '1' }) end
    elseif part then
      end_part(part, 'canceled', {}, now, parent)
    else
      redis.call('SREM', parts_key(parent), id)
    end
  end
  return running
end

-- Return the record of a running attempt, or nil and the reason: 'already' where this fence has ended the attempt.
local function held(tenant, id, fence)
  local job = load(tenant, id)
  if not job then return nil, 'fenced' end
  if job.fence ~= fence then return nil, 'fenced' end
  if job.state ~= 'running' then return nil, job.ended_by == fence and 'already' or 'fenced' end
  return job
end

-- Return a batch as users may read it: {record, counts by state, now_us}; or nil, and 0 for an unknown batch or 1 for a
-- batch that is deleted or after its retention.
local function batch_view(tenant, id)
  local flat, now = redis.call('HGETALL', bkey(tenant, id)), now_us()
  if #flat == 0 then return nil, redis.call('EXISTS', tkey(tenant, 'batchgone:' .. id)) end
  local batch = table_of(flat)
  if batch.deleted == '1' or (batch['end'] and now >= batch.completed_us + batch.retention_us) then return nil, 1 end
  return { flat, redis.call('HGETALL', bkey(tenant, id, 'counts')), int(now) }
end

-- Wake those who wait for a change of a batch.
local function batch_changed(tenant, id)
  redis.call('HINCRBY', bkey(tenant, id), 'revision', 1)
  redis.call('PUBLISH', P .. 'changes', tenant .. '/' .. id)
end
