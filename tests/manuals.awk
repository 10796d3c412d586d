# SPDX-License-Identifier: Apache-2.0
# What check-manuals.sh compares.  usage: awk -v what=WHAT -f tests/manuals.awk FILE...
#     declared    of the header: prototypes          promised    of the header: "function ERRNO"
#     members     of the header: "struct member"     synopsis    of pages: prototypes
#     names       of pages: "page name"              errors      of pages: "function ERRNO"
#     examples    writes each literal block of EXAMPLES to dir/PAGE.N.c
function flush_prototype(   p) {
	p = prototype
	gsub(/[ \t\n]+/, " ", p)
	sub(/^SLABC_API /, "", p)
	sub(/;.*/, "", p)
	if (what == "declared")
		print p
	match(p, /slabc_[a-z_]+\(/)
	f = substr(p, RSTART, RLENGTH - 1)
	prototype = ""
}
# Every E... in s is an errno that f promises; and what another call, named there, promises.
function promise(f, s,   e, other, i, n, each) {
	while (match(s, /(^|[^A-Z_])E[A-Z][A-Z]+/)) {
		e = substr(s, RSTART, RLENGTH)
		sub(/^[^E]/, "", e)
		s = substr(s, RSTART + RLENGTH)
		promised[f] = promised[f] " " e
		print f, e
	}
	if (match(comment, /errno as slabc_[a-z_]+/)) {
		other = substr(comment, RSTART + 9, RLENGTH - 9)
		n = split(promised[other], each, " ")
		for (i = 1; i <= n; i++)
			print f, each[i]
	}
}
function read_header() {
	if (/^$/)
		comment = ""
	if (/^struct slabc_[a-z_]+ \{/) {
		st = $2
		return
	}
	if (/^};/)
		st = ""
	if (st != "") {
		if (what == "members") {
			sub(/;.*/, "")
			n = split($0, part, ",")
			for (i = 1; i <= n; i++) {
				sub(/.*[ \t*]/, "", part[i])
				if (part[i] != "")
					print st, part[i]
			}
		}
		return
	}
	said = ""
	if (in_comment || /\/\*/) {
		said = $0
		if (!in_comment)
			sub(/.*\/\*/, "", said)
		in_comment = !/\*\//
	}
	comment = comment " " said
	if (prototype != "" || /^SLABC_API/) {
		prototype = prototype " " $0
		sub(/^ /, "", prototype)
		if (prototype ~ /;/) {
			flush_prototype()
			if (what == "promised")
				promise(f, comment)
		}
	}
}
# The words of a macro's line, quoted ones as one.
function words(s, w,   n) {
	n = 0
	while (match(s, /"[^"]*"|[^ "]+/)) {
		w[++n] = substr(s, RSTART, RLENGTH)
		gsub(/"/, "", w[n])
		s = substr(s, RSTART + RLENGTH)
	}
	return n
}
function read_synopsis(   n, i, w, args) {
	n = words($0, w)
	if (w[1] == ".Ft")
		type = w[2]
	if (w[1] != ".Fn")
		return
	for (i = 3; i <= n; i++)
		args = args (i > 3 ? ", " : "") w[i]
	called[++n_called] = w[2]
	if (what == "synopsis")
		print type (type ~ /\*$/ ? "" : " ") w[2] "(" args ")"
}
function read_example() {
	if (/^\.Bd -literal/) {
		n_examples++
		example = dir "/" page "." n_examples ".c"
		printf "" >example
	} else if (/^\.Ed/) {
		close(example)
		example = ""
	} else if (example != "") {
		if (/[`'^~]/)
			print page ": groff prints another character for one of `'^~: " $0
		gsub(/\\\(aq/, "'")
		gsub(/\\\(ha/, "^")
		gsub(/\\\(ti/, "~")
		gsub(/\\e/, "\\")
		print >example
	}
}
FNR == 1 {
	page = FILENAME
	sub(/.*\//, "", page)
	section = type = example = ""
	n_examples = n_called = 0
}
FILENAME ~ /\.h$/ { read_header(); next }
/^\.Sh / { section = substr($0, 5); next }
section == "NAME" && /^\.Nm / && what == "names" { print page, $2 }
section == "SYNOPSIS" { read_synopsis() }
section == "ERRORS" && /^\.It Bq Er / && what == "errors" { for (i = 1; i <= n_called; i++) print called[i], $4 }
section == "EXAMPLES" && what == "examples" { read_example() }
