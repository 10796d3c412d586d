# SPDX-License-Identifier: Apache-2.0
# trade.sh: gnuplot -c trade.gp OUT FOLDER "1 2 4" MACHINE BYTES      FOLDER/1.dat: idle bytes, units/s, capacity
out = ARG1
folder = ARG2
processes = ARG3
machine = ARG4
bytes = ARG5

set title "What sheaves buy, and what they cost\n{/*0.75 bursts of 512 and random steps, ".bytes."-byte objects; a point is a sheaf capacity}\n{/*0.75 ".machine."}"
set xlabel "idle objects in sheaves and barns (KiB, log scale; none stands at one object)"
set ylabel "throughput of all processes (units/s, log scale)"

# Nothing idle has no place on a log scale: it stands at one object.
kib(idle) = (idle > bytes ? idle : bytes + 0) / 1024.0
file(i) = folder."/".word(processes, i).".dat"
x_min = y_min = 1e30
x_max = y_max = 0
min(a, b) = a < b ? a : b
max(a, b) = a > b ? a : b
do for [i=1:words(processes)] {
	stats file(i) using (kib($1)):2 nooutput
	x_min = min(x_min, STATS_min_x)
	x_max = max(x_max, STATS_max_x)
	y_min = min(y_min, STATS_min_y)
	y_max = max(y_max, STATS_max_y)
}
set xrange [x_min / 3 : x_max * 3]
set yrange [y_min / 3 : y_max * 3]
set logscale xy
set format x "%g"
set format y "10^{%L}"
set grid xtics ytics lt 1 lw 1 lc rgb "#d0d0d0"
set key outside right top title "processes"
set pointsize 1.2
color(i) = i == 1 ? 0x0072b2 : i == 2 ? 0xd55e00 : i == 3 ? 0x009e73 : 0xcc79a7
# Labels of each line on a side of their own; all lines begin at "none", whose labels stand left of it.
dx(i) = i == 1 ? 1.4 : i == 2 ? -2.0 : i == 3 ? 2.0 : 0
dy(i) = i == 1 ? -0.9 : i == 2 ? 0.3 : i == 3 ? -0.5 : 1.0
is(name, at) = name eq at
is_middle(name) = !is(name, "none") && !is(name, "default")

do for [kind in "svg png"] {
	if (kind eq "svg") {
		label_font = ",9"
		set terminal svg size 900,560 enhanced font "DejaVu Sans,12" background "#ffffff"
	} else {
		label_font = ",12"
		set terminal pngcairo size 1350,840 enhanced font "DejaVu Sans,18" background "#ffffff"
	}
	set output out.".".kind
	plot for [i=1:words(processes)] file(i) using (kib($1)):2 with linespoints lw 2 pt 5 + 2 * (i - 1) lc rgb color(i) title word(processes, i), \
		for [i=1:words(processes)] file(i) using (is_middle(strcol(3)) ? kib($1) : NaN):2:3 with labels offset dx(i), dy(i) \
			font label_font tc rgb color(i) notitle, \
		for [i=1:words(processes)] file(i) using (is(strcol(3), "none") ? kib($1) : NaN):2:3 with labels right offset -1, (i - 2) * 0.8 \
			font label_font tc rgb color(i) notitle, \
		for [i=1:words(processes)] file(i) using (is(strcol(3), "default") ? kib($1) : NaN):2:3 with labels offset 0, 1.2 \
			font label_font tc rgb color(i) notitle
	unset output
}
