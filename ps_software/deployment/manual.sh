#!/bin/sh
# Write the manual page of thc-ps from its --help: manual.sh PROGRAM VERSION.
set -eu
help=$("$1" --help)
cat <<END
.TH THC-PS 1 "" "thc-ps $2"
.SH NAME
thc-ps \\- parameter server that sums compressed gradients
.SH SYNOPSIS
.B thc-ps
[\\fIOPTION\\fR]...
.SH DESCRIPTION
Workers of a training send codes of their gradients by UDP; thc-ps looks them up, adds, and sends the sums back.
SIGTERM and SIGINT finish what is in flight, and end it.
.SH OPTIONS
.nf
END
printf '%s\n' "$help" | sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"
cat <<'END'
.fi
.SH FILES
.I /etc/thc-ps.toml
.RS
Settings of the service (systemctl start thc\-ps).
.RE
END
