/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/show.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ask.h"

static bool
is_flags(const struct show *show, const struct proto_field *f)
{
	return show->flag_names != NULL && (strcmp(f->name, "flags") == 0 || strcmp(f->name, "may") == 0);
}

/* As chmod takes it. */
static bool
is_mode(const struct proto_field *f)
{
	return strcmp(f->name, "mode") == 0;
}

/* References and hashes are shown in hexadecimal, in JSON as strings: its readers' numbers have 53 bits. */
static bool
is_hex(const struct proto_field *f)
{
	return strcmp(f->name, "ref") == 0 || strcmp(f->name, "layout_hash") == 0 || strcmp(f->name, "ledger_hash") == 0;
}

/* Of a knob that is none, and in a cache that has no sheaves. */
static bool
is_none(const struct show *show, uint64_t value)
{
	return show->op == PROTO_OP_TUNE && value == 0;
}

/* Its two largest units. */
static void
age_text(uint64_t ms, char *text, size_t size)
{
	uint64_t s = ms / 1000;

	if (s < 60)
		snprintf(text, size, "%" PRIu64 ".%" PRIu64 " s", s, ms % 1000 / 100);
	else if (s < 3600)
		snprintf(text, size, "%" PRIu64 "m %" PRIu64 "s", s / 60, s % 60);
	else if (s < 86400)
		snprintf(text, size, "%" PRIu64 "h %" PRIu64 "m", s / 3600, s % 3600 / 60);
	else
		snprintf(text, size, "%" PRIu64 "d %" PRIu64 "h", s / 86400, s % 86400 / 3600);
}

/* Fills columns and, side by side, the fields they show: those of the view first. */
static void
fill_columns(struct show_table *t)
{
	const struct proto_field *fields = proto_fields(t->show->op, PROTO_REPLY), *f;
	static const struct show_view all[] = {{0, NULL}};
	const struct show_view *view = t->show->view != NULL ? t->show->view : all, *v;

	for (v = view; v->heading != NULL; v++) {
		for (f = fields; f->off != v->off; f++)
			;
		t->columns[t->n].heading = v->heading;
		t->shown[t->n++] = f;
	}
	for (f = fields; f->name != NULL; f++) {
		for (v = view; v->heading != NULL && v->off != f->off; v++)
			;
		if (v->heading == NULL)
			t->shown[t->n++] = f;
	}
	for (size_t i = 0; i < t->n; i++) {
		t->columns[i].key = t->shown[i]->name;
		t->columns[i].is_string =
			t->shown[i]->type == PROTO_STR || is_flags(t->show, t->shown[i]) || is_hex(t->shown[i]) || is_mode(t->shown[i]);
	}
}

void
show_init(struct show_table *t, const struct show *show)
{
	*t = (struct show_table){.show = show};
	fill_columns(t);
	t->table = table_new(t->columns, t->n);
	if (t->table == NULL)
		ask_die(ASK_EXIT_SLABD, "%s", strerror(ENOMEM));
}

void
show_deinit(struct show_table *t)
{
	table_free(t->table);
}

/* "reclaim,shared"; bits without a name as a number; "-" for none. */
static void
flags_text(uint32_t flags, const char *const *names, char *text, size_t size)
{
	FILE *out = fmemopen(text, size, "w");
	const char *separator = "";

	if (out == NULL)
		ask_die(ASK_EXIT_SLABD, "no memory");
	for (unsigned bit = 0; names[bit] != NULL; bit++)
		if ((flags & 1u << bit) != 0) {
			fprintf(out, "%s%s", separator, names[bit]);
			flags &= ~(1u << bit);
			separator = ",";
		}
	if (flags != 0)
		fprintf(out, "%s%#x", separator, flags);
	else if (*separator == '\0')
		fputc('-', out);
	fclose(out);
}

static int
add_cell(struct show_table *t, const struct proto_field *f, const char *at)
{
	char text[64];
	uint64_t u64;
	uint32_t u32;

	if (f->type == PROTO_STR)
		return table_add_string(t->table, at);
	if (f->type == PROTO_U32) {
		memcpy(&u32, at, sizeof(u32));
		if (is_mode(f))
			snprintf(text, sizeof(text), "%04o", u32);
		else if (is_flags(t->show, f))
			flags_text(u32, t->show->flag_names, text, sizeof(text));
		else
			return is_none(t->show, u32) ? table_add_shown(t->table, u32, "none") : table_add_number(t->table, u32);
		return table_add_string(t->table, text);
	}
	memcpy(&u64, at, sizeof(u64));
	if (strcmp(f->name, "age_ms") == 0) {
		age_text(u64, text, sizeof(text));
		return table_add_shown(t->table, u64, text);
	}
	if (!is_hex(f))
		return table_add_number(t->table, u64);
	snprintf(text, sizeof(text), "0x%016" PRIx64, u64);
	return table_add_string(t->table, text);
}

void
show_add(struct show_table *t, const union proto_reply *reply)
{
	for (size_t i = 0; i < t->n; i++) {
		int r = add_cell(t, t->shown[i], (const char *)reply + t->shown[i]->off);

		if (r < 0)
			ask_die(ASK_EXIT_SLABD, "%s", strerror(-r));
	}
}
