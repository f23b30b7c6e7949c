#!lua flags=no-writes
return redis.status_reply('PONG')
