-- for how many microseconds, how many runs, how many keys to look at, how many queues, and these; for each queue how many
-- of its runs may be at work, and how many with one key, or nothing; flows
local done = settled()
if done then
    return done
end
local time, limit, last = now(), tonumber(arg(2)), 4 + tonumber(arg(4))
local soon, flows, queues = text(time), {}, {}
for index = last + 2 * tonumber(arg(4)) + 1, #ARGV - 6 do
    flows[arg(index)] = true
end
for index = 5, last do
    local limits = last + 2 * (index - 5) + 1
    local queue = {
        concurrency = tonumber(arg(limits)) or math.huge, per_key = tonumber(arg(limits + 1)) or math.huge,
        name = arg(index), count = 0, counts = {}, served = {}, limited = arg(limits) ~= '' or arg(limits + 1) ~= '', lanes = {}, others = {},
    }
    queues[#queues + 1] = queue
    -- The lanes of one queue follow each other, and no other begins with its name and the end of a line.
    for _, name in ipairs(redis.call('ZRANGEBYLEX', key('lanes'), '[' .. arg(index) .. '\n', '(' .. arg(index) .. '\11')) do
        local lane = {name = name, part = redis.sha1hex(name), queue = arg(index), flow = string.sub(name, #arg(index) + 2)}
        local known = flows[lane.flow] and queue.lanes or queue.others
        known[#known + 1] = lane
    end
end

-- Moves what has slept long enough, and what an owner lost, to where it belongs now. So many at a time.
local MOVED = 1000
local function move(lane, index)
    repeat
        local due = redis.call('ZRANGEBYSCORE', index, '-inf', soon, 'LIMIT', 0, MOVED)
        if #due > 0 then
            -- Changes nothing, and is refused by a server without memory.
            redis.call('ZADD', key('lanes'), 0, lane.name)
            redis.call('ZREM', index, unpack(due))
        end
        for _, turn in ipairs(due) do
            if turn_time(turn) > time then
                redis.call('ZADD', key('asleep', lane.part), text(turn_time(turn)), turn)
            else
                make_ready({queue = lane.queue, flow = lane.flow, key = turn_key(turn)}, turn, soon)
            end
        end
    until #due < MOVED
end

-- How many runs of each key are at work; only where that decides something.
local function count(queue, lane)
    for _, turn in ipairs(redis.call('ZRANGEBYSCORE', key('owned', lane.part), '(' .. soon, '+inf')) do
        queue.count = queue.count + 1
        queue.counts[turn_key(turn)] = (queue.counts[turn_key(turn)] or 0) + 1
    end
end

for _, queue in ipairs(queues) do
    local counts = queue.limited
    for _, lane in ipairs(queue.lanes) do
        move(lane, key('asleep', lane.part))
        move(lane, key('owned', lane.part))
        counts = counts or redis.call('EXISTS', key('keys', lane.part)) == 1
    end
    queue.counted = counts
    for _, lane in ipairs(counts and queue.lanes or {}) do
        count(queue, lane)
    end
    for _, lane in ipairs(counts and queue.others or {}) do
        count(queue, lane)
    end
end

-- A run, if it stands where it has to, and so may be claimed. One that is damaged hides no other.
local function claimable(head, turn)
    local n = string.match(string.sub(turn, 26, 41), '^0*(%d+)$')
    local run = n and readable(n)
    if not run or not run.place or held(run, time) or lane_of(run.place) ~= lane_of(head) then
        return nil
    end
    if turn_of(n, run.place) ~= turn or is_asleep(run.place, time) then
        return nil
    end
    return n, run
end

local function in_hex(value)
    return (string.gsub(value, '.', function(char)
        return string.format('%02x', string.byte(char))
    end))
end

-- The first turn of a key that was not found to be damaged, if there is one and a run more may be at work.
local function first(head)
    local queue = head.its
    if queue.count >= queue.concurrency or (queue.counts[head.key] or 0) >= queue.per_key then
        return nil
    end
    if not head.turn then
        head.turn = redis.call('ZRANGE', ready_of(head), head.damaged, head.damaged)[1]
    end
    return head.turn
end

-- When a run of a key was claimed last. Digests, and for an hour: it only keeps equals from waiting for each other.
local function served(head)
    local known = head.its.served
    if not known[head.key] then
        local at = redis.call('ZSCORE', key('served', redis.sha1hex(head.its.name)), redis.sha1hex(head.key))
        known[head.key] = tonumber(at) or 0
    end
    return known[head.key]
end

local function serve(head, tick)
    local name = key('served', redis.sha1hex(head.its.name))
    redis.call('ZADD', name, tick, redis.sha1hex(head.key))
    redis.call('ZREMRANGEBYRANK', name, 0, -10001)
    redis.call('EXPIRE', name, 3600)
    head.its.served[head.key] = tonumber(tick)
end

local function goes_first(one, other)
    if not other or string.sub(one.turn, 1, 7) ~= string.sub(other.turn, 1, 7) then
        return not other or one.turn < other.turn
    end
    local mine, its = one.its.counts[one.key] or 0, other.its.counts[other.key] or 0
    if mine ~= its then
        return mine < its
    end
    if one.its.name ~= other.its.name or one.key ~= other.key then
        mine, its = served(one), served(other)
        if mine ~= its then
            return mine < its
        end
    end
    return string.sub(one.turn, 1, 41) < string.sub(other.turn, 1, 41)
end

local words = {'ok', soon}
local function take(head, n, run)
    run.fence = text(redis.call('HINCRBY', store, 'ticks', 1))
    run['until'] = text(time + tonumber(arg(1)))
    save(n, run, {'fence', 'until'})
    local place = run.place
    requeue(n, run, time, {lives = text(place.lives + 1)})
    local signals = text(redis.call('EXISTS', key('inbox', n)))
    for _, word in ipairs({run.fence, run.pos, run.place.lives, place.at, place.priority, signals}) do
        words[#words + 1] = word
    end
    -- Results are words without spaces, and none is empty.
    for _, word in ipairs({run.id, place.queue, place.flow, '=' .. place.key}) do
        words[#words + 1] = in_hex(word)
    end
    if head.its.counted then
        serve(head, run.fence)
    end
    head.its.count = head.its.count + 1
    head.its.counts[head.key] = (head.its.counts[head.key] or 0) + 1
    if head.key ~= '' then
        redis.call('ZADD', key('keys', part_of(head)), 'XX', soon, head.key)
    end
end

-- The keys that a claim looks at: those first whose runs were not claimed for the longest time. Where these have no run
-- that may be claimed, others may.
local page, most = 0, tonumber(arg(3))
repeat
    local heads, more = {}, false
    for _, queue in ipairs(queues) do
        for _, lane in ipairs(queue.lanes) do
            local keys = redis.call('ZRANGE', key('keys', lane.part), page * most, (page + 1) * most - 1)
            more = more or #keys == most
            if page == 0 then
                keys[#keys + 1] = ''
            end
            for _, own in ipairs(keys) do
                heads[#heads + 1] = {queue = lane.queue, flow = lane.flow, key = own, its = queue, damaged = 0}
            end
        end
    end
    local best
    repeat
        best = nil
        for _, head in ipairs(heads) do
            if first(head) and goes_first(head, best) then
                best = head
            end
        end
        if best then
            local n, run = claimable(best, best.turn)
            if n then
                take(best, n, run)
                limit = limit - 1
            else
                best.damaged = best.damaged + 1
            end
            best.turn = nil
        end
    until limit == 0 or not best
    page = page + 1
until #words > 2 or not more
if #words == 2 then
    return refuse(unpack(words))
end
return finish(unpack(words))
