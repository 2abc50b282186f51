-- below which number, how many runs, written before when or nothing, how many to keep or nothing, how many were kept,
-- all statuses or some, and these
local done = settled()
if done then
    return done
end
local time, chosen = now(), {}
for index = 7, #ARGV - 6 do
    chosen[arg(index)] = true
end
local before, keep, kept = tonumber(arg(3)), tonumber(arg(4)), tonumber(arg(5))
local found = redis.call('ZREVRANGEBYSCORE', key('runs'), '(' .. arg(1), '0', 'WITHSCORES', 'LIMIT', 0, arg(2))
local old = {}
for at = 1, #found, 2 do
    local n = found[at]
    local run = readable(n)
    -- What cannot be read is no reason to keep the others, and is left for the repair of the store.
    if run and (arg(6) == 'all' or chosen[run.status]) then
        if keep and kept < keep then
            kept = kept + 1
        elseif (not before or tonumber(run.updated) < before) and not held(run, time) then
            old[#old + 1] = {n, run}
        end
    end
end
for _, each in ipairs(old) do
    forget(each[1], each[2])
end
local below = #found == 2 * tonumber(arg(2)) and text(math.floor(tonumber(found[#found]))) or '0'
if #old == 0 then
    return {below, text(kept), '0'}
end
return finish(below, text(kept), text(#old))
