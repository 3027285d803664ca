#!/bin/sh
# Install what Python's packages cannot bring: the programs of a MariaDB server for
# the tests, a C compiler and Python's headers for the compiled modules, a Java for Spark,
# a Chromium for the relay's page, a ZooKeeper (its library, which starts nothing), a Redis.
#
# Of MariaDB only the -core packages: they have mariadbd and mariadb-install-db, but
# no service, so nothing is started now or at the next boot, with systemd or
# without. Silent when there is nothing to do; where it may not install, one
# line says what to install, and the tests that need it fail saying the same.
set -eu

PATH="$PATH:/usr/sbin:/usr/local/sbin"
python="${PYTHON:-python3}"

packages=""
command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null &&
    command -v my_print_defaults >/dev/null ||
    packages="$packages mariadb-server-core mariadb-client-core"
command -v cc >/dev/null || packages="$packages gcc libc6-dev"
"$python" -c 'import os, sys, sysconfig as s; sys.exit(not os.path.isfile(s.get_path("include") + "/Python.h"))' ||
    packages="$packages python3-dev"
command -v chromium >/dev/null || packages="$packages chromium fonts-dejavu-core"
[ -f /usr/share/java/zookeeper.jar ] || packages="$packages libzookeeper-java"
command -v java >/dev/null || packages="$packages openjdk-17-jre-headless"
# redis-tools has the whole server, under another name; redis-server would start a service.
command -v redis-server >/dev/null || command -v redis-check-rdb >/dev/null || packages="$packages redis-tools"
# MongoDB's server, which tools/fetch_mongodb.py fetches, needs it.
ldconfig -p | grep -q 'libcurl\.so\.4 ' || packages="$packages libcurl4"
[ -n "$packages" ] || exit 0

if ! command -v apt-get >/dev/null; then
    as_root=none
elif [ "$(id -u)" = 0 ]; then
    as_root="env"
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n env"
else
    as_root=none
fi

if [ "$as_root" = none ]; then
    echo "the tests need more than is here: apt install$packages" >&2
    exit 0
fi

echo "installing$packages"
no_questions="DEBIAN_FRONTEND=noninteractive"
# shellcheck disable=SC2086  # a list of names
{ $as_root apt-get -qq update &&
    $as_root $no_questions apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends \
        $packages >/dev/null; } || {
    echo "apt could not install what the tests need; try: apt install$packages" >&2
    exit 1
}
