/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slabctl against a slabd whose population is known to the object: the numbers, in text and JSON, its exit statuses, and names that want to
 * break its output.  JSON is read by a parser that forgives nothing.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/barn.h"
#include "shm/word.h"
#include "tests/harness.h"

CU_pSuite it_ctl_suite(void);

/* slabctl */

enum { OUT_BYTES = 1 << 16, MAX_ARGS = 8 };

/* Its exit status; arguments are parted at blanks. */
static int
ctl_at(const char *socket, char *out, const char *arguments)
{
	char path[256], socket_argument[256], copy[256], *argv[MAX_ARGS] = {path, socket_argument}, *save = NULL;
	unsigned n = 2;

	snprintf(path, sizeof path, "%s", harness_path("SLABCTL"));
	snprintf(socket_argument, sizeof socket_argument, "--socket=%s", socket);
	snprintf(copy, sizeof copy, "%s", arguments);
	for (char *word = strtok_r(copy, " ", &save); word && n < MAX_ARGS - 1; word = strtok_r(NULL, " ", &save))
		argv[n++] = word;
	return harness_run(argv, NULL, out, OUT_BYTES);
}

static int
ctl(const struct harness *h, char *out, const char *arguments)
{
	return ctl_at(h->socket, out, arguments);
}

/* JSON as slabctl writes it: an object, or an array of objects, of strings and unsigned numbers. */

enum { MAX_CELLS = 64, MAX_ROWS = 8, TEXT_BYTES = 300 };

struct json_cell {
	char key[32];
	bool is_string;
	char text[TEXT_BYTES];
	uint64_t number;
};

struct json {
	const char *at; /* NULL: it is none */
	bool is_array;
	unsigned n_rows;
	unsigned n_cells[MAX_ROWS];
	struct json_cell cells[MAX_ROWS][MAX_CELLS];
};

static void
json_blank(struct json *j)
{
	while (j->at && *j->at && strchr(" \t\r\n", *j->at))
		j->at++;
}

/* The character must be next. */
static void
json_expect(struct json *j, char c)
{
	json_blank(j);
	j->at = j->at && *j->at == c ? j->at + 1 : NULL;
}

static bool
json_is_next(struct json *j, char c)
{
	json_blank(j);
	return j->at && *j->at == c;
}

static char *
put_utf8(char *to, unsigned c)
{
	if (c < 0x80) {
		*to++ = (char)c;
	} else if (c < 0x800) {
		*to++ = (char)(0xc0 | c >> 6);
		*to++ = (char)(0x80 | (c & 0x3f));
	} else {
		*to++ = (char)(0xe0 | c >> 12);
		*to++ = (char)(0x80 | (c >> 6 & 0x3f));
		*to++ = (char)(0x80 | (c & 0x3f));
	}
	return to;
}

