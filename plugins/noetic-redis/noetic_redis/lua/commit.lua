-- for each transaction: for how many microseconds it acquires the run, or nothing; whether it releases it; whether the run
-- has ended; up to which number signals were read; how many arguments its place in a queue has, how many its signals, how
-- many its budgets, and how many it has besides; and these: time or nothing, priority, queue, flow; run, key, crc of the
-- body and body of each signal; name and period of each budget, and in JSON what is spent, what is held, or nothing, and
-- the limits; run, position, fence, new position, count, crc of the body, body, card or not, card, its crc, status or not,
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
    each.queued, each.signals = index + 8, index + 8 + tonumber(arg(index + 4))
    each.budgets = each.signals + tonumber(arg(index + 5))
    each.first = each.budgets + tonumber(arg(index + 6))
    each.last = each.first + tonumber(arg(index + 7)) - 1
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
    for signal = each.signals, each.budgets - 1, 4 do
        seen_run(arg(signal))
    end
    all[#all + 1] = each
    index = each.last + 1
end

-- Each row of a budget once, as it will be.
local rows = {}

local function seen_row(place)
    if not rows[place] then
        rows[place] = cjson.decode(read_budget(place) or '{"limits": {}, "used": {}, "held": {}}')
    end
    return rows[place]
end

local function amount(of, dimension)
    return tonumber(of[dimension] or '0')
end

-- Changes a row; gives the place of the limit that it would pass, what is used, what is reserved, and what is asked for.
local function change_row(row, run_id, spent, held, limits)
    local old = row.held[run_id] or {}
    local new = held or old
    for index = 1, #limits, 2 do
        local dimension, limit = limits[index], tonumber(limits[index + 1])
        local used, reserved = amount(row.used, dimension), 0
        for _, its in pairs(row.held) do
            reserved = reserved + amount(its, dimension)
        end
        local raised = amount(spent, dimension) + amount(new, dimension) - amount(old, dimension)
        -- Differences stay exact where a sum may be larger than a double holds.
        if raised > 0 and raised > limit - used - reserved then
            return text((index - 1) / 2), text(used), text(reserved), text(raised)
        end
    end
    for dimension in pairs(spent) do
        row.used[dimension] = text(amount(row.used, dimension) + amount(spent, dimension))
    end
    row.held[run_id] = next(new) and new or nil
    if #limits > 0 then
        row.limits = {}
        for index = 1, #limits, 2 do
            row.limits[limits[index]] = limits[index + 1]
        end
    end
end

for at, each in ipairs(all) do
    for budget = each.budgets, each.first - 1, 4 do
        local held = arg(budget + 2) ~= '' and cjson.decode(arg(budget + 2)) or nil
        local limit, used, reserved, asked = change_row(
            seen_row(arg(budget)), arg(each.first), cjson.decode(arg(budget + 1)), held, cjson.decode(arg(budget + 3))
        )
        if limit then
            return refuse('budget', text(at - 1), text((budget - each.budgets) / 4), limit, used, reserved, asked)
        end
    end
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
        place.key = arg(first + 4)
        place.lives = run.place and run.place.lives or '0'
        -- A signal that was not read wakes it at once.
        if is_asleep(place, time) and redis.call('EXISTS', key('inbox', n)) == 1 then
            place.at = text(time)
        end
        requeue(n, run, time, place)
    end
    for signal = each.signals, each.budgets - 1, 4 do
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
for place, row in pairs(rows) do
    local body = cjson.encode(row)
    redis.call('HSET', key('budgets'), place, checksum('budget', place, body) .. ' ' .. body)
    redis.call('ZADD', key('budget'), 0, place)
end
count('bytes', grown)
return finish(unpack(words))
