-- Takes away the results of a session that are not asked for any more, and those of sessions that ended long ago.
redis.call('UNLINK', mark)
redis.call('ZREM', key('used'), session)
for _, old in ipairs(redis.call('ZRANGEBYSCORE', key('used'), '-inf', text(now() - 7 * 86400 * 1000000), 'LIMIT', 0, 100)) do
    redis.call('UNLINK', key('mark', old))
    redis.call('ZREM', key('used'), old)
end
return {}