/* After a backslash. */
static char *
json_escape(struct json *j, char *to)
{
	static const char plain[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
	const char *p = *j->at ? strchr(plain, *j->at) : NULL;
	char digits[5] = "", *end;
	unsigned long c;

	if (p) {
		j->at++;
		*to++ = means[p - plain];
		return to;
	}
	if (*j->at == 'u')
		strncpy(digits, j->at + 1, 4);
	c = strtoul(digits, &end, 16);
	if (strspn(digits, "0123456789abcdefABCDEF") != 4 || end != digits + 4 || c == 0 || (c >= 0xd800 && c < 0xe000)) {
		j->at = NULL;
		return to;
	}
	j->at += 5;
	return put_utf8(to, (unsigned)c);
}

static void
json_string(struct json *j, char *text, size_t size)
{
	char *to = text;

	json_expect(j, '"');
	while (j->at && *j->at != '"') {
		if ((unsigned char)*j->at < 0x20 || to + 4 > text + size)
			j->at = NULL;
		else if (*j->at == '\\')
			j->at++, to = json_escape(j, to);
		else
			*to++ = *j->at++;
	}
	*to = '\0';
	json_expect(j, '"');
}

static void
json_object(struct json *j)
{
	json_expect(j, '{');
	while (j->at && j->n_rows < MAX_ROWS && j->n_cells[j->n_rows] < MAX_CELLS) {
		struct json_cell *cell = &j->cells[j->n_rows][j->n_cells[j->n_rows]++];
		size_t n;

		json_string(j, cell->key, sizeof cell->key);
		json_expect(j, ':');
		cell->is_string = json_is_next(j, '"');
		if (cell->is_string) {
			json_string(j, cell->text, sizeof cell->text);
		} else if (j->at) {
			n = strspn(j->at, "0123456789");
			cell->number = strtoull(j->at, NULL, 10);
			j->at = n == 0 || n > 20 || (n > 1 && *j->at == '0') ? NULL : j->at + n;
		}
		if (!json_is_next(j, ','))
			break;
		j->at++;
	}
	json_expect(j, '}');
	j->n_rows++;
}

/* false: it is no JSON. */
static bool
json_parse(struct json *j, const char *text)
{
	memset(j, 0, sizeof *j);
	j->at = text;
	j->is_array = json_is_next(j, '[');
	if (!j->is_array) {
		json_object(j);
	} else {
		json_expect(j, '[');
		while (json_is_next(j, '{') && j->n_rows < MAX_ROWS) {
			json_object(j);
			if (!json_is_next(j, ','))
				break;
			j->at++;
			if (!json_is_next(j, '{'))
				j->at = NULL;
		}
		json_expect(j, ']');
	}
	json_blank(j);
	return j->at && *j->at == '\0';
}

static const struct json_cell *
json_get(const struct json *j, unsigned row, const char *key)
{
	static const struct json_cell none = {.text = "(none)", .number = UINT64_MAX};

	for (unsigned i = 0; row < j->n_rows && i < j->n_cells[row]; i++)
		if (strcmp(j->cells[row][i].key, key) == 0)
			return &j->cells[row][i];
	return &none;
}

static uint64_t
json_number(const struct json *j, unsigned row, const char *key)
{
	const struct json_cell *cell = json_get(j, row, key);

	CHECK(!cell->is_string);
	return cell->number;
}

static const char *
json_text(const struct json *j, unsigned row, const char *key)
{
	return json_get(j, row, key)->text;
}

/* The parser itself refuses what is none. */
static void
it_json_is_read_strictly(void)
{
	static const char *const bad[] = {"", "{", "{}x", "{\"a\" 1}", "{\"a\": 1,}", "{\"a\": 01}", "{\"a\": -1}", "{\"a\": }",
		"[{\"a\": 1},]", "[{\"a\": 1} {\"a\": 1}]", "{\"a\": \"x\ny\"}", "{\"a\": \"\\x\"}", "{\"a\": \"\\u12\"}",
		"{\"a\": \"\\ud800\"}", "{\"a\": \"x}", "[{\"a\": 1}", "{a: 1}", "{\"a\": 1} {\"a\": 1}"};
	static struct json j;

	for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
		CHECK(!json_parse(&j, bad[i]));
	CHECK(json_parse(&j, "[]") && j.is_array && j.n_rows == 0);
	CHECK(json_parse(&j, " [ {\"a\": 18446744073709551615, \"b\":\"\\u0041\\n\\\"\\\\\"},\n{\"a\":0}]\n") && j.n_rows == 2);
	CHECK(json_number(&j, 0, "a") == UINT64_MAX && strcmp(json_text(&j, 0, "b"), "A\n\"\\") == 0 && json_number(&j, 1, "a") == 0);
}

/* Text: a heading, then a line a row; cells without blanks in them. */

/* The line's i-th cell into cell; false: there is none. */
static bool
cell_of(const char *line, unsigned i, char *cell, size_t size)
{
	size_t n = strcspn(line, "\n");

	while (n > 0) {
		size_t blank = strspn(line, " "), length = strcspn(line + blank, " \n");

		if (length == 0)
			return false;
		if (i-- == 0) {
			snprintf(cell, size, "%.*s", (int)length, line + blank);
			return true;
		}
		line += blank + length;
		n -= blank + length;
	}
	return false;
}

/* Under a heading in a row (1: the first); "(none)". */
static const char *
text_cell(const char *out, unsigned row, const char *heading)
{
	static char cell[TEXT_BYTES];
	const char *line = out;
	unsigned i = 0;

	while (cell_of(out, i, cell, sizeof cell) && strcmp(cell, heading) != 0)
		i++;
	while (row-- > 0 && (line = strchr(line, '\n')))
		line++;
	if (!line || !cell_of(line, i, cell, sizeof cell))
		return "(none)";
	return cell;
}

static uint64_t
text_number(const char *out, unsigned row, const char *heading)
{
	const char *cell = text_cell(out, row, heading);
	char *end;
	uint64_t n = strtoull(cell, &end, 10);

	return *cell && !*end ? n : UINT64_MAX;
}

/* Of a record, "key  value" a line. */
static const char *
record_value(const char *out, const char *key)
{
	static char value[TEXT_BYTES];

	for (const char *line = out; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		size_t n = strcspn(line, " \n");

		if (n == strlen(key) && strncmp(line, key, n) == 0) {
			line += n + strspn(line + n, " ");
			snprintf(value, sizeof value, "%.*s", (int)strcspn(line, "\n"), line);
			return value;
		}
	}
	return "(none)";
}

static unsigned
count_lines(const char *out)
{
	unsigned n = 0;

	for (; *out; out++)
		n += *out == '\n';
	return n;
}

/* The population */

enum { SIZE = 256, CAPACITY = 28, N_HELD = 100, N_SHEAF = 28, N_BARN = 20 };

struct population {
	struct raw raw;
	uint32_t cache;
	uint64_t n_objects;
};

/* Takes the sheaf's last object as its client does. */
static void
take_one(struct raw *raw, struct sheaf *sheaf)
{
	uint32_t *word = raw_word(raw, sheaf->entry[sheaf->size - 1]);

	*word = word_with(*word + WORD_GENERATION_ONE, raw->attach.client, WORD_OWNED);
	sheaf->size--;
}

/* 100 held, 28 in a thread's sheaf, 20 in the process barn, a sheaf in the node barn, the rest of their slabs free. */
static void
populate(struct population *p, struct harness *h, const char *label)
{
	union proto_request request;
	union proto_reply reply;
	struct sheaf *sheaf;
	uint32_t slot;

	raw_attach(&p->raw, h->socket, label);
	p->cache = raw_cache_open(&p->raw, "k", SIZE, 0);
	REQUIRE(harness_cache(h, "k").capacity == CAPACITY);
	slot = raw_prefill(&p->raw, p->cache, N_HELD + N_SHEAF);
	sheaf = raw_sheaf(&p->raw, slot);
	for (int i = 0; i < N_HELD; i++)
		take_one(&p->raw, sheaf);
	p->raw.slots[slot].holder = LAYOUT_HOLDER_THREAD;
	slot = raw_prefill(&p->raw, p->cache, N_BARN);
	p->raw.slots[slot].holder = LAYOUT_HOLDER_BARN;
	slot = raw_prefill(&p->raw, p->cache, CAPACITY);
	p->raw.slots[slot].holder = LAYOUT_HOLDER_RETURNED;
	barn_push(&((struct layout_session_cache *)(void *)(p->raw.session + LAYOUT_SESSION_CACHES_OFF))[p->cache].returned, p->raw.slots,
		slot);
	request = (union proto_request){.flush = {.cache = p->cache, .n_sheaves = 1}};
	REQUIRE(raw_call(p->raw.fd, PROTO_OP_FLUSH, &request, &reply, NULL) == PROTO_STATUS_OK);
	p->n_objects = harness_cache(h, "k").n_objects;
}

/* All columns that are places of objects, of the first cache. */
static uint64_t
places_in(const char *out)
{
	static const char *const places[] = {"allocated", "threads", "procbarns", "nodebarns", "stashes", "returned", "app", "free"};
	uint64_t sum = 0;

	for (unsigned i = 0; i < sizeof places / sizeof places[0]; i++)
		sum += text_number(out, 1, places[i]);
	return sum;
}

/* Where the objects of a cache are, in both forms, adds up to all there are. */
static void
it_caches_add_up(void)
{
	static const struct {
		const char *heading, *key;
		uint64_t n;
	} columns[] = {{"allocated", "n_allocated", N_HELD}, {"threads", "n_thread", N_SHEAF}, {"procbarns", "n_process_barn", N_BARN},
		{"nodebarns", "n_node_barn", CAPACITY}};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	static char out[OUT_BYTES];
	static struct json j;
	struct population p;
	uint64_t sum = 0, json_sum = 0, n_stash;

	CHECK(ctl(h, out, "caches") == 0 && count_lines(out) == 1);
	CHECK(ctl(h, out, "caches --json") == 0 && json_parse(&j, out) && j.is_array && j.n_rows == 0);
	populate(&p, h, "ctl");
	CHECK(ctl(h, out, "caches") == 0);
	CHECK(count_lines(out) == 2);
	CHECK(strcmp(text_cell(out, 1, "name"), "k") == 0);
	CHECK(text_number(out, 1, "objsize") == SIZE);
	CHECK(text_number(out, 1, "capacity") == CAPACITY);
	CHECK(strcmp(text_cell(out, 1, "flags"), "-") == 0);
	CHECK(strcmp(text_cell(out, 1, "policy"), "slub") == 0);
	CHECK(text_number(out, 1, "objects") == p.n_objects);
	CHECK(text_number(out, 1, "slabs") * text_number(out, 1, "objs/slab") == p.n_objects);
	for (unsigned i = 0; i < sizeof columns / sizeof columns[0]; i++) {
		CHECK(text_number(out, 1, columns[i].heading) == columns[i].n);
		sum += text_number(out, 1, columns[i].heading);
	}
	CHECK(sum + text_number(out, 1, "free") == p.n_objects && places_in(out) == p.n_objects);
	CHECK(text_number(out, 1, "stashes") == 0);
	sum = 0;

	/* A prefilled sheaf is the application's.  The first one opens the barn's; the second one's refill sets aside what that left. */
	CHECK(ctl(h, out, "tune k cpu_partial=50") == 0);
	raw_prefill(&p.raw, p.cache, 6);
	raw_prefill(&p.raw, p.cache, 4);
	CHECK(ctl(h, out, "caches") == 0);
	n_stash = text_number(out, 1, "stashes");
	CHECK(n_stash == CAPACITY - 10);
	for (unsigned i = 0; i < sizeof columns / sizeof columns[0]; i++)
		sum += text_number(out, 1, columns[i].heading);
	CHECK(sum + 10 + n_stash + text_number(out, 1, "free") == text_number(out, 1, "objects"));
	CHECK(text_number(out, 1, "app") == 10 && places_in(out) == text_number(out, 1, "objects"));
	p.n_objects = harness_cache(h, "k").n_objects;
	CHECK(ctl(h, out, "--json caches") == 0);
	REQUIRE(json_parse(&j, out));
	CHECK(j.is_array && j.n_rows == 1);
	CHECK(strcmp(json_text(&j, 0, "name"), "k") == 0);
	for (unsigned i = 0; i + 1 < sizeof columns / sizeof columns[0]; i++) {
		CHECK(json_number(&j, 0, columns[i].key) == columns[i].n);
		json_sum += json_number(&j, 0, columns[i].key);
	}
	CHECK(json_number(&j, 0, "n_app") == 10);
	CHECK(json_number(&j, 0, "n_returned") == 0);
	CHECK(json_number(&j, 0, "n_stash") == n_stash && json_number(&j, 0, "cpu_partial") == 50);
	CHECK(json_sum + 10 + n_stash == json_number(&j, 0, "n_out"));
	CHECK(json_sum + 10 + n_stash + json_number(&j, 0, "n_node_barn") + json_number(&j, 0, "n_free") == p.n_objects);
	CHECK(json_number(&j, 0, "n_objects") == p.n_objects);
	CHECK(json_number(&j, 0, "object_bytes") == SIZE);
	CHECK(json_number(&j, 0, "n_openers") == 1);
	CHECK(strcmp(json_text(&j, 0, "flags"), "-") == 0);
	raw_cache_open(&p.raw, "second", 64, SLABC_RECLAIM | SLABC_SHARED);
	CHECK(ctl(h, out, "--json caches") == 0 && json_parse(&j, out) && j.n_rows == 2);
	CHECK(strcmp(json_text(&j, 1, "name"), "second") == 0 && strcmp(json_text(&j, 1, "flags"), "reclaim,shared") == 0);
	raw_detach(&p.raw);
}

/* Allocates and frees by the thousand, so that sheaves go to and fro, until it is told to stop. */
static void
be_busy(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "busy");
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k;
	void *p[2000];

	o.max_cached = 1;
	REQUIRE(slabc_cache_open(c, "k", SIZE, &o, &k) == 0);
	peer_tell(me, 'r');
	for (struct pollfd stop = {.fd = me->in, .events = POLLIN}; poll(&stop, 1, 0) == 0;) {
		REQUIRE(slabc_alloc_bulk(k, 2000, p) == 0);
		slabc_free_bulk(k, 2000, p);
	}
	peer_await(me, 'e');
}

