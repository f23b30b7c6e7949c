"""Where jobs and objects live: the job store in Redis, the object store in S3 or a folder, and the media guard."""
