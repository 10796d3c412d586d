/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file: what it accepts, what it says of what it does not, and what a reload changes. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness.h"

CU_pSuite it_config_suite(void);

enum { OUT_BYTES = 4096 };

/* Slabd's exit status with this file and --check-config, and perhaps another argument. */
static int
check_config(const struct harness *h, const char *text, const char *also, char *out)
{
	char slabd[256], config[160], other[160];
	char *argv[] = {slabd, config, strdup("--check-config"), also ? other : NULL, NULL};
	int r;

	harness_write_config(h, text);
	snprintf(slabd, sizeof slabd, "%s", harness_path("SLABD"));
	snprintf(config, sizeof config, "--config=%s", harness_config(h));
	snprintf(other, sizeof other, "%s", also ? also : "");
	r = harness_run(argv, NULL, out, OUT_BYTES);
	free(argv[2]);
	return r;
}

/* Everything that may stand in a file: comments, blanks, indentation, sections without keys, all keys. */
static void
it_accepts_what_it_should(void)
{
	static const char *const texts[] = {
		"",
		"# nothing but a comment\n; and another\n\n",
		"\xef\xbb\xbf[slabd]\nthreads = 1\n",
		"[slabd]\n  threads = 2\n\tsocket = /tmp/s\n\n\n[arena]\n",
		"[slabd]\nsocket-mode = 0666\nsocket-group = 0\nlog = error\nidle-after = 86400\n[arena]\nsize=2M\n",
		"[slabd]\nidle-after = 0\n",
		"[arena a]\n[arena b]\n[arena c.d-e_F9]\n",
		"[arena] ; the default one\nsize = 64M ; small\r\nreserve = 0\n",
		"[arena video]\nowner = root\ngroup = root\nmode = 0640\nsize = 1G\nreserve = 2M\npage-kind = huge , 4k\nprofile = server\n"
		"max-sessions = 16382\nmax-caches = 511\n",
		"[arena x]\nowner = 4294967294\ngroup = 12345\nmode = 660\npage-kind = 1g,huge,thp,4k\nmax-sessions = 0\nmax-caches = 0\n"
		"client-max = 32G\nclient-min = 0\nmax-orphans = 32G\nuser-max = 32G\nnode-policy = preferred\n",
		"[arena x]\nmode = 000\npage-kind = auto\n",
		"[arena a234567890123456789012345678901234567890]\n",
	};
	CLEANUP(harness_free) struct harness *h = harness_new();
	char out[OUT_BYTES], ok[128];

	for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		bool is_ok = CHECK(check_config(h, texts[i], NULL, out) == 0);

		snprintf(ok, sizeof ok, "%s: ok\n", harness_config(h));
		if (!CHECK(strcmp(out, ok) == 0) || !is_ok)
			fprintf(stderr, "    text %u: %s", i, out);
	}
	/* Nothing was set up. */
	CHECK(access("/tmp/s", F_OK) < 0);
}