/*
 * Under load too each object is in one column: what is counted out and lies in no other place is `allocated`.  An object that was counted
 * in two places while it moved makes the sum larger, and then only when nothing is left for `allocated`.
 */
static void
it_columns_add_up_under_load(void)
{
	enum { N_PEERS = 2, N_LOOKS = 100 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2 --arena-size=64M");
	static char out[OUT_BYTES];
	unsigned n_exact = 0;
	pid_t pids[N_PEERS];

	for (unsigned i = 0; i < N_PEERS; i++) {
		pids[i] = harness_spawn(h, be_busy, h);
		peer_await(harness_peer(h, pids[i]), 'r');
	}
	for (unsigned i = 0; i < N_LOOKS; i++) {
		REQUIRE(ctl(h, out, "caches") == 0);
		CHECK(places_in(out) >= text_number(out, 1, "objects"));
		CHECK(places_in(out) == text_number(out, 1, "objects") || text_number(out, 1, "allocated") == 0);
		n_exact += places_in(out) == text_number(out, 1, "objects");
	}
	CHECK(n_exact > 0);
	for (unsigned i = 0; i < N_PEERS; i++)
		peer_tell(harness_peer(h, pids[i]), 'e');
	for (unsigned i = 0; i < N_PEERS; i++) {
		harness_join(h, pids[i]);
		harness_wait_reaped(h, pids[i]);
	}
	REQUIRE(ctl(h, out, "caches") == 0);
	CHECK(places_in(out) == text_number(out, 1, "objects") && text_number(out, 1, "allocated") == 0);
}

/* Who holds how much, living and dead. */
static void
it_clients_show_who_holds(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	static char out[OUT_BYTES];
	static struct json j;
	struct population p;
	struct slabc *c;

	populate(&p, h, "ctl");
	c = harness_open(h, "second");
	CHECK(ctl(h, out, "clients") == 0);
	CHECK(count_lines(out) == 3);
	CHECK(text_number(out, 1, "id") == p.raw.attach.client_id);
	CHECK(text_number(out, 1, "pid") == (uint64_t)getpid());
	CHECK(text_number(out, 1, "uid") == getuid());
	CHECK(strcmp(text_cell(out, 1, "label"), "ctl") == 0);
	CHECK(strcmp(text_cell(out, 1, "state"), "live") == 0);
	CHECK(text_number(out, 1, "held") == N_HELD);
	CHECK(text_number(out, 1, "heldbytes") == N_HELD * SIZE);
	CHECK(text_number(out, 1, "idlebytes") == (N_SHEAF + N_BARN) * SIZE);
	CHECK(text_number(out, 1, "orphans") == 0);
	CHECK(strcmp(text_cell(out, 2, "label"), "second") == 0);
	CHECK(text_number(out, 2, "held") == 0);
	CHECK(ctl(h, out, "--json clients") == 0);
	REQUIRE(json_parse(&j, out));
	CHECK(j.is_array && j.n_rows == 2);
	CHECK(json_number(&j, 0, "client_id") == p.raw.attach.client_id);
	CHECK(json_number(&j, 0, "n_held") == N_HELD);
	CHECK(json_number(&j, 0, "bytes_idle") == (N_SHEAF + N_BARN) * SIZE);
	CHECK(json_number(&j, 1, "client_id") == slabc_client_id(c));
	slabc_close(c);

	/* Its end: what it held is orphaned under its name. */
	raw_detach(&p.raw);
	CHECK(EVENTUALLY(ctl(h, out, "clients") == 0 && strstr(out, "dead")));
	CHECK(text_number(out, 1, "pid") == (uint64_t)getpid() && text_number(out, 1, "held") == 0 &&
		text_number(out, 1, "heldbytes") == 0);
	CHECK(text_number(out, 1, "orphans") == N_HELD && text_number(out, 1, "orphanbytes") == N_HELD * SIZE);
	CHECK(count_lines(out) == 2);
	CHECK(ctl(h, out, "--json clients") == 0 && json_parse(&j, out) && j.n_rows == 1);
	CHECK(strcmp(json_text(&j, 0, "state"), "dead") == 0);
	CHECK(json_number(&j, 0, "client_id") == p.raw.attach.client_id);
	CHECK(json_number(&j, 0, "n_held") == 0);
	CHECK(json_number(&j, 0, "n_orphans") == N_HELD && json_number(&j, 0, "bytes_orphans") == N_HELD * SIZE);
	CHECK(json_number(&j, 0, "bytes_held") == 0 && json_number(&j, 0, "pid") == (uint64_t)getpid());
	CHECK(json_number(&j, 0, "bytes_idle") == 0);
}

static void
it_status_is_one_record(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2 --arena-size=64M");
	static char out[OUT_BYTES];
	static struct json j;
	struct population p;

	populate(&p, h, "ctl");
	CHECK(ctl(h, out, "status --json") == 0);
	REQUIRE(json_parse(&j, out));
	CHECK(!j.is_array && j.n_rows == 1);
	CHECK(json_number(&j, 0, "pid") == (uint64_t)h->slabd);
	CHECK(json_number(&j, 0, "n_threads") == 2);
	CHECK(json_number(&j, 0, "arena_bytes") == 64 << 20);
	CHECK(json_number(&j, 0, "committed_bytes") == harness_status(h).committed_bytes);
	CHECK(json_number(&j, 0, "n_caches") == 1);
	CHECK(json_number(&j, 0, "n_sessions") == 1);
	CHECK(json_number(&j, 0, "n_faults") == 0);
	CHECK(strcmp(json_text(&j, 0, "page_kind"), "4k") == 0);
	CHECK(strcmp(json_text(&j, 0, "arena"), "default") == 0);
	CHECK(strcmp(json_text(&j, 0, "server"), "slabd " SLABC_VERSION) == 0);
	CHECK(ctl(h, out, "status") == 0);
	CHECK(count_lines(out) == j.n_cells[0]);
	for (unsigned i = 0; i < j.n_cells[0]; i++) {
		const struct json_cell *cell = &j.cells[0][i];
		const char *value = record_value(out, cell->key);

		/* It is a little later, and another connection is open. */
		if (strcmp(cell->key, "uptime_ms") == 0)
			CHECK(strtoull(value, NULL, 10) >= cell->number);
		else if (cell->is_string)
			CHECK(strcmp(value, cell->text) == 0);
		else
			CHECK(strtoull(value, NULL, 10) == cell->number);
	}
	raw_detach(&p.raw);
}

/* Exit status 0: each object is in one place; 1: one is not, whatever the form; --cache looks at that one only. */
static void
it_audit_says_what_it_found(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	static char out[OUT_BYTES];
	static struct json j;
	struct population p;
	struct sheaf *sheaf;

	populate(&p, h, "ctl");
	raw_cache_open(&p.raw, "other", 64, 0);
	CHECK(ctl(h, out, "audit") == 0);
	CHECK(strcmp(record_value(out, "n_out"), "148") == 0);
	CHECK(strcmp(record_value(out, "n_lost"), "0") == 0);
	CHECK(ctl(h, out, "audit --json") == 0);
	REQUIRE(json_parse(&j, out));
	CHECK(!j.is_array && j.n_rows == 1);
	CHECK(json_number(&j, 0, "n_objects") == p.n_objects);
	CHECK(json_number(&j, 0, "n_held") == N_HELD);
	CHECK(json_number(&j, 0, "n_in_sheaves") == N_SHEAF + N_BARN);
	CHECK(json_number(&j, 0, "n_barn") == CAPACITY);
	CHECK(json_number(&j, 0, "n_lost") == 0 && json_number(&j, 0, "n_doubled") == 0 && json_number(&j, 0, "n_undecided") == 0);

	/* Dropped from its sheaf, and named by nobody. */
	sheaf = raw_sheaf(&p.raw, raw_prefill(&p.raw, p.cache, 10));
	sheaf->size--;
	CHECK(ctl(h, out, "audit") == 1);
	CHECK(strcmp(record_value(out, "n_lost"), "1") == 0);
	CHECK(ctl(h, out, "audit --json") == 1);
	CHECK(json_parse(&j, out) && json_number(&j, 0, "n_lost") == 1 && json_number(&j, 0, "n_doubled") == 0);
	CHECK(json_number(&j, 0, "first_lost") == sheaf->entry[9] + 1ull);
	CHECK(ctl(h, out, "audit --cache=k") == 1);
	CHECK(ctl(h, out, "audit --cache=other") == 0);
	CHECK(ctl(h, out, "audit --cache=missing") == 3 && strstr(out, "missing"));
	/* In two places, and nothing else is wrong. */
	sheaf->size++;
	take_one(&p.raw, sheaf);
	CHECK(ctl(h, out, "audit") == 0);
	sheaf->entry[sheaf->size++] = sheaf->entry[3];
	CHECK(ctl(h, out, "audit --json") == 1);
	CHECK(json_parse(&j, out) && json_number(&j, 0, "n_doubled") == 1 && json_number(&j, 0, "n_lost") == 0);
	raw_detach(&p.raw);
}

/* 2: it was called wrongly, and says how; 3: there is no answer, and it says whose.  Neither prints half an answer. */
static void
it_exit_statuses(void)
{
	static const char *const wrong[] = {"", "caches clients", "nonsense", "--nonsense caches", "--timeout=0 status",
		"--timeout=x status", "--timeout=1x status", "--json", "--cache status"};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	static char out[OUT_BYTES];
	char missing[256];

	for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		CHECK(ctl(h, out, wrong[i]) == 2);
		CHECK(out[0] != '\0' && !strstr(out, "version"));
	}
	memset(missing, 'x', 200);
	missing[200] = '\0';
	CHECK(ctl_at(missing, out, "status") == 2);
	CHECK(ctl(h, out, "--help") == 0 && strstr(out, "Usage: slabctl"));
	CHECK(ctl(h, out, "--version") == 0 && strstr(out, SLABC_VERSION));

	snprintf(missing, sizeof missing, "%s/none", h->dir);
	CHECK(ctl_at(missing, out, "status") == 3);
	CHECK(strstr(out, missing) && count_lines(out) == 1);
	CHECK(kill(h->slabd, SIGSTOP) == 0);
	CHECK(ctl(h, out, "--timeout=1 status") == 3);
	CHECK(strstr(out, "--timeout") && count_lines(out) == 1);
	CHECK(kill(h->slabd, SIGCONT) == 0);
	CHECK(ctl(h, out, "status") == 0);
	CHECK(ctl_at(h->log, out, "status") == 3);
	CHECK(strstr(out, "(--socket)") && strstr(out, "it is no socket"));
}

