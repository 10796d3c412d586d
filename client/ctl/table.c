/* SPDX-License-Identifier: Apache-2.0 */
/* Table: see table.h.  Cells lie in one array, row after row; text shows a cell's string if it has one, else its number. */
#include "client/ctl/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct cell {
	char *string;
	uint64_t number;
	bool is_number; /* in JSON, though it has a string */
};

struct table {
	const struct table_column *columns;
	size_t n_columns;
	size_t *widths; /* in characters: of the widest cell, or the heading */
	struct cell *cells;
	size_t n_cells;
	size_t max_cells;
};

/* Reads one code point.  Returns its bytes; at what is no UTF-8: 1, and *cp is UINT32_MAX. */
static size_t
utf8_next(const unsigned char *s, uint32_t *cp)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf8 ? 4 : 0;
	uint32_t c = n < 2 ? s[0] : s[0] & (0x7fu >> n);

	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80) { /* also the string's NUL */
			n = 0;
			break;
		}
		c = c << 6 | (s[i] & 0x3fu);
	}
	if (n == 0 || c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
		*cp = UINT32_MAX;
		return 1;
	}
	*cp = c;
	return n;
}

/* out NULL: only counts.  Returns the characters a reader sees. */
static size_t
print_text(const struct cell *cell, FILE *out)
{
	const unsigned char *s = (const unsigned char *)cell->string;
	size_t width = 0, n;
	uint32_t c;

	if (s == NULL) {
		char digits[24];

		width = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, cell->number);
		if (out != NULL)
			fputs(digits, out);
		return width;
	}
	for (; *s != '\0'; s += n, width++) {
		n = utf8_next(s, &c);
		if (out == NULL)
			continue;
		if (c == UINT32_MAX || c < 0x20 || (c >= 0x7f && c < 0xa0))
			fputc('?', out);
		else
			fwrite(s, 1, n, out);
	}
	return width;
}

struct table *
table_new(const struct table_column *columns, size_t n_columns)
{
	struct table *table = calloc(1, sizeof(*table));

	if (table == NULL)
		return NULL;
	table->columns = columns;
	table->n_columns = n_columns;
	table->widths = calloc(n_columns, sizeof(*table->widths));
	if (table->widths == NULL) {
		table_free(table);
		return NULL;
	}
	for (size_t i = 0; i < n_columns; i++)
		table->widths[i] = columns[i].heading != NULL ? strlen(columns[i].heading) : 0;
	return table;
}

void
table_free(struct table *table)
{
	if (table == NULL)
		return;
	for (size_t i = 0; i < table->n_cells; i++)
		free(table->cells[i].string);
	free(table->cells);
	free(table->widths);
	free(table);
}

static int
add_cell(struct table *table, struct cell cell)
{
	size_t *widthp = &table->widths[table->n_cells % table->n_columns], width = print_text(&cell, NULL);

	if (table->n_cells == table->max_cells) {
		size_t max = table->max_cells * 2 + 64;
		struct cell *cells = reallocarray(table->cells, max, sizeof(*cells));

		if (cells == NULL)
			return -ENOMEM;
		table->cells = cells;
		table->max_cells = max;
	}
	table->cells[table->n_cells++] = cell;
	*widthp = width > *widthp ? width : *widthp;
	return 0;
}

int
table_add_number(struct table *table, uint64_t number)
{
	return add_cell(table, (struct cell){.number = number});
}

static int
add_copy(struct table *table, struct cell cell, const char *string)
{
	int r;

	cell.string = strdup(string);
	if (cell.string == NULL)
		return -ENOMEM;
	r = add_cell(table, cell);
	if (r < 0)
		free(cell.string);
	return r;
}

int
table_add_string(struct table *table, const char *string)
{
	return add_copy(table, (struct cell){0}, string);
}

int
table_add_shown(struct table *table, uint64_t number, const char *text)
{
	return add_copy(table, (struct cell){.number = number, .is_number = true}, text);
}

static void
print_json(const struct cell *cell, FILE *out)
{
	const unsigned char *s = (const unsigned char *)cell->string;
	size_t n;
	uint32_t c;

	if (s == NULL || cell->is_number) {
		fprintf(out, "%" PRIu64, cell->number);
		return;
	}
	fputc('"', out);
	for (; *s != '\0'; s += n) {
		n = utf8_next(s, &c);
		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", (int)c);
		else if (c == UINT32_MAX)
			fputs("\\ufffd", out);
		else if (c < 0x20 || (c >= 0x7f && c < 0xa0))
			fprintf(out, "\\u%04x", (unsigned)c);
		else
			fwrite(s, 1, n, out);
	}
	fputc('"', out);
}

/* Every cell of the row, also those without a heading. */
static void
print_json_row(const struct table *table, const struct cell *row, const char *separator, FILE *out)
{
	for (size_t i = 0; i < table->n_columns; i++) {
		fprintf(out, "%s\"%s\": ", i > 0 ? separator : "", table->columns[i].key);
		print_json(&row[i], out);
	}
}

/* Numbers end at a column's right edge, strings begin at its left. */
static void
print_text_rows(const struct table *table, FILE *out)
{
	const struct table_column *columns = table->columns;
	size_t n = 0;

	while (n < table->n_columns && columns[n].heading != NULL)
		n++;
	for (size_t i = 0; i < n; i++) {
		int width = columns[i].is_string && i + 1 == n ? 0 : (int)table->widths[i];

		fprintf(out, columns[i].is_string ? "%-*s%s" : "%*s%s", width, columns[i].heading, i + 1 < n ? "  " : "\n");
	}
	for (size_t first = 0; first < table->n_cells; first += table->n_columns)
		for (size_t i = 0; i < n; i++) {
			const struct cell *cell = &table->cells[first + i];
			int blank = (int)(table->widths[i] - print_text(cell, NULL));

			if (!columns[i].is_string)
				fprintf(out, "%*s", blank, "");
			print_text(cell, out);
			if (columns[i].is_string && i + 1 < n)
				fprintf(out, "%*s", blank, "");
			fputs(i + 1 < n ? "  " : "\n", out);
		}
}

void
table_print_rows(const struct table *table, enum table_form form, FILE *out)
{
	const char *separator = "";

	if (form == TABLE_TEXT) {
		print_text_rows(table, out);
		return;
	}
	fputc('[', out);
	for (size_t first = 0; first < table->n_cells; first += table->n_columns) {
		fprintf(out, "%s\n  {", separator);
		print_json_row(table, &table->cells[first], ", ", out);
		fputc('}', out);
		separator = ",";
	}
	fputs("\n]\n", out);
}

void
table_print_record(const struct table *table, enum table_form form, FILE *out)
{
	int width = 0;

	if (form == TABLE_JSON) {
		fputs("{\n  ", out);
		print_json_row(table, table->cells, ",\n  ", out);
		fputs("\n}\n", out);
		return;
	}
	for (size_t i = 0; i < table->n_columns; i++) {
		int w = (int)strlen(table->columns[i].key);

		width = w > width ? w : width;
	}
	for (size_t i = 0; i < table->n_columns; i++) {
		fprintf(out, "%-*s  ", width, table->columns[i].key);
		print_text(&table->cells[i], out);
		fputc('\n', out);
	}
}
