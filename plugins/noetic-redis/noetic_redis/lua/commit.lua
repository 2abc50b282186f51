-- for each transaction: for how many microseconds it acquires the run, or nothing; whether it releases it; whether the run
-- has ended; up to which number signals were read; how many arguments its place in a queue has, and how many its signals;
-- how many it has besides; and these: time or nothing, priority, queue, flow; run, key, crc of the body and body of each
-- signal; run, position, fence, new position, count, crc of the body, body, card or not, card, its crc, status or not,
-- status, its digest, and large payloads, each behind its digest
local done = settled()
if done then
    return done
end
local time, seen = now(), {}

-- Each run once, so that what is done to it twice is done to the same.
local function seen_run(run_id)
    if not seen[run_id] then
        local n, run = find(run_id)
        seen[run_id] = {n = n, run = run}
    end
    return seen[run_id]
end

local all, index = {}, 1
while index <= #ARGV - 6 do
    local each = {ttl = arg(index), releases = arg(index + 1) == '1', ends = arg(index + 2) == '1', read = arg(index + 3)}
    each.queued, each.signals = index + 7, index + 7 + tonumber(arg(index + 4))
    each.first = each.signals + tonumber(arg(index + 5))
    each.last = each.first + tonumber(arg(index + 6)) - 1
    each.its = seen_run(arg(each.first))
    local run, position, fence = each.its.run, '0', '0'
    if run then
        position, fence = run.pos, run.fence
    end
    if each.ttl ~= '' and run and held(run, time) then
        return refuse('busy')
    end
    local expected = arg(each.first + 2)
    if fence ~= expected and (each.ttl == '' or expected ~= '0') then
        return refuse('fence', text(#all), fence)
    end
    if position ~= arg(each.first + 1) then
        return refuse('position', text(#all), position)
    end
    -- What cannot be read is found before anything is written.
    for signal = each.signals, each.first - 1, 4 do
        seen_run(arg(signal))
    end
    all[#all + 1] = each
    index = each.last + 1
end

local function empty_inbox(n, upto)
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', key('inbox', n), '-inf', upto)) do
        redis.call('HDEL', key('signals', n), name)
        redis.call('ZREM', key('inbox', n), name)
    end
end

local function enqueue(each)
    local n, run, first = each.its.n, each.its.run, each.queued
    if each.ends then
        empty_inbox(n, '+inf')
        if run.place then
            leave_queue(n, run)
        end
    elseif each.read ~= '0' then
        empty_inbox(n, each.read)
    end
    if first < each.signals then
        local place = {at = arg(first), priority = arg(first + 1), queue = arg(first + 2), flow = arg(first + 3)}
        place.lives = run.place and run.place.lives or '0'
        -- A signal that was not read wakes it at once.
        if is_asleep(place, time) and redis.call('EXISTS', key('inbox', n)) == 1 then
            place.at = text(time)
        end
        requeue(n, run, time, place)
    end
    for signal = each.signals, each.first - 1, 4 do
        local to = seen_run(arg(signal))
        if to.run then
            deliver(to.n, to.run, time, arg(signal + 1), arg(signal + 2), arg(signal + 3))
        end
    end
end

local grown, words = 0, {'ok'}
for _, each in ipairs(all) do
    local names, its = {'pos', 'bytes', 'updated'}, each.its
    if not its.run then
        its.n, its.run = create(arg(each.first), time)
        names = FIELDS
    end
    if each.ttl ~= '' then
        its.run.fence = text(redis.call('HINCRBY', store, 'ticks', 1))
        names = FIELDS
    end
    grown = grown + write(its.n, its.run, each.first, each.last, time, names)
    if each.releases then
        give_up(its.n, its.run, time)
    elseif each.ttl ~= '' then
        own(its.n, its.run, time, each.ttl)
    end
    words[#words + 1] = its.run.fence
end
for _, each in ipairs(all) do
    enqueue(each)
end
count('bytes', grown)
return finish(unpack(words))
