# SPDX-License-Identifier: Apache-2.0
# peers.sh: tables out of the CSV of all runs (bench --columns), and peers-median.csv. Variables: peers, patterns, processes, out (a folder).
# A ratio is the median of the ratios of each round, in which both ran in turn.
function median_of(prefix, n,    i, j, v, a) {
	for (i = 1; i <= n; i++) {
		v = value[prefix, i]
		for (j = i - 1; j >= 1 && a[j] > v; j--)
			a[j + 1] = a[j]
		a[j + 1] = v
	}
	return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
}
function median(key) {
	return count[key] ? median_of(key, count[key]) : 0
}
function add(key, v) {
	value[key, ++count[key]] = v
}
# Of one peer's column and another's; 0: there are none.
function ratio(a, b, column,    i, n, key) {
	key = "ratio" a b column
	n = count[a column] < count[b column] ? count[a column] : count[b column]
	for (i = 1; i <= n; i++)
		value[key, i] = value[a column, i] / value[b column, i]
	return n ? median_of(key, n) : 0
}
function text(key) {
	return key in unfinished ? "did not finish" : count[key ",ns"] ? sprintf("%.1f", median(key ",ns")) : "-"
}
# A line of the targets, if both are here.
function target(what, got, is_met, required) {
	if (got > 0)
		printf "%-74s %8.2f   %-12s %s\n", what, got, required, is_met ? "met" : "MISSED"
}
function at_most(what, got, bound) {
	target(what, got, got <= bound, "<= " bound)
}
function at_least(what, got, bound) {
	target(what, got, got >= bound, ">= " bound)
}

NR > 1 && $4 == "" { unfinished[$1 "," $2 "," $3] = 1 }
NR > 1 && $4 != "" {
	key = $1 "," $2 "," $3
	add(key ",ns", $4)
	add(key ",units", $5)
	add(key ",trips", $6)
	add(key ",idle", $7)
	add(key ",slow", $8)
	add(key ",taken", $9)
}

END {
	n_peers = split(peers, peer, " ")
	n_patterns = split(patterns, pattern, " ")
	n_processes = split(processes, process, " ")
	medians = out "/peers-median.csv"
	print "peer,pattern,processes,ns_per_unit,units_per_s,round_trips_per_unit,bytes_idle,slow_calls_per_unit,taken_per_live" >medians

	for (j = 1; j <= n_patterns; j++) {
		printf "%-18s", pattern[j]
		for (k = 1; k <= n_processes; k++)
			printf "%16s", process[k] (process[k] == 1 ? " process" : " processes")
		print ""
		for (i = 1; i <= n_peers; i++) {
			printf "  %-16s", peer[i]
			for (k = 1; k <= n_processes; k++) {
				key = peer[i] "," pattern[j] "," process[k]
				printf "%16s", text(key)
				if (count[key ",ns"])
					printf "%s,%.2f,%.0f,%.9f,%.0f,%.9f,%.4f\n", key, median(key ",ns"), median(key ",units"), median(key ",trips"),
						median(key ",idle"), median(key ",slow"), median(peer[i] ",live,1,taken") >medians
			}
			print ""
		}
		print ""
	}

	printf "%-18s%16s\n", "65,536 live", "taken / live"
	for (i = 1; i <= n_peers; i++)
		printf "  %-16s%16.3f\n", peer[i], median(peer[i] ",live,1,taken")
	print ""

	printf "%-18s%-10s%10s%18s%18s%14s\n", "slabd", "", "processes", "slow calls/unit", "messages/1e6", "idle bytes"
	for (i = 1; i <= n_peers; i++)
		for (j = 1; j <= n_patterns; j++)
			for (k = 1; k <= n_processes; k++) {
				key = peer[i] "," pattern[j] "," process[k]
				# Only the inlined ones can see which calls are slow; those by the library are the same.
				if (peer[i] ~ /-inline$/ && count[key ",ns"])
					printf "  %-16s%-10s%10d%18.6f%18.3f%14d\n", peer[i], pattern[j], process[k], median(key ",slow"),
						median(key ",trips") * 1e6, median(key ",idle")
			}
	print ""

	print "What is aimed at (ratios of ns a unit, but where said):"
	at_most("pair, 1 process: slabd to dpdk", ratio("slabd", "dpdk", ",pair,1,ns"), 1)
	at_most("pair, 1 process: slabd-inline to dpdk", ratio("slabd-inline", "dpdk", ",pair,1,ns"), 1)
	at_most("pair, 1 process: noowner to tcmalloc", ratio("noowner", "tcmalloc", ",pair,1,ns"), 1)
	at_least("batch1k, 2 processes: units of slabd to dpdk's", ratio("slabd", "dpdk", ",batch1k,2,units"), 1.3)
	at_least("batch64k, 2 processes: units of slabd to dpdk's", ratio("slabd", "dpdk", ",batch64k,2,units"), 1.3)
	at_most("random4k, 1 process: slabd to dpdk", ratio("slabd", "dpdk", ",random4k,1,ns"), 1.2)
	at_most("random4k, 1 process: slabd-inline to dpdk", ratio("slabd-inline", "dpdk", ",random4k,1,ns"), 1)
	at_most("pipe: slabd to dpdk", ratio("slabd", "dpdk", ",pipe,2,ns"), 1.3)
	at_least("pipe: boost-node to slabd", ratio("boost-node", "slabd", ",pipe,2,ns"), 4)
	for (j = 1; j <= n_patterns; j++)
		if (median("slabd," pattern[j] ",2,units") > 0)
			at_least(pattern[j] ": units of 4 processes to those of 2, slabd", median("slabd," pattern[j] ",4,units") / median("slabd," pattern[j] ",2,units"), 0.9)
	at_most("65,536 live: bytes taken to bytes live", median("slabd,live,1,taken"), 1.07)
}
