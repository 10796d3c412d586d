#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manual pages are clean for mandoc and groff, and name every option of slabd and every command and option of slabctl.
# usage: check-manuals.sh   (SLABCTL: the program, default build/release/slabctl)
cd "$(dirname "$0")/.." || exit 1
slabctl=${SLABCTL:-build/release/slabctl}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0
fail() {
	echo "check-manuals: $1"
	bad=1
}

pages=$(find server client -name '*.[158]' -type f | sort)
[ -n "$pages" ] || fail "there are no manual pages"
n_tools=0
for tool in mandoc groff; do
	if ! command -v $tool >/dev/null; then
		echo "check-manuals: $tool is not installed: skipped"
		continue
	fi
	n_tools=$((n_tools + 1))
	for page in $pages; do
		case $tool in
		mandoc) mandoc -T lint -W warning "$page" >"$tmp/said" 2>&1 ;;
		groff) groff -mdoc -Tutf8 -ww "$page" 2>"$tmp/said" >/dev/null ;;
		esac || fail "$tool fails on $page"
		[ -s "$tmp/said" ] && fail "$tool on $page: $(cat "$tmp/said")"
	done
done
[ $n_tools -gt 0 ] || fail "neither mandoc nor groff is installed"

# usage: name_options PAGE <HELP
name_options() {
	grep -o -- '--[a-z][a-z-]*' | sort -u >"$tmp/options"
	[ -s "$tmp/options" ] || fail "no options found for $1"
	while read -r option; do
		grep -qE "^\.It .*Fl -${option#--}( |\$)" "$1" || fail "$1 does not name $option"
	done <"$tmp/options"
}

sed -n '/^static const char help\[\]/,/";$/p' server/main.c >"$tmp/slabd"
name_options server/slabd.8 <"$tmp/slabd"
"$slabctl" --help >"$tmp/slabctl" || fail "$slabctl --help fails"
name_options client/slabctl.1 <"$tmp/slabctl"
# "  arenas, nodes    a line" and "  tune CACHE KNOB=VALUE...  change": the small words before the two blanks.
sed -n '/^Commands:/,/^Options:/s/^  \([a-z].*\)/\1/p' "$tmp/slabctl" | sed -e 's/  .*//' -e 's/ *[[A-Z].*//' | tr ',' '\n' |
	sed 's/^ *//' >"$tmp/commands"
[ -s "$tmp/commands" ] || fail "no commands found"
while read -r command; do
	grep -qE "^\.It Cm $command( [A-Z]|\$)" client/slabctl.1 || fail "client/slabctl.1 does not name the command $command"
done <"$tmp/commands"
[ $bad = 0 ] || exit 1
echo "check-manuals: ok, $(echo "$pages" | wc -l) pages"
