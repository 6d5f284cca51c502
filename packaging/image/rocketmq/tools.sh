#!/bin/sh
# RocketMQ's way to start a class of its jars.
exec java "$@"
