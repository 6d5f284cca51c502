#!/bin/sh
# Apache's entry point: the first word or NODE_ROLE says what starts; any other words are a command.
here=$(dirname "$0")
role=
case ${1:-} in
  nameserver | broker | controller | proxy)
    role=$1
    shift
    ;;
  dummy) # Apache's image has this word where nobody gives one.
    shift
    role=${NODE_ROLE:-}
    ;;
  '' | -*) role=${NODE_ROLE:-} ;;
  *) exec "$@" ;;
esac
# RocketMQ's operator, and charts that use its images, give no word: an image is one role there. The environment tells them apart.
if [ -z "$role" ]; then
  if [ -n "${BROKER_NAME:-}" ] || [ -e "$ROCKETMQ_HOME/conf/broker-common.conf" ]; then
    exec "$here/brokerStart.sh" "$@"
  elif [ -n "${controllerDLegerGroup:-}" ]; then
    echo "$0: controllerDLegerGroup in the environment is not read: mount a file, and start the controller by: controller -c FILE" >&2
    exit 2
  else
    role=nameserver
    echo "$0: no word and no NODE_ROLE: starting the name server; the words are nameserver, broker and controller" >&2
  fi
fi
case $role in
  nameserver) exec "$here/mqnamesrv" "$@" ;;
  broker) exec "$here/mqbroker" "$@" ;;
  controller) exec "$here/mqcontroller" "$@" ;;
  proxy) exec "$here/mqproxy" "$@" ;;
  *)
    echo "$0: NODE_ROLE=$role is not known: nameserver, broker or controller" >&2
    exit 2
    ;;
esac
