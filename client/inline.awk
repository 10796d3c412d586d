# SPDX-License-Identifier: Apache-2.0
# Makes slabclient-inline.h of slabclient-inline.h.in: in place of @SOURCE@ what is needed of shm/, without steps and mutants, each name with
# slabc_inline_ or SLABC_INLINE_ before it; in place of @HASH@ the layout hash.  usage: awk -v hash=HEX -f client/inline.awk client/slabclient-inline.h.in
# It relies on the house style: a block ends with a brace as far in as its beginning.

function fail(what) {
	print "inline.awk: " what >"/dev/stderr"
	exit 1
}

# Each name of shm/'s own that is not behind a dot or an arrow, and is no part of another.
function renamed(line,    out, name, before, last) {
	while (match(line, /[A-Za-z_][A-Za-z_0-9]*/)) {
		name = substr(line, RSTART, RLENGTH)
		before = substr(line, 1, RSTART - 1)
		line = substr(line, RSTART + RLENGTH)
		if (before !~ /(->|\.)$/) {
			if (name ~ /^(sheaf|atomic|layout|word)(_|$)/ && (name ~ /_/ || last == "struct"))
				name = "slabc_inline_" name
			else if (name ~ /^(SHEAF|LAYOUT|WORD)_/)
				name = "SLABC_INLINE_" name
		}
		out = out before name
		last = name
	}
	return out line
}

# The rest of a block that has begun, line by line, thrown away.
function skip_block(file, start,    line, indent) {
	match(start, /^\t*/)
	indent = substr(start, 1, RLENGTH)
	while ((getline line <file) > 0)
		if (line == indent "}")
			return
	fail(file ": no end of: " start)
}

# All between the include guard and its end.
function take(file,    line, is_on, n, lines, i) {
	while ((getline line <file) > 0) {
		if (line ~ /^#define SLAB_SHM_/) {
			is_on = 1
			continue
		}
		if (!is_on || line ~ /^#include/ || line ~ /^\t*STEP\(/)
			continue
		# Who asks for it gets it, whatever the compiler thinks of its size.
		sub(/^static inline /, "__attribute__((always_inline)) &", line)
		# C++ has no such members.
		sub(/^\tuint32_t entry\[\];/, "\t/* (They follow.) */", line)
		if (line ~ /^\t*if \(MUTANT\(.*\{$/) {
			skip_block(file, line)
			continue
		}
		# One statement: with the mutant, or without.
		if (line ~ /^\t*if \(MUTANT\([A-Z_]*\)\)$/ && (getline line <file) > 0)
			continue
		if (line ~ /^\t*if \(!MUTANT\([A-Z_]*\)\)$/ && (getline line <file) > 0)
			sub(/^\t/, "", line)
		sub(/ && !MUTANT\([A-Z_]*\)/, "", line)
		if (line ~ /MUTANT|STEP\(/)
			fail(file ": a mutant that is no block: " line)
		lines[++n] = line
	}
	close(file)
	if (lines[n] != "#endif")
		fail(file ": does not end with its guard")
	for (i = 1; i < n; i++)
		if (lines[i] != "" || lines[i - 1] != "")
			print renamed(lines[i])
}

# The line with this in it, alone.
function take_line(file, what,    line, n) {
	while ((getline line <file) > 0)
		if (index(line, what)) {
			print renamed(line)
			n++
		}
	close(file)
	if (n != 1)
		fail(file ": " n + 0 " lines with: " what)
}

function take_struct(file, name,    line, n) {
	while ((getline line <file) > 0) {
		if (line == "struct " name " {")
			n = 1
		if (n == 1)
			print renamed(line)
		if (n == 1 && line == "};")
			n = 2
	}
	close(file)
	if (n != 2)
		fail(file ": no struct " name)
}

BEGIN {
	if (hash !~ /^[0-9a-f]+$/)
		fail("hash is '" hash "'")
}

$0 == "@SOURCE@" {
	take("shm/atomic.h")
	print "\nenum {"
	take_line("shm/layout.h", "\tLAYOUT_PAGE_SHIFT = ")
	take_line("shm/layout.h", "\tLAYOUT_PAGE_BYTES = ")
	take_line("shm/layout.h", "\tLAYOUT_PLACE_SHIFT = ")
	take_line("shm/layout.h", "\tLAYOUT_SHEAF_BUSY = ")
	take_line("shm/layout.h", "\tLAYOUT_SHEAF_WORDLESS = ")
	take_line("shm/layout.h", "\tLAYOUT_SHEAF_UNSETTLED = ")
	take_line("shm/layout.h", "\tLAYOUT_SHEAF_NODED = ")
	take_line("shm/layout.h", "\tLAYOUT_SHEAF_DEBUG = ")
	print "};\n"
	take_struct("shm/layout.h", "layout_page")
	print ""
	take("shm/word.h")
	take("shm/sheaf.h")
	next
}

{
	gsub(/@HASH@/, hash)
	print
}
