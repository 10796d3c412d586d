# SPDX-License-Identifier: Apache-2.0
# peers.sh: gnuplot -c peers.gp OUT MEDIANS.csv "slabd dpdk ..." "pair ..." "1 2 4" MACHINE
#   peers-scale   units per second of all processes, by their number, a plot a pattern
#   peers-ns      ns a unit by pattern, with 2 processes
#   peers-idle    units per second of batch64k, 2 processes, against what 65,536 live objects take beyond themselves
out = ARG1
csv = ARG2
peers = ARG3
patterns = ARG4
processes = ARG5
machine = ARG6

set datafile separator ","
set datafile missing "NaN"
set grid xtics ytics lt 1 lw 1 lc rgb "#d0d0d0"
live_bytes = 65536 * 256.0
n_peers = words(peers)
is(a, b) = a eq b
# Ours in blues, those that share in warm colours, private heaps in greys.
color(p) = is(p, "slabd") ? 0x0072b2 : is(p, "slabd-inline") ? 0x56b4e9 : is(p, "noowner") ? 0x004060 : is(p, "noowner-inline") ? 0x009e73 : \
	is(p, "dpdk") ? 0xd55e00 : is(p, "boost-node") ? 0xe69f00 : is(p, "boost-msm") ? 0xcc79a7 : is(p, "tcmalloc") ? 0x404040 : \
	is(p, "jemalloc") ? 0x707070 : is(p, "mimalloc") ? 0x999999 : 0xbbbbbb
units(p, pattern) = is(strcol(1), p) && is(strcol(2), pattern) ? $5 : NaN
rows(p, pattern, n) = sprintf("< awk -F, '$1 == \"%s\" && $2 == \"%s\" && (%d == 0 || $3 == %d)' '%s'; echo ,,NaN,NaN,NaN,,,,NaN", p, pattern, n, n, csv)

# Of a part of the patterns and numbers only what is there.
has_two = 0
do for [i=1:words(processes)] {
	if (word(processes, i) eq "2") {
		has_two = 1
	}
}
# "pipe" has one number of processes only.
scaled = ""
do for [i=1:words(patterns)] {
	if (word(patterns, i) ne "pipe") {
		scaled = scaled." ".word(patterns, i)
	}
}

do for [kind in "svg png"] {
	if (kind eq "svg") {
		set terminal svg size 1100,760 enhanced font "DejaVu Sans,11" background "#ffffff"
	} else {
		set terminal pngcairo size 1650,1140 enhanced font "DejaVu Sans,16" background "#ffffff"
	}

	set output out."/peers-scale.".kind
	set multiplot layout 2,2 title "Units per second of all processes together, medians\n{/*0.75 ".machine."}"
	set logscale xy
	set xtics (1, 2, 4, 8, 16)
	set format y "10^{%L}"
	set xlabel "processes"
	set key outside right top samplen 1.5
	do for [i=1:words(scaled)] {
		pattern = word(scaled, i)
		set title pattern
		plot [0.9:word(processes, words(processes)) * 1.1] for [j=1:n_peers] rows(word(peers, j), pattern, 0) using 3:5 with linespoints lw 2 pt 7 ps 0.6 \
			lc rgb color(word(peers, j)) title word(peers, j)
	}
	unset multiplot
	unset output

	if (has_two) {
		set output out."/peers-ns.".kind
		unset logscale x
		set logscale y
		set format y "%g"
		set xtics auto
		set title "ns a unit and worker, 2 processes, medians (less is better, log scale)\n{/*0.75 ".machine."}"
		unset xlabel
		set ylabel "ns"
		set style fill solid 0.9
		set xtics ()
		do for [i=1:words(patterns)] {
			set xtics add (word(patterns, i) i)
		}
		width = 0.85 / n_peers
		set boxwidth width
		plot [0.5:words(patterns) + 0.5] for [j=1:n_peers] for [i=1:words(patterns)] rows(word(peers, j), word(patterns, i), 2) \
			using (i + (j - (n_peers + 1) / 2.0) * width):4 with boxes lc rgb color(word(peers, j)) title (i == 1 ? word(peers, j) : "")
		unset output
	}

	if (has_two && strstrt(patterns, "batch64k")) {
		set output out."/peers-idle.".kind
		set title "Speed against memory that is idle or administration\n{/*0.75 batch64k, 2 processes; memory: 65,536 live objects of 256 bytes, one process; ".machine."}"
		set xlabel "taken beyond the live objects (KiB, log scale)"
		set ylabel "units/s of both processes (log scale)"
		set logscale xy
		set xtics auto
		set format x "%g"
		set format y "10^{%L}"
		set key off
		set offsets 0, 0, 0, 0
		plot for [j=1:n_peers] rows(word(peers, j), "batch64k", 2) using ($9 > 1 ? ($9 - 1) * live_bytes / 1024 : 1):5:1 with labels point pt 7 ps 1.2 \
			lc rgb color(word(peers, j)) offset 0, 0.9 tc rgb color(word(peers, j)) notitle
		unset output
	}
	unset ylabel
	unset xlabel
	unset logscale
}