/* What a terminal takes for more than text. */
static bool
is_plain(const char *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)out[i];

		if ((c < 0x20 && c != '\n') || c == 0x7f || (c == 0xc2 && (unsigned char)out[i + 1] < 0xa0))
			return false;
	}
	return true;
}

/* Names that clients choose are shown, and break neither lines, columns nor JSON, nor the log. */
static void
it_hostile_names(void)
{
	static const char *const names[] = {"a\"b\\c\nd\te\x1b[31mf",
		"\x7f\xff\xfe\xc2\x9b"
		"2J\xc3",
		"\", \"n_held\": 9, \"x\": \"", "\xf0\x9f\x92\xa9 \xe2\x82\xac", "id  pid\n0  0"};
	/* As JSON tells them: what is no UTF-8 cannot be told. */
	static const char *const told[] = {"a\"b\\c\nd\te\x1b[31mf",
		"\x7f\xef\xbf\xbd\xef\xbf\xbd\xc2\x9b"
		"2J\xef\xbf\xbd",
		"\", \"n_held\": 9, \"x\": \"", "\xf0\x9f\x92\xa9 \xe2\x82\xac", "id  pid\n0  0"};
	enum { N = sizeof names / sizeof names[0] };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	static char out[OUT_BYTES], log[OUT_BYTES];
	static struct json j;
	struct raw raw[N];
	unsigned n_lines;
	FILE *file;

	for (unsigned i = 0; i < N; i++) {
		raw_attach(&raw[i], h->socket, names[i]);
		raw_cache_open(&raw[i], names[i], 64, 0);
	}
	CHECK(ctl(h, out, "clients") == 0);
	CHECK(count_lines(out) == N + 1 && is_plain(out, strlen(out)));
	CHECK(ctl(h, out, "caches") == 0);
	CHECK(count_lines(out) == N + 1 && is_plain(out, strlen(out)));
	CHECK(ctl(h, out, "--json clients") == 0 && is_plain(out, strlen(out)));
	REQUIRE(json_parse(&j, out));
	CHECK(j.n_rows == N);
	for (unsigned i = 0; i < N; i++) {
		CHECK(strcmp(json_text(&j, i, "label"), told[i]) == 0);
		CHECK(json_number(&j, i, "n_held") == 0);
		CHECK(j.n_cells[i] == j.n_cells[0]);
	}
	CHECK(ctl(h, out, "--json caches") == 0 && is_plain(out, strlen(out)));
	REQUIRE(json_parse(&j, out));
	CHECK(j.n_rows == N);
	for (unsigned i = 0; i < N; i++)
		CHECK(strcmp(json_text(&j, i, "name"), told[i]) == 0);
	/* The log: each client has come, in one line. */
	n_lines = harness_log_count(h, "slabd: client ");
	CHECK(n_lines == N);
	file = fopen(h->log, "re");
	REQUIRE(file != NULL);
	while (fgets(log, sizeof log, file))
		CHECK(strncmp(log, "slabd: ", 7) == 0 && strcspn(log, "\x1b\t\r\x7f") == strlen(log));
	fclose(file);
	for (unsigned i = 0; i < N; i++)
		raw_detach(&raw[i]);
}

