#!/bin/sh
# Stands in for ssh: `ssh_into_namespace.sh NETWORK 10.77.0.N COMMAND`.
network=$1 host=$2
shift 2
case $host in
  10.77.0.*) exec ip netns exec "$network-host$((${host##*.} - 1))" sh -c "$*" ;;
  *) echo "ssh: Could not resolve hostname $host" >&2; exit 255 ;;
esac
