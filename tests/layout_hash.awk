# SPDX-License-Identifier: Apache-2.0
# Reads shm/layout.h (and others given); writes a C program that prints the layout hash: FNV-1a over every struct's name and size, every field's
# name, offset and size, and every LAYOUT_ and WORD_ constant's value. It relies on the layout's discipline: one field or constant a line.
# With -v name=ledger_hash the same of slabd's ledger (server/ledger.h, server/slab.h).
BEGIN {
	if (name == "")
		name = "layout_hash"
	header = name == "layout_hash" ? "shm/layout.h" : "server/ledger.h"
	print "#include <stdio.h>\n#include \"shm/layout.h\"\n#include \"shm/sheaf.h\"\n#include \"shm/word.h\"\n#include \"" header "\""
	if (name != "layout_hash")
		print "#include \"server/slab.h\""
	print "static unsigned long long h = 0xcbf29ce484222325ull;"
	print "static void add(const char *s, unsigned long long a, unsigned long long b)\n{\n\tchar buf[256];\n\tint n = snprintf(buf, sizeof buf, \"%s:%llu:%llu;\", s, a, b);"
	print "\tfor (int i = 0; i < n; i++)\n\t\th = (h ^ (unsigned char)buf[i]) * 0x100000001b3ull;\n}"
	print "int main(void)\n{"
}
/^struct [a-z_]+ \{/ { st = $2; printf "\tadd(\"%s\", sizeof(struct %s), 0);\n", st, st; next }
/^\};/ { st = ""; next }
/^\t+\};/ { next }
st != "" && /;/ && !/^\t(\/\*| \*)/ {
	line = $0
	sub(/\/\*.*/, "", line); sub(/;.*/, "", line)
	flexible = line ~ /\[\]/
	sub(/\[.*/, "", line)
	n = split(line, w, /[ \t*]+/)
	f = w[n]
	printf "\tadd(\"%s.%s\", offsetof(struct %s, %s), %s);\n", st, f, st, f, flexible ? "0" : "sizeof(((struct " st " *)0)->" f ")"
	next
}
/^\t(LAYOUT)_[A-Z0-9_]+ = / { printf "\tadd(\"%s\", (unsigned long long)(%s), 0);\n", $1, $1; next }
/^#define WORD_[A-Z_]+ / { printf "\tadd(\"%s\", (unsigned long long)(%s), 0);\n", $2, $2; next }
END {
	printf "\tprintf(\"/* made by tests/layout_hash.awk */\\n#include \\\"%s\\\"\\nconst uint64_t %s = 0x%%016llxull;\\n\", h);\n\treturn 0;\n}\n", header, name
}
