#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manual pages, as they are installed: clean for mandoc and groff; they name every option of slabd and every command and option of slabctl; those
# of section 3 have each call as the header has it, each errno that it promises, each option and constant; their examples build and run beside
# a slabd; and no page leads to one that is not there.
# usage: check-manuals.sh
cd "$(dirname "$0")/.." || exit 1
tmp=$(mktemp -d) || exit 1
man=$tmp/prefix/share/man
slabctl=$tmp/prefix/bin/slabctl
pid=
clean_up() {
	[ -z "$pid" ] || { kill "$pid" && wait "$pid"; } 2>/dev/null
	rm -rf "$tmp"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP
bad=0
fail() {
	echo "check-manuals: $1"
	bad=1
}

make -s install PREFIX="$tmp/prefix" >/dev/null || {
	echo "check-manuals: install"
	exit 1
}
pages=$(find "$man" -type f | sort)
find client proto server shm -name '*.[1-8]' -o -name '*.[1-8].in' | sed -e 's|.*/||' -e 's|\.in$||' | sort >"$tmp/sources"
for page in $pages; do
	basename "$page"
done | sort | diff "$tmp/sources" - || fail "< pages there are, > pages that are installed"

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
name_options "$man/man8/slabd.8" <"$tmp/slabd"
"$slabctl" --help >"$tmp/slabctl" || fail "$slabctl --help fails"
name_options "$man/man1/slabctl.1" <"$tmp/slabctl"
# "  arenas, nodes    a line" and "  tune CACHE KNOB=VALUE...  change": the small words before the two blanks.
sed -n '/^Commands:/,/^Options:/s/^  \([a-z].*\)/\1/p' "$tmp/slabctl" | sed -e 's/  .*//' -e 's/ *[[A-Z].*//' | tr ',' '\n' |
	sed 's/^ *//' >"$tmp/commands"
[ -s "$tmp/commands" ] || fail "no commands found"
while read -r command; do
	grep -qE "^\.It Cm $command( [A-Z]|\$)" "$man/man1/slabctl.1" || fail "slabctl.1 does not name the command $command"
done <"$tmp/commands"

# Section 3 and the header.
pages_3=$(find "$man/man3" -type f | sort)
# usage: of WHAT FILE...
of() {
	what=$1
	shift
	awk -v what="$what" -v dir="$tmp/examples" -f tests/manuals.awk "$@"
}
header=client/slabclient.h
of declared $header | sort >"$tmp/declared"
[ "$(wc -l <"$tmp/declared")" = "$(grep -c '^SLABC_API' $header)" ] || fail "not all declarations of $header are found"
# shellcheck disable=SC2086
of synopsis $pages_3 | sort | diff "$tmp/declared" - || fail "< as declared, > as in a SYNOPSIS"
# shellcheck disable=SC2086
of names $pages_3 | grep -v ' libslabclient$' | cut -d' ' -f2 | sort >"$tmp/names"
sed 's/(.*//; s/.*[ *]//' "$tmp/declared" | sort | diff - "$tmp/names" || fail "< calls, > names in NAME sections"
while read -r name; do
	[ -e "$man/man3/$name.3" ] || fail "there is no page by the name $name"
done <"$tmp/names"
of promised $header | sort -u >"$tmp/promised"
[ -s "$tmp/promised" ] || fail "no errno found in $header"
# shellcheck disable=SC2086
of errors $pages_3 | sort -u | comm -23 "$tmp/promised" - >"$tmp/missing"
[ -s "$tmp/missing" ] && fail "an errno of the header's that ERRORS has not: $(cat "$tmp/missing")"
of members $header >"$tmp/members"
# shellcheck disable=SC2046,SC2086
for st in $(cut -d' ' -f1 "$tmp/members" | uniq); do
	page=$(grep -l "^\.Vt \"struct $st\"\$" $(grep -l '^\.It Fa' $pages_3))
	grep "^$st " "$tmp/members" | cut -d' ' -f2 >"$tmp/asked"
	sed -n 's/^\.It Fa //p' "$page" | diff "$tmp/asked" - || fail "< members of struct $st, > those that $(basename "$page") has"
done
sed -n 's/^#define \(SLABC_[A-Z_]*\) \(.*\)/\1 \2/p' $header | grep -v '^SLABC_API ' >"$tmp/macros"
while read -r macro value; do
	# shellcheck disable=SC2086
	grep -hE "^\.(Dv|It Dv) $macro( |\$)" $pages_3 >"$tmp/said" || fail "no page names $macro"
	sed -n 's/.* Pq \([0-9,]*\).*/\1/p' "$tmp/said" | tr -d ',' | grep -vx "${value%% *}" && fail "another number than that of $macro"
done <"$tmp/macros"
# shellcheck disable=SC2086
sed -n 's/.*Dv \(SLABC_[A-Z_]*\).*/\1/p' $pages_3 | sort -u | while read -r macro; do
	grep -q "^$macro " "$tmp/macros" || echo "$macro"
done >"$tmp/unknown"
[ -s "$tmp/unknown" ] && fail "named, and not in the header: $(cat "$tmp/unknown")"

# Numbers in prose: each is that of a source.
n_numbers=0
while IFS='|' read -r page phrase file name; do
	n=$(sed -n "s/.*$name\\([0-9][0-9 <]*\\).*/\\1/p" "$file" | head -1)
	# shellcheck disable=SC2004
	n=$(echo $(($n)) | sed -e ':a' -e 's/\([0-9]\)\([0-9]\{3\}\)\(,\|$\)/\1,\2\3/' -e 'ta')
	said=$(echo "$phrase" | sed "s/%/$n/")
	grep -q -- "$said" "$man/man3/$page.3" || fail "$page(3) does not say \"$said\", as $file has it"
	n_numbers=$((n_numbers + 1))
done <<'END'
slabc_open|name, at most % bytes|proto/ops.def|STR(arena, 
slabc_open|at most % bytes are kept|proto/ops.def|STR(label, 
slabc_open|^0 is %; |client/slabclient.c|DEFAULT_TIMEOUT_MS = 
slabc_cache_open|^1 to % bytes|proto/ops.def|STR(name, 
slabc_cache_open|more than % bytes|proto/ops.def|STR(name, 
slabc_cache_open|power of two up to %\.|shm/layout.h|LAYOUT_PAGE_BYTES = 
slabc_cache_open|keeps for a node, 1 to %;|server/cache.c|MAX_BARN_FULL = 
slabc_cache_open|they are empty, 1 to %;|server/cache.c|MAX_MIN_PARTIAL = 
slabc_cache_open|partial slabs, 1 to %;|server/cache.c|MAX_CPU_PARTIAL = 
slabc_cache_open|process barn, 1 to %;|shm/layout.h|LAYOUT_MAX_SLOTS = 
slabc_cache_open|at least 2 to this power pages: up to %\.|shm/layout.h|LAYOUT_MAX_ORDER = 
slabc_cache_open|at most 2 to this power pages: up to %;|shm/layout.h|LAYOUT_MAX_ORDER = 
slabc_cache_open|wanted in a slab, up to %\.|shm/layout.h|LAYOUT_MAX_SLAB_OBJECTS = 
slabc_cache_open|can have, %, or|proto/ops.def|UPTO(cache, 
slabc_cache_open|process has % open|client/internal.h|CLIENT_MAX_HANDLES = 
slabc_alloc|no room and % frees|client/internal.h|CLIENT_MAX_DEFERRED = 
slabc_malloc|^Up to % bytes|client/sized.c|MAX_CLASS_BYTES = 
slabc_malloc|power of two up to %\.|shm/layout.h|LAYOUT_PAGE_BYTES = 
slabc_malloc|are there, %, or|proto/ops.def|UPTO(cache, 
slabc_malloc|process has % open|client/internal.h|CLIENT_MAX_HANDLES = 
slabc_ref_of|process has % caches open|client/internal.h|CLIENT_MAX_HANDLES = 
slabc_publish|it can have, %\.|server/root.h|ROOT_MAX = 
slabc_publish|^% calls of the session|server/watch.h|WATCH_MAX = 
END
[ $n_numbers -gt 0 ] || fail "no numbers compared"

# The orders of shared memory.
{
	grep -ohE 'order: [A-Z_]+' shm/*.[ch]
	grep -hE '[WR]: ' shm/*.h | grep -oE '\([A-Z_]{4,}( release)?\)'
} | sed -E 's/order: //; s/[()]//g; s/ .*//' | sort -u >"$tmp/orders"
sed -n '/^\.Sh ORDERS/,/^\.Sh EX/s/^\.It Dv //p' "$man/man7/slab-layout.7" | sort | diff "$tmp/orders" - || fail "< orders of shm, > those of slab-layout(7)"

# No page leads to one of ours that is not there.
# shellcheck disable=SC2086
sed -n 's/^\.\(It \)\{0,1\}Xr \(slab[a-z_.-]*\|libslab[a-z]*\) \([1-8]\).*/\2 \3/p' $pages | sort -u >"$tmp/leads"
while read -r name section; do
	[ -e "$man/man$section/$name.$section" ] || fail "there is no $name($section), to which a page leads"
done <"$tmp/leads"

# Examples.
mkdir "$tmp/examples"
# shellcheck disable=SC2086
of examples $pages_3 >"$tmp/said"
[ -s "$tmp/said" ] && fail "$(cat "$tmp/said")"
PKG_CONFIG_PATH=$tmp/prefix/lib/pkgconfig
LD_LIBRARY_PATH=$tmp/prefix/lib
SLABD_SOCKET=$tmp/s
export PKG_CONFIG_PATH LD_LIBRARY_PATH SLABD_SOCKET
"$tmp/prefix/sbin/slabd" --socket="$SLABD_SOCKET" --arena-size=64M --page-kind=4k 2>"$tmp/log" &
pid=$!
i=0
until "$slabctl" status >/dev/null 2>&1; do
	i=$((i + 1))
	[ $i -lt 100 ] || {
		echo "check-manuals: slabd did not start: $(cat "$tmp/log")"
		exit 1
	}
	sleep 0.1
done
for page in $pages_3; do
	example=$tmp/examples/$(basename "$page").1.c
	grep -qs '^main(void)' "$example" || fail "$(basename "$page") has no program in EXAMPLES"
done
n_examples=0
for example in "$tmp"/examples/*.c; do
	name=$(basename "$example" .c)
	# shellcheck disable=SC2046
	"${CC:-cc}" -Wall -Wextra -Werror $(pkg-config --cflags libslabclient) -o "$tmp/program" "$example" $(pkg-config --libs libslabclient) || {
		fail "the example $name does not build"
		continue
	}
	timeout 20 "$tmp/program" >"$tmp/said" 2>&1 || fail "the example $name: status $?"
	sed "s/^/check-manuals: $name: /" "$tmp/said"
	n_examples=$((n_examples + 1))
done
"$slabctl" audit >"$tmp/said" || fail "after the examples: $(cat "$tmp/said")"
# slabd learns of the last one's end a moment later.
i=0
until [ "$("$slabctl" orphans | wc -l)" -le 1 ]; do
	i=$((i + 1))
	[ $i -lt 50 ] || {
		fail "the examples leave orphans: $("$slabctl" orphans)"
		break
	}
	sleep 0.1
done

[ $bad = 0 ] || exit 1
echo "check-manuals: ok, $n_examples examples, $(echo "$pages" | wc -l) pages"