/* list_lock's counters: a refill takes the lock; who must wait for another loop is counted with the time. */
static void
it_list_lock_is_counted(void)
{
	enum { N_OBJECTS = 150000, N_TRIES = 2000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --threads=2 --arena-size=64M");
	struct proto_caches_reply before, after;
	static char out[OUT_BYTES];
	static void *pv[N_OBJECTS];
	static struct json j;
	uint32_t cache;
	struct slabc *c;
	struct slabc_cache *k;
	struct raw raw, others[4];

	harness_status(h);
	raw_attach(&raw, h->socket, "refills");
	cache = raw_cache_open(&raw, "k", 64, 0);
	before = harness_cache(h, "k");
	for (int i = 0; i < 100; i++)
		raw_prefill(&raw, cache, 1);
	after = harness_cache(h, "k");
	CHECK(after.lock_acquired >= before.lock_acquired + 100);
	CHECK(after.lock_contended == 0 && after.lock_wait_ns == 0);
	CHECK(after.lock_hold_ns > before.lock_hold_ns);

	/* An audit of many objects holds the lock for long: refills of the other loop meet it. */
	c = harness_open(h, "many");
	k = harness_open_cache(c, "k", 64, 0);
	REQUIRE(slabc_alloc_bulk(k, N_OBJECTS, pv) == 0);
	/* Of so many connections some belong to the loop that the monitor's does not. */
	for (unsigned i = 0; i < 4; i++) {
		raw_attach(&others[i], h->socket, "refills too");
		REQUIRE(raw_cache_open(&others[i], "k", 64, 0) == cache);
	}
	for (unsigned i = 0; i < N_TRIES && after.lock_contended == 0; i++) {
		union proto_request audit = {.audit = {.cache = cache}};
		union proto_reply reply;

		REQUIRE(raw_send(h->monitor, PROTO_OP_AUDIT, 1000000 + i, &audit) == 0);
		raw_prefill(&others[i % 4], cache, 1);
		REQUIRE(raw_receive(h->monitor, PROTO_OP_AUDIT, 1000000 + i, &reply, NULL) == PROTO_STATUS_OK);
		after = harness_cache(h, "k");
	}
	CHECK(after.lock_contended > 0);
	CHECK(after.lock_wait_ns > 0);
	CHECK(after.lock_wait_ns < 10000000000u);
	CHECK(ctl(h, out, "--json caches") == 0 && json_parse(&j, out));
	CHECK(json_number(&j, 0, "lock_contended") >= after.lock_contended);
	CHECK(json_number(&j, 0, "lock_wait_ns") >= after.lock_wait_ns);
	CHECK(json_number(&j, 0, "lock_acquired") > after.lock_acquired);
	for (unsigned i = 0; i < 4; i++)
		raw_detach(&others[i]);
	raw_detach(&raw);
	slabc_close(c);
}

CU_pSuite
it_ctl_suite(void)
{
	CU_pSuite suite = harness_suite("ctl");

	CU_ADD_TEST(suite, it_json_is_read_strictly);
	CU_ADD_TEST(suite, it_caches_add_up);
	CU_ADD_TEST(suite, it_columns_add_up_under_load);
	CU_ADD_TEST(suite, it_clients_show_who_holds);
	CU_ADD_TEST(suite, it_status_is_one_record);
	CU_ADD_TEST(suite, it_audit_says_what_it_found);
	CU_ADD_TEST(suite, it_exit_statuses);
	CU_ADD_TEST(suite, it_hostile_names);
	CU_ADD_TEST(suite, it_list_lock_is_counted);
	return suite;
}
