# SPDX-License-Identifier: Apache-2.0
# Makes a C program that prints slab-layout(7): the template with, at the lines
#     @DRAWING file@       what is drawn in the first comment of a source
#     @STRUCT name@        a struct of the headers: what is said of it, and each member with offset, bytes and comment
#     @CONSTANTS prefix@   the constants whose names begin so, with values and comments
# Sizes, offsets and values are the compiler's, the words those of the headers, whose discipline it relies on: one member or constant a line.
# usage: awk -f shm/mdoc.awk shm/layout.h shm/word.h shm/sheaf.h shm/debug.h client/ref.c shm/slab-layout.7.in
function text(s) {
	gsub(/[ \t]+/, " ", s)
	sub(/^ /, "", s)
	sub(/ $/, "", s)
	if (s != "" && s !~ /[.:]$/)
		s = s "."
	gsub(/\. /, ".\n", s)
	return s == "" ? "" : s "\n"
}
# The inside of a comment's line.
function inside(s) {
	sub(/^.*\/\*/, "", s)
	sub(/^[ \t]*\*( |$)/, "", s)
	sub(/\*\/.*/, "", s)
	return s
}
# gsub() without its ideas of backslashes.
function replace(s, what, by,   n, i, part, out) {
	n = split(s, part, what)
	out = part[1]
	for (i = 2; i <= n; i++)
		out = out by part[i]
	return out
}
# As a C string.
function quoted(s) {
	return "\"" replace(replace(replace(s, "[\\\\]", "\\\\"), "\"", "\\\""), "\n", "\\n") "\""
}
function put(s) {
	return "\tfputs(" quoted(s) ", stdout);\n"
}
function member(line,   name) {
	said = line ~ /\/\*/ ? text(inside(line)) : ""
	sub(/;.*/, "", line)
	is_flexible = line ~ /\[\]/
	sub(/\[.*/, "", line)
	sub(/.*[ \t*]/, "", line)
	name = line
	structs[st] = structs[st] "\tprintf(\".It Va " name " Pq at %zu, " (is_flexible ? "the rest" : "%zu") "\\n\", offsetof(struct " st ", " name ")"
	structs[st] = structs[st] (is_flexible ? "" : ", sizeof(((struct " st " *)0)->" name ")") ");\n" put(pending said)
	pending = ""
}
function constant(name, line) {
	said = line ~ /\/\*/ ? text(inside(line)) : ""
	n_constants++
	constant_name[n_constants] = name
	constants[n_constants] = "\tprintf(\".It Dv " name " Pq " (name ~ /^WORD/ ? "0x%llx" : "%llu") "\\n\", (unsigned long long)" name ");\n" put(pending said)
	pending = ""
}
BEGIN {
	print "#include <stdio.h>\n#include \"shm/layout.h\"\n#include \"shm/sheaf.h\"\n#include \"shm/word.h\"\nint main(void)\n{"
}
FNR == 1 { n_comments = 0; pending = ""; in_comment = 0; st = "" }
FILENAME ~ /\.[ch]$/ {
	if (in_comment || /^[ \t]*\/\*/) {
		if (!in_comment) {
			n_comments++
			pending = paragraphs = ""
		}
		in_comment = !/\*\//
		if (n_comments == 2 && (inside($0) ~ /^  / || (drawn[FILENAME] != "" && inside($0) == "")))
			drawn[FILENAME] = drawn[FILENAME] inside($0) "\n" # the first is the licence
		if (inside($0) != "")
			paragraphs = paragraphs " " inside($0)
		else if (paragraphs != "")
			paragraphs = paragraphs " \001"
		if (!in_comment)
			pending = text(paragraphs)
	} else if (FILENAME ~ /\.c$/) {
		next
	} else if (/^struct [a-z_]+ \{/) {
		st = $2
		about[st] = pending
		pending = ""
	} else if (/^};/) {
		st = ""
	} else if (st != "" && /;/) {
		member($0)
	} else if (/^\tLAYOUT_[A-Z0-9_]+ = /) {
		constant($1, $0)
	} else if (/^#define (LAYOUT|SHEAF|WORD)_[A-Z_]+ /) {
		constant($2, $0)
	} else if (/^enum \{ SHEAF_/) {
		n = split($0, part, "[{,}]")
		for (i = 2; i < n; i++) {
			split(part[i], word, " ")
			constant(word[1], "")
		}
	} else if (!/^enum/) {
		pending = ""
	}
	next
}
/^@DRAWING / {
	sub(/@$/, "", $2)
	gsub(/\n\n\n+/, "\n\n", drawn[$2])
	sub(/\n+$/, "\n", drawn[$2])
	n_wrong += drawn[$2] == ""
	printf "%s", put(drawn[$2])
	next
}
/^@STRUCT / {
	sub(/@$/, "", $2)
	n_wrong += structs[$2] == ""
	is_told[$2] = 1
	said = about[$2]
	sub(/[ \n]*\001[.\n ]*$/, "\n", said)
	gsub(/[ \n]*\001[ \n]*/, "\n.Pp\n", said)
	printf "%s\tprintf(\"" (said == "" ? "" : ".Pp\\n") ".Vt \\\"struct %s\\\"\\nhas %%zu bytes.\\n\", sizeof(struct %s));\n%s", put(".Ss struct " $2 "\n" said), $2, $2, put(".Bl -tag -width Ds\n")
	printf "%s%s", structs[$2], put(".El\n")
	next
}
/^@CONSTANTS / {
	sub(/@$/, "", $2)
	printf "%s", put(".Bl -tag -width Ds\n")
	for (i = 1; i <= n_constants; i++) {
		if (index(constant_name[i], $2) == 1 && !is_constant_told[i]) {
			printf "%s", constants[i]
			is_constant_told[i] = 1
		}
	}
	printf "%s", put(".El\n")
	next
}
{ printf "%s", put($0 "\n") }
END {
	print "\treturn 0;\n}"
	for (st in structs)
		if (st != "sheaf_view" && st != "debug_shape" && # of no segment
			 !(st in is_told))
			n_wrong++
	for (i = 1; i <= n_constants; i++)
		n_wrong += !is_constant_told[i]
	if (n_wrong) {
		print "shm/mdoc.awk: slab-layout.7.in asks for what is not there, or leaves out a struct or constant" >"/dev/stderr"
		exit 1
	}
}
