-- for how many microseconds, how many runs, how many queues, and these, flows
local done = settled()
if done then
    return done
end
local time, limit, last = now(), tonumber(arg(2)), 3 + tonumber(arg(3))
local soon, flows, lanes = text(time), {}, {}
for index = last + 1, #ARGV - 6 do
    flows[arg(index)] = true
end
for index = 4, last do
    -- The lanes of one queue follow each other, and no other begins with its name and the end of a line.
    for _, lane in ipairs(redis.call('ZRANGEBYLEX', key('lanes'), '[' .. arg(index) .. '\n', '(' .. arg(index) .. '\11')) do
        if flows[string.sub(lane, #arg(index) + 2)] then
            lanes[#lanes + 1] = {name = lane, part = redis.sha1hex(lane), damaged = 0}
        end
    end
end

-- Moves what has slept long enough, and what an owner lost, to where it belongs now. A thousand at a time, because Lua
-- unpacks only some thousand values.
local MOVED = 1000
local function move(lane, index)
    repeat
        local due, ready = redis.call('ZRANGEBYSCORE', index, '-inf', soon, 'LIMIT', 0, MOVED), {}
        if #due > 0 then
            -- Changes nothing, and is refused by a server without memory.
            redis.call('ZADD', key('lanes'), 0, lane.name)
            redis.call('ZREM', index, unpack(due))
        end
        for _, turn in ipairs(due) do
            if turn_time(turn) > time then
                redis.call('ZADD', key('asleep', lane.part), text(turn_time(turn)), turn)
            else
                ready[#ready + 1] = 0
                ready[#ready + 1] = turn
            end
        end
        if #ready > 0 then
            redis.call('ZADD', key('ready', lane.part), unpack(ready))
        end
    until #due < MOVED
end

for _, lane in ipairs(lanes) do
    move(lane, key('asleep', lane.part))
    move(lane, key('owned', lane.part))
end

-- A run, if it stands where it has to, and so may be claimed. One that is damaged hides no other.
local function claimable(each)
    local n = string.match(string.sub(each.turn, 26), '^0*(%d+)$')
    local run = n and readable(n)
    if not run or not run.place or held(run, time) or lane_of(run.place) ~= each.lane.name then
        return nil
    end
    if turn_of(n, run.place) ~= each.turn or is_asleep(run.place, time) then
        return nil
    end
    return n, run
end

local function in_hex(value)
    return (string.gsub(value, '.', function(char)
        return string.format('%02x', string.byte(char))
    end))
end

local words, skipped = {'ok', soon}, nil
repeat
    local found = {}
    for _, lane in ipairs(lanes) do
        local turns = redis.call('ZRANGE', key('ready', lane.part), lane.damaged, lane.damaged + limit - 1)
        for _, turn in ipairs(turns) do
            found[#found + 1] = {turn = turn, lane = lane}
        end
    end
    table.sort(found, function(one, other)
        return one.turn < other.turn
    end)
    skipped = false
    for _, each in ipairs(found) do
        if limit == 0 then
            break
        end
        local n, run = claimable(each)
        if n then
            run.fence = text(redis.call('HINCRBY', store, 'ticks', 1))
            run['until'] = text(time + tonumber(arg(1)))
            save(n, run, {'fence', 'until'})
            local place = run.place
            requeue(n, run, time, {lives = text(place.lives + 1)})
            local signals = text(redis.call('EXISTS', key('inbox', n)))
            for _, word in ipairs({run.fence, run.pos, run.place.lives, place.at, place.priority, signals}) do
                words[#words + 1] = word
            end
            -- Results are words without spaces.
            for _, word in ipairs({run.id, place.queue, place.flow}) do
                words[#words + 1] = in_hex(word)
            end
            limit = limit - 1
        else
            each.lane.damaged = each.lane.damaged + 1
            skipped = true
        end
    end
until limit == 0 or not skipped
if #words == 2 then
    return refuse(unpack(words))
end
return finish(unpack(words))