/* Each error has file, line, field, and what is allowed; the first one is told, and --check-config exits with 1. */
static void
it_names_what_is_wrong(void)
{
	static const struct {
		const char *text;
		int line;
		const char *words[3];
	} cases[] = {
		{"[arena]\nsize = 64M\nsize = 64M\n", 3, {"size", "twice", "[arena]"}},
		{"[slabd]\nthreads = 1\n[arena]\n\n[slabd]\nlog = info\n", 5, {"[slabd]", "twice", ""}},
		{"[arena]\n[arena default]\n", 2, {"'default'", "twice", "line 1"}},
		{"[arena a]\nsize = 4M\n[arena b]\n[arena a]\nmode = 0600\n", 4, {"'a'", "twice", "line 1"}},
		{"[arena a]\n[arena a]\n", 2, {"'a'", "twice", "line 1"}},
		{"threads = 1\n", 1, {"'threads'", "no section", "[slabd]"}},
		{"[arenas]\n", 1, {"unknown section [arenas]", "[slabd]", "[arena NAME]"}},
		{"[other]\nsize = 1G\n", 1, {"unknown section [other]", "[slabd]", "[arena NAME]"}},
		{"[arena ]\n", 1, {"[arena ]", "1 to 40", "letters"}},
		{"[arena a b]\n", 1, {"[arena a b]", "1 to 40", "letters"}},
		{"[arena a2345678901234567890123456789012345678901]\n", 1, {"1 to 40", "", ""}},
		{"[arena aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]\n", 1, {"at most 49", "70", ""}},
		{"[slabd]\nmode = 0660\n", 2, {"unknown key 'mode' in [slabd]", "socket-mode", "max-caches"}},
		{"[arena]\nthreads = 1\n", 2, {"unknown key 'threads' in [arena]", "socket", "reserve"}},
		{"[arena x]\nmode = 0661\n", 2, {"mode = '0661'", "octal", "read-only"}},
		{"[arena x]\nmode = 0620\n", 2, {"mode = '0620'", "octal", "4 (read-only)"}},
		{"[arena x]\nmode = 0777\n", 2, {"mode = '0777'", "octal", "6 (read-write)"}},
		{"[arena x]\nmode = 8\n", 2, {"mode = '8'", "octal", ""}},
		{"[arena x]\nmode = 02660\n", 2, {"mode = '02660'", "octal", ""}},
		{"[slabd]\nsocket-mode = 1777\n", 2, {"socket-mode = '1777'", "octal", "0777"}},
		{"[slabd]\nsocket-mode = 0000\n", 2, {"socket-mode = '0000'", "octal", "0001"}},
		{"[slabd]\nlog = debug\n", 2, {"log = 'debug'", "error, warning, notice or info", ""}},
		{"[slabd]\nidle-after = 86401\n", 2, {"idle-after = '86401'", "0 (never) to 86400 seconds", ""}},
		{"[arena x]\nowner = nobody-of-that-name\n", 2, {"owner = 'nobody-of-that-name'", "user that there is", ""}},
		{"[arena x]\nowner = 4294967295\n", 2, {"owner = '4294967295'", "user that there is", ""}},
		{"[arena x]\ngroup = no-such-group\n", 2, {"group = 'no-such-group'", "group that there is", ""}},
		{"[slabd]\nsocket-group = no-such-group\n", 2, {"socket-group = 'no-such-group'", "group that there is", ""}},
		{"[arena x]\npage-kind = 4k,huge\n", 2, {"page-kind = '4k,huge'", "from the largest down", "1g,huge,thp,4k"}},
		{"[arena x]\npage-kind = huge,huge\n", 2, {"page-kind = 'huge,huge'", "from the largest down", ""}},
		{"[arena x]\npage-kind = huge,\n", 2, {"page-kind = 'huge,'", "from the largest down", ""}},
		{"[arena x]\npage-kind = auto,4k\n", 2, {"page-kind = 'auto,4k'", "from the largest down", ""}},
		{"[arena x]\nprofile = fast\n", 2, {"profile = 'fast'", "default, kernel, tiny or server", ""}},
		{"[arena x]\nmax-sessions = 16383\n", 2, {"max-sessions = '16383'", "16382", ""}},
		{"[arena x]\nmax-caches = 512\n", 2, {"max-caches = '512'", "511", ""}},
		{"[arena x]\nnode-policy = bind\n", 2, {"node-policy = 'bind'", "preferred or strict", ""}},
		{"[arena x]\nuser-max = 33G\n", 2, {"user-max = '33G'", "0 (no limit) to 32G", ""}},
		{"[arena x]\nmax-faults = 1000000001\n", 2, {"max-faults = '1000000001'", "0 (no limit) to 1000000000", ""}},
		{"[arena x]\nmax-orphans = -1\n", 2, {"max-orphans = '-1'", "0 (no limit) to 32G", ""}},
		{"[arena x]\nclient-max = 33G\n", 2, {"client-max = '33G'", "0 (no limit) to 32G", ""}},
		{"[arena x]\nclient-min = 33G\n", 2, {"client-min = '33G'", "0 to 32G", ""}},
		{"[arena x]\nclient-max = 1M\nclient-min = 2M\n", 1, {"[arena x]", "client-min 2097152 is above client-max", ""}},
		{"[arena x]\nsize = 4M\nclient-min = 8M\n", 2, {"[arena x]", "client-min 8388608 is above the arena's size", ""}},
		{"[arena x]\nsize = 4M\nreserve = 6M\n", 3, {"[arena x]", "reserve 6291456", "arena-size 4194304"}},
		{"[arena y]\n[arena x]\nsize = 32G\npage-kind = huge,4k\n", 3, {"[arena x]", "arena-size 34359738368", "32 GiB"}},
		{"[arena x]\nsize\n", 2, {"neither", "[section]", "key = value"}},
		{"[arena x\nsize = 4M\n", 1, {"neither", "[section]", ""}},
		{"[arena x]\n!\nprofile = wrong\n", 2, {"neither", "", ""}},
		{"[arena x]\nprofile = wrong\n!\n", 2, {"profile", "", ""}},
		{"[arena x]\nprofile = wrong\n[arenas]\n", 2, {"profile", "", ""}},
	};
	CLEANUP(harness_free) struct harness *h = harness_new();
	char out[OUT_BYTES], place[160], text[1024];

	for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		bool ok = CHECK(check_config(h, cases[i].text, NULL, out) == 1);

		snprintf(place, sizeof place, "%s:%d: ", harness_config(h), cases[i].line);
		ok = CHECK(strstr(out, place) != NULL) && ok;
		for (unsigned j = 0; j < 3; j++)
			ok = CHECK(strstr(out, cases[i].words[j]) != NULL) && ok;
		if (!ok)
			fprintf(stderr, "    case %u, %s: %s", i, cases[i].text, out);
	}
	/* A line that libinih would cut. */
	memset(text, 'x', sizeof text);
	memcpy(text, "[slabd]\nsocket = /", 18);
	strcpy(text + 300, "\n");
	CHECK(check_config(h, text, NULL, out) == 1);
	snprintf(place, sizeof place, "%s:2: a line has at most", harness_config(h));
	CHECK(strstr(out, place) != NULL);
	/* The command line over a file that lacks what it is about. */
	CHECK(check_config(h, "[arena a]\n", "--arena-size=4M", out) == 1);
	CHECK(strstr(out, "--arena-size") != NULL && strstr(out, "add [arena]") != NULL);
	CHECK(check_config(h, "[arena]\nsize = 4M\nreserve = 6M\n", "--arena-size=8M", out) == 0);
	CHECK(check_config(h, "[arena]\n", "--config=/dev/null", out) == 1 && strstr(out, "--config is there twice") != NULL);
}

