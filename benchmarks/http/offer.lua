-- wrk: POST the body given after `--`, at moments that do not wait for answers: after each a
-- connection pauses for up to twice the milliseconds given behind the body. When done, one line of
-- JSON for benchmarks/http/wrk.py. The server returns each request's id: here, the time when it was sent.

local ffi = require("ffi")
ffi.cdef [[
  typedef struct { long seconds; long nanoseconds; } moment;
  int clock_gettime(int clock, moment *now);
]]
local CLOCK_MONOTONIC = 1
local moment = ffi.new("moment")

local function microseconds()
  ffi.C.clock_gettime(CLOCK_MONOTONIC, moment)
  return tonumber(moment.seconds) * 1e6 + math.floor(tonumber(moment.nanoseconds) / 1e3)
end

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  wrk.method = "POST"
  wrk.body = args[1]
  wrk.headers["Content-Type"] = "application/json"
  pause = tonumber(args[2])
  taken, refused, failed = {}, {}, 0
  if pause == 0 then
    delay = nil
  end
end

function delay()
  return math.random(0, 2 * pause)
end

function request()
  wrk.headers["X-Request-Id"] = string.format("%d", microseconds())
  return wrk.format()
end

function response(status, headers)
  local took = microseconds() - tonumber(headers["x-request-id"])
  if status == 200 then
    table.insert(taken, took)
  elseif status == 429 then
    table.insert(refused, took)
  else
    failed = failed + 1
  end
end

local function percentile(times, percent)
  table.sort(times)
  return times[math.max(1, math.ceil(#times * percent / 100))] or 0
end

function done(summary)
  local thread, errors = threads[1], summary.errors
  local taken, refused = thread:get("taken"), thread:get("refused")
  io.write(string.format(
    '\n{"microseconds": %d, "taken": %d, "taken_max_us": %d, "refused": %d, '
      .. '"refused_p95_us": %d, "failed": %d}\n',
    summary.duration,
    #taken,
    percentile(taken, 100),
    #refused,
    percentile(refused, 95),
    thread:get("failed") + errors.connect + errors.read + errors.write + errors.timeout
  ))
end
