# SPDX-License-Identifier: Apache-2.0
# Makes slab-protocol(7): the template with the ops and statuses of ops.def, their comments included, at the lines @OPS@ and @STATUSES@, and
# with the numbers of proto.h where it has @PROTO_NAME@.
# usage: awk -f proto/mdoc.awk proto/proto.h proto/ops.def proto/slab-protocol.7.in
function trim(s) {
	gsub(/[ \t\n]+/, " ", s)
	sub(/^ /, "", s)
	sub(/ $/, "", s)
	return s
}
# One sentence a line.
function text(s) {
	s = trim(s)
	if (s != "" && s !~ /[.:]$/)
		s = s "."
	gsub(/\. /, ".\n", s)
	return s == "" ? "" : s "\n"
}
# "U32(a) STR(b, 31)" as "a u32, b str 31".
function fields(s,   out, n, i, part, f) {
	n = split(s, part, ")")
	for (i = 1; i < n; i++) {
		split(trim(part[i]), f, /[(,] */)
		out = out (out == "" ? "" : ",\n") ".Va " f[2] " " (f[1] == "UPTO" ? "u32 to " f[3] : tolower(f[1]) (f[1] == "STR" ? " " f[3] : ""))
	}
	return out == "" ? "none\n" : out "\n"
}
# The fields of request or reply, whichever the n-th list is: lists are parted by a comma outside of parentheses.
function list(s, want,   i, c, depth, n, from) {
	n = 1
	from = 1
	for (i = 1; i <= length(s); i++) {
		c = substr(s, i, 1)
		depth += (c == "(") - (c == ")")
		if (c == "," && depth == 0) {
			if (n++ == want)
				return substr(s, from, i - from)
			from = i + 1
		}
	}
	return n == want ? substr(s, from) : ""
}
function op_end(   name, number) {
	sub(/^OP\(/, "", op)
	sub(/\)[ \t\n]*$/, "", op)
	number = trim(list(op, 1))
	name = trim(list(op, 2))
	ops = ops ".It Dv " name " Pq " number "\n" text(comment)
	ops = ops ".Bl -tag -width \"request\" -compact\n.It request\n" fields(list(op, 4)) ".It reply\n" fields(list(op, 5)) ".El\n"
	n_ops++
	op = comment = ""
}
FILENAME ~ /\.h$/ {
	if (/^\tPROTO_[A-Z_]+ = /)
		number[$1] = $3 + 0
	next
}
FILENAME ~ /\.def$/ {
	if (op != "" || /^OP\(/) {
		op = op $0 "\n"
		rest = op
		if (gsub(/\(/, "", rest) == gsub(/\)/, "", rest))
			op_end()
	} else if (/^STATUS\(/) {
		split($0, f, /[(,)] */)
		said = $0
		if (!sub(/.*\/\* /, "", said))
			said = ""
		sub(/ \*\/.*/, "", said)
		statuses = statuses ".It Dv " f[3] " Pq " f[2] "\n" (f[4] == "0" ? "Done" : ".Er " f[4]) (said == "" ? "" : ":\n" said) "\n"
		n_statuses++
	} else if (in_comment || /^\/\*/) {
		in_comment = !/\*\//
		said = $0
		sub(/^ ?\/?\*+\/?/, "", said)
		sub(/\*\/.*/, "", said)
		comment = comment " " said
	} else {
		comment = ""
	}
	next
}
/^@OPS@$/ { printf "%s", ops; next }
/^@STATUSES@$/ { printf "%s", statuses; next }
{
	while (match($0, /@PROTO_[A-Z_]+@/)) {
		name = substr($0, RSTART + 1, RLENGTH - 2)
		if (!(name in number))
			exit 1
		$0 = substr($0, 1, RSTART - 1) number[name] substr($0, RSTART + RLENGTH)
	}
	print
}
END {
	if (n_ops == 0 || n_statuses == 0 || (name != "" && !(name in number))) {
		print "proto/mdoc.awk: no ops, no statuses, or no number " name >"/dev/stderr"
		exit 1
	}
}
