# SPDX-License-Identifier: Apache-2.0
# trade.sh: gnuplot -c trade.gp OUT FOLDER "1 2 4" MACHINE      FOLDER/1.dat: idle bytes, units/s, capacity
out = ARG1
folder = ARG2
processes = ARG3
machine = ARG4

set title "What sheaves buy, and what they cost\n{/*0.75 bursts of 512 and random steps of 256-byte objects, by sheaf capacity}\n{/*0.75 ".machine."}"
set xlabel "idle objects in sheaves and barns (KiB, log scale)"
set ylabel "throughput of all processes (units/s, log scale)"
set logscale xy
set format x "%g"
set format y "10^{%L}"
set grid xtics ytics mytics lc rgb "#cccccc", lc rgb "#eeeeee"
set key outside right top title "processes"
set offsets graph 0.06, graph 0.06, graph 0.08, graph 0.04
set pointsize 1.2
color(i) = i == 1 ? 0x0072b2 : i == 2 ? 0xd55e00 : i == 3 ? 0x009e73 : 0xcc79a7
# Nothing idle has no place on a log scale: it stands at one object.
kib(bytes) = (bytes > 256 ? bytes : 256) / 1024.0
file(i) = folder."/".word(processes, i).".dat"

do for [kind in "svg png"] {
	if (kind eq "svg") {
		set terminal svg size 900,560 enhanced font "DejaVu Sans,12" background "#ffffff"
	} else {
		set terminal pngcairo size 1350,840 enhanced font "DejaVu Sans,18" background "#ffffff"
	}
	set output out.".".kind
	plot for [i=1:words(processes)] file(i) using (kib($1)):2 with linespoints lw 2 pt 5 + 2 * (i - 1) lc rgb color(i) title word(processes, i), \
		for [i=1:words(processes)] file(i) using (kib($1)):2:3 with labels offset 0, 0.9 font ",10" tc rgb color(i) notitle
	unset output
}
