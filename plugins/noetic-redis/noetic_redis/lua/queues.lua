-- For each lane: how many runs may be claimed, have an owner and wait, and the time of the first that may be claimed.
local time, rows = now(), {}
local soon = text(time)
for _, lane in ipairs(redis.call('ZRANGE', key('lanes'), 0, -1)) do
    local part, since = redis.sha1hex(lane), nil
    local asleep, owned = key('asleep', part), key('owned', part)
    local queue, flow = string.match(lane, '^([^\n]+)\n([^\n]+)$')
    if not queue then
        fail('corrupt')
    end

    local function waits_since(at)
        since = math.min(since or at, at)
    end

    local may = redis.call('ZCOUNT', asleep, '-inf', soon)
    local waiting = redis.call('ZCOUNT', asleep, '(' .. soon, '+inf')

    local function see(ready)
        may = may + redis.call('ZCARD', ready)
        -- Of each priority the first run is the one that has waited longest.
        local turn = redis.call('ZRANGEBYLEX', ready, '-', '+', 'LIMIT', 0, 1)[1]
        while turn do
            waits_since(turn_time(turn))
            turn = redis.call('ZRANGEBYLEX', ready, '(' .. string.sub(turn, 1, 7) .. ':', '+', 'LIMIT', 0, 1)[1]
        end
    end

    see(key('ready', part))
    for _, own in ipairs(redis.call('ZRANGE', key('keys', part), 0, -1)) do
        see(ready_of({queue = queue, flow = flow, key = own}))
    end
    local first = redis.call('ZRANGEBYSCORE', asleep, '-inf', soon, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if first then
        waits_since(tonumber(first))
    end
    -- No claim has seen yet that these leases are over.
    for _, late in ipairs(redis.call('ZRANGEBYSCORE', owned, '-inf', soon)) do
        if turn_time(late) > time then
            waiting = waiting + 1
        else
            may = may + 1
            waits_since(turn_time(late))
        end
    end
    local owners = redis.call('ZCOUNT', owned, '(' .. soon, '+inf')
    rows[#rows + 1] = {queue, flow, text(may), text(owners), text(waiting), since and text(since) or ''}
end
return rows
