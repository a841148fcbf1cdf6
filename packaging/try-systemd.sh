#!/bin/sh
# Runs in a Debian with systemd's programs, of which none is running. The package is /tmp/quorate.deb, and etcd is on the PATH.
set -eu
expect() { [ "$2" = "$3" ] || { echo "$1: expected '$2', found '$3'" >&2; exit 1; }; }
as_quorate() { setpriv --reuid quorate --regid quorate --clear-groups env HOME=/var/lib/quorate QUORATE_HOME=/var/lib/quorate "$@"; }

dpkg -i /tmp/quorate.deb
expect "state directory" "700 quorate quorate" "$(stat -c '%a %U %G' /var/lib/quorate)"
expect "specs directory" "750 root quorate" "$(stat -c '%a %U %G' /etc/quorate)"
expect "enabled units" "" "$(find /etc/systemd -name 'quorate*')"
for unit in quorate-apply@try.service quorate-apply@try.timer quorate-backup@try.service; do
    complaints=$(systemd-analyze verify --recursive-errors=one "$unit" 2>&1) || { echo "$complaints" >&2; exit 1; }
    expect "systemd-analyze verify $unit" "" "$(echo "$complaints" | grep quorate || true)"
done
systemd-analyze security --offline=yes --threshold=25 --no-pager /usr/lib/systemd/system/quorate-apply@.service | tail -1
systemd-analyze security --offline=yes --threshold=25 --no-pager /usr/lib/systemd/system/quorate-backup@.service | tail -1
man -w quorate quorate-apply quorate-backup-watch
man -P cat --warnings=w quorate 2>&1 >/dev/null | { ! grep .; }

# A cluster survives the removal of the package, and is still known when it is installed again.
as_quorate quorate up try
state() { find /var/lib/quorate/clusters /var/lib/quorate/key -type f | sort | xargs sha256sum; }
before=$(state)
dpkg -r quorate
dpkg --purge quorate
test ! -e /usr/bin/quorate
expect "ledger and keys after the purge" "$before" "$(state)"
dpkg -i /tmp/quorate.deb
as_quorate quorate status try
as_quorate quorate destroy try --yes --without-backup