static struct proto_arenas_reply
arena(struct harness *h, const char *name)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	do {
		CHECK(harness_ask(h, PROTO_OP_ARENAS, &request, &reply) == PROTO_STATUS_OK);
		request.arenas.after = reply.arenas.arena;
	} while (reply.arenas.arena && strcmp(reply.arenas.name, name) != 0);
	return reply.arenas;
}

/* What the file says is so. */
static void
it_settings_take_effect(void)
{
	if (geteuid() != 0) {
		skip("only root may give the socket to any group");
		return;
	}
	CLEANUP(harness_free)
	struct harness *h = harness_slabd_config("[slabd]\nthreads = 3\nsocket-mode = 0622\nsocket-group = 54321\nlog = warning\n"
						 "[arena one]\nowner = 1001\ngroup = 2001\nmode = 0640\nsize = 8M\nreserve = 2M\npage-kind "
						 "= 4k\nprofile = tiny\nmax-sessions = 5\n"
						 "max-caches = 6\n[arena two]\nsize = 16M\npage-kind = thp,4k\nprofile = server\n");
	struct proto_arenas_reply one = arena(h, "one"), two = arena(h, "two");
	struct stat st;

	CHECK(stat(h->socket, &st) == 0 && (st.st_mode & 07777) == 0622 && st.st_gid == 54321);
	CHECK(one.arena == 1 && two.arena == 2 && arena(h, "default").arena == 0);
	CHECK(one.uid == 1001 && one.gid == 2001 && one.mode == 0640);
	CHECK(strcmp(one.owner, "1001") == 0 && strcmp(one.group, "2001") == 0);
	CHECK(one.limit_bytes == 8 << 20 && one.reserve_bytes == 2 << 20 && one.committed_bytes == 2 << 20);
	CHECK(strcmp(one.page_kind, "4k") == 0 && strcmp(one.profile, "tiny") == 0);
	CHECK(one.max_faults == 1000);
	CHECK(one.max_sessions == 5 && one.max_caches == 6);
	CHECK(two.uid == geteuid() && two.gid == getegid() && two.mode == 0660 && two.max_sessions == 0 && two.max_caches == 0);
	CHECK(strcmp(two.page_kind, "thp,4k") == 0 && strcmp(two.profile, "server") == 0);
	CHECK(harness_log_count(h, "serving arena") == 0); /* log = warning */
}

