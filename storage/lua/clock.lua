#!lua flags=no-writes
-- -> now_us: the only clock of jobs and batches
return int(now_us())
