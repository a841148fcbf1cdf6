#!/bin/sh
# Runs in a Debian without systemd. The package is /tmp/quorate.deb, and etcd is on the PATH.
set -eu
dpkg -i /tmp/quorate.deb
quorate --version
test -s /usr/share/man/man1/quorate.1.gz
test -s /usr/share/man/man1/quorate-backup-watch.1.gz
quorate schema >/dev/null
quorate init >/tmp/spec.yaml
quorate plan /tmp/spec.yaml >/dev/null
bash -n /usr/share/bash-completion/completions/quorate
dpkg -r quorate
test ! -e /usr/bin/quorate