/* SIGHUP: modes, owners, limits and the log's level at once; the rest is named; sessions go on; a file with an error changes nothing. */
static void
it_reload(void)
{
	CLEANUP(harness_free)
	struct harness *h = harness_slabd_config("[slabd]\nthreads = 1\n[arena]\nsize = 8M\npage-kind = 4k\n[arena old]\nsize = 4M\n");
	struct slabc *c = harness_open(h, "stays");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *k2;
	void *p = slabc_alloc(k);

	harness_reload(h, "[slabd]\nthreads = 2\nsocket = /elsewhere\nsocket-mode = 0600\n"
			  "[arena]\nsize = 16M\nreserve = 2M\npage-kind = auto\nprofile = tiny\nowner = 7\ngroup = 8\nmode = "
			  "0604\nmax-sessions = 9\nmax-caches = 1\nclient-max = 3M\nclient-min = 1M\nmax-orphans = 5M\nuser-max = 6M\nnode-policy = strict\n"
			  "max-faults = 7\n"
			  "[arena new]\nsize = 4M\n");
	CHECK(arena(h, "default").uid == 7 && arena(h, "default").gid == 8 && arena(h, "default").mode == 0604);
	CHECK(arena(h, "default").max_sessions == 9 && arena(h, "default").max_caches == 1);
	CHECK(arena(h, "default").client_max == 3 << 20 && arena(h, "default").client_min == 1 << 20);
	CHECK(arena(h, "default").max_orphans == 5 << 20 && arena(h, "default").user_max == 6 << 20);
	CHECK(strcmp(arena(h, "default").node_policy, "strict") == 0);
	CHECK(arena(h, "default").max_faults == 7);
	CHECK(harness_log_count(h, "owner 7, group 8, mode 0604") == 1);
	CHECK(slabc_cache_open(c, "k2", 64, NULL, &k2) == -EDQUOT);
	CHECK(strstr(slabc_last_error(), "max-caches") != NULL);
	/* What takes a restart is as it was, and named. */
	CHECK(harness_status(h).arena_bytes == 8 << 20 && harness_status(h).n_threads == 1);
	CHECK(harness_log_count(h, "takes a restart") == 8);
	CHECK(harness_log_count(h, "threads has changed") == 1 && harness_log_count(h, "socket-mode has changed") == 1);
	CHECK(harness_log_count(h, "the size of arena 'default' has changed") == 1);
	CHECK(harness_log_count(h, "the reserve of arena 'default' has changed") == 1);
	CHECK(harness_log_count(h, "the page-kind of arena 'default' has changed") == 1);
	CHECK(harness_log_count(h, "the profile of arena 'default' has changed") == 1);
	CHECK(harness_log_count(h, "arena 'new' is new") == 1 && harness_log_count(h, "arena 'old' is in the settings no more") == 1);
	CHECK(harness_log_count(h, "reload: done; 8 settings wait") == 1);
	CHECK(arena(h, "new").arena == 0 && arena(h, "old").arena == 2);

	harness_reload(h, "[arena]\nmode = 0666\nprofile = wrong\n");
	CHECK(arena(h, "default").mode == 0604);
	CHECK(harness_log_count(h, "slabd.conf:3: profile = 'wrong'") == 1);

	/* As it was: nothing waits; and the log falls silent. */
	harness_reload(h, "[arena]\nsize = 8M\npage-kind = 4k\n[arena old]\nsize = 4M\n");
	CHECK(harness_log_count(h, "reload: done; 0 settings wait") == 1);
	CHECK(arena(h, "default").mode == 0660 && arena(h, "default").max_caches == 0);
	CHECK(slabc_cache_open(c, "k2", 64, NULL, &k2) == 0);
	slabc_free(k, p);
	CHECK(slabc_alloc(k) == p);
	slabc_close(c);
}

CU_pSuite
it_config_suite(void)
{
	CU_pSuite suite = harness_suite("config");

	CU_ADD_TEST(suite, it_accepts_what_it_should);
	CU_ADD_TEST(suite, it_names_what_is_wrong);
	CU_ADD_TEST(suite, it_settings_take_effect);
	CU_ADD_TEST(suite, it_reload);
	return suite;
}
