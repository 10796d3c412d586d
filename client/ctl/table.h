/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Table: rows of typed cells, printed as aligned text or as JSON.  Both forms are made from the same cells, so they cannot say different
 * things.
 *
 * Strings may come from anybody who can reach slabd: in text a control character or what is no UTF-8 shows as "?"; JSON escapes them.
 */
#ifndef SLAB_CLIENT_CTL_TABLE_H
#define SLAB_CLIENT_CTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum table_form {
	TABLE_TEXT,
	TABLE_JSON,
};

struct table_column {
	const char *key;     /* in JSON, and in a record's text */
	const char *heading; /* above a column of text; NULL: JSON only, and so are the columns after it */
	bool is_string;
};

struct table;

/* columns are borrowed until table_free().  NULL: no memory. */
struct table *table_new(const struct table_column *columns, size_t n_columns);
void table_free(struct table *table);

/* The next cell, row by row; the string is copied.  0 or -ENOMEM. */
int table_add_number(struct table *table, uint64_t number);
int table_add_string(struct table *table, const char *string);
/* A number that text shows as that. */
int table_add_shown(struct table *table, uint64_t number, const char *text);

/* Headings and a line a row; in JSON an array of objects. */
void table_print_rows(const struct table *table, enum table_form form, FILE *out);
/* The only row, a line a cell; in JSON an object. */
void table_print_record(const struct table *table, enum table_form form, FILE *out);

#endif
