#!lua flags=no-writes
-- -> every queue that ever had a job or a worker
return redis.call('SMEMBERS', P .. 'queues')
