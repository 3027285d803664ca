#!/bin/sh
# Install what the tests need besides Python packages: the programs of a MariaDB server.
#
# Only the -core packages: they have mariadbd and mariadb-install-db, but no
# service, so nothing is started now or at the next boot, with systemd or
# without. Silent when there is nothing to do; where it may not install, one
# line says what to install, and the tests that need it fail saying the same.
set -eu

packages="mariadb-server-core mariadb-client-core"
PATH="$PATH:/usr/sbin:/usr/local/sbin"

if command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null &&
    command -v my_print_defaults >/dev/null; then
    exit 0
fi

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
    echo "tests with a real server need MariaDB: apt install $packages" >&2
    exit 0
fi

echo "installing $packages"
no_questions="DEBIAN_FRONTEND=noninteractive"
{ $as_root apt-get -qq update &&
    $as_root $no_questions apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends \
        $packages >/dev/null; } || {
    echo "apt could not install MariaDB for the tests; try: apt install $packages" >&2
    exit 1
}
