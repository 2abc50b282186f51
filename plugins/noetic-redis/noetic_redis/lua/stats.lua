local found = redis.call('HMGET', store, 'records', 'values', 'bytes')
return {
    text(redis.call('ZCARD', key('runs'))), found[1] or '0', found[2] or '0',
    text(redis.call('HLEN', key('blobs'))), found[3] or '0',
}
