-- wrk: POST the body given after `--`; when done, one line of JSON for benchmarks/http/wrk.py.

function init(args)
  wrk.method = "POST"
  wrk.body = args[1]
  wrk.headers["Content-Type"] = "application/json"
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "microseconds": %d, "failed": %d, "median_us": %d, "p99_us": %d}\n',
    summary.requests,
    summary.duration,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50),
    latency:percentile(99)
  ))
end
