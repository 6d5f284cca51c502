# What the suites of tests/run share: the count, Apache's jars, and a server of their own. Sourced by it and by tests/packages; expects $target, $here (this
# folder) and $binary.

passed=0
failed=0
# Adds the counts of one suite. A suite in which nothing was tested is one failure, and so is one that ended badly without saying where.
count() { # suite passed failed seconds [skipped] [status of the runner]
  local good=$2 bad=$3 skipped=${5:-0} status=${6:-0}
  if [ "$good" -eq 0 ] || [ "$status" -ne 0 ]; then [ "$bad" -gt 0 ] || bad=1; fi
  passed=$((passed + good)); failed=$((failed + bad))
  printf '%-8s %4d passed %3d failed %3d skipped  %4d s\n' "$1" "$good" "$bad" "$skipped" "$4"
}

# Takes the counts of a suite from the "--- PASS" and "--- FAIL" lines of its log, and shows what failed.
count_lines() { # suite log seconds status
  local good bad skipped
  good=$(grep -c '^ *--- PASS' "$2"); bad=$(grep -c '^ *--- FAIL' "$2"); skipped=$(grep -c '^ *--- SKIP' "$2")
  if [ "$bad" -gt 0 ]; then
    grep -A6 -E '^ *--- FAIL|^panic' "$2" | cut -c1-400
  elif [ "$4" -ne 0 ]; then
    echo "$1 ended with status $4:"
    tail -12 "$2" | cut -c1-400
  fi
  count "$1" "$good" "$bad" "$3" "$skipped" "$4"
}

# Waits until a process of ours is gone, a limited time.
await_end() { # pid seconds
  local _
  for _ in $(seq $(($2 * 10))); do
    kill -0 "$1" 2>/dev/null || return 0
    read -rt 0.1 <> <(:) || true
  done
  return 1
}

# Starts a server of its own for a suite; says where it is in $namesrv and $broker.
start_gantry() { # suite
  local line _
  work=$(mktemp -d "$target/$1-XXXXXX")
  # The same short delays as in the Java suites: a retry is a matter of seconds.
  printf '%s\n' brokerIP1=127.0.0.1 enableLmq=true enableMultiDispatch=true "messageDelayLevel=1s 2s 1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s" >"$work/broker.conf"
  "$binary" server --data "$work/store" --namesrv-port 0 --broker-port 0 -c "$work/broker.conf" >"$work/gantry.out" 2>&1 &
  gantry=$!
  # A minute: the machine may be busy.
  for _ in $(seq 1200); do
    line=$(grep -m1 '^gantry: ready ' "$work/gantry.out") && break
    kill -0 $gantry 2>/dev/null || break
    read -rt 0.05 <> <(:) || true
  done
  [[ ${line:-} =~ namesrv=([^ ]+)\ broker=([^ ]+) ]] || { echo 'the server did not get ready'; return 1; }
  namesrv=${BASH_REMATCH[1]} broker=${BASH_REMATCH[2]}
}

# Stops that server. Fails, and keeps its files, when it had ended by itself, does not end within a minute, ends with a
# status, or has panicked somewhere: a suite that noticed nothing of this has not passed.
stop_gantry() {
  local trouble='' status
  kill "$gantry" 2>/dev/null || trouble='had ended before it was told to'
  if ! await_end "$gantry" 60; then
    trouble='did not stop within a minute'
    kill -9 "$gantry"
  fi
  wait "$gantry" 2>/dev/null
  status=$?
  gantry=
  [ -n "$trouble" ] || [ $status -eq 0 ] || trouble="stopped with status $status"
  if grep -q 'panicked at' "$work/gantry.out"; then trouble="${trouble:-stopped well}, and panicked"; fi
  if [ -n "$trouble" ]; then
    echo "the server $trouble (status $status); see $work:"
    grep -m3 -A2 'panicked at' "$work/gantry.out" | cut -c1-400
    tail -5 "$work/gantry.out" | cut -c1-400
    return 1
  fi
  rm -rf "$work/store"
}

# The jars of a real Apache RocketMQ, in $target/apache/4 or 5.
jars() { # 4|5
  local folder=$target/apache/$1 versions
  versions=$(cksum <"$here/apache/pom.xml")
  [ "$(cat "$folder/.complete" 2>/dev/null)" != "$versions" ] || return 0
  # Jars of another version beside these would be on the class path too.
  rm -rf "$folder"
  mvn -q -B -f "$here/apache/pom.xml" -P"$1" dependency:copy-dependencies -Dtarget="$target" && echo "$versions" >"$folder/.complete"
}
