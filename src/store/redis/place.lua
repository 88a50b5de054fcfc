-- place: a commit of a large response.  The record as it is to be lies beside
-- its key already, put there by a plain SET: what passes through a script costs
-- Redis ten times as much.  Under its own key it comes by RENAME.
--
-- KEYS[1]  the record   KEYS[2] the one that takes its place
-- ARGV     1 tag of this call   2 token   3 life, ms   4 channel of the
--          wake-ups
--
-- Returns  tag "1": committed, now or before
--          tag "0": somebody else's
--          tag "3": there is nothing of ours to be put there
--          tag "4": somebody else's, who still runs
--
-- Of a record, counted from 1: 4 state, 7 waits, 8 to 23 token, from 105 on the
-- response and the details.

local key, new = KEYS[1], KEYS[2]

if redis.call('GETRANGE', new, 7, 22) ~= ARGV[2] then
    return ARGV[1] .. '3'
end

-- before all other writes: once a script has written, maxmemory is no matter

redis.call('PEXPIRE', new, ARGV[3])

local old = redis.call('GET', key)

if old then
    local is_ours = string.sub(old, 8, 23) == ARGV[2]
    local runs = string.byte(old, 4) == 1

    if not is_ours or not runs then
        redis.call('DEL', new)
        return ARGV[1] .. (is_ours and '1' or runs and '4' or '0')
    end

    if #old > 104 then
        redis.call('APPEND', new, string.sub(old, 105))
    end
end

redis.call('RENAME', new, key)

if old and string.byte(old, 7) == 1 then
    redis.call('PUBLISH', ARGV[4], key)
end

return ARGV[1] .. '1'
