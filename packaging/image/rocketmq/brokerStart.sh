#!/bin/sh
# The start script of the broker images of RocketMQ's operator: what the operator says in the environment wins over
# conf/broker-common.conf, which it mounts.
here=$(dirname "$0")
common=$ROCKETMQ_HOME/conf/broker-common.conf
if [ -e "$common" ]; then
  # A copy, as the operator's own script makes one: changes of a running broker are written into it, and the mount is read-only.
  # A root that is read-only too has no room for it; then changes are in force until the broker stops.
  file=$ROCKETMQ_HOME/conf/broker.conf
  cp "$common" "$file" 2>/dev/null || file=$common
  set -- -c "$file" "$@"
fi
put() { # key value
  [ -z "$2" ] || settings="$settings --set $1=$2"
}
settings=
put brokerClusterName "${BROKER_CLUSTER_NAME:-}"
put brokerName "${BROKER_NAME:-}"
put brokerId "${BROKER_ID:-}"
put brokerIP1 "${POD_IP:-}"
# Replicas have the master's file, so its role cannot be right for them.
[ "${BROKER_ID:-0}" = 0 ] || put brokerRole SLAVE
if [ "${enableControllerMode:-}" = true ]; then
  put enableControllerMode true
  put controllerAddr "${controllerAddr:-}"
fi
[ -z "${NAMESRV_ADDR:-}" ] || set -- -n "$NAMESRV_ADDR" "$@"
# Names and addresses have no blanks: unquoted, each setting is two words.
exec "$here/mqbroker" "$@" $settings
