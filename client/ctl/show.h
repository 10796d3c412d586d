/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies as tables: a reply's fields become a table's columns by the protocol's own field list, so a field added to ops.def shows up by
 * itself.
 */
#ifndef SLAB_CLIENT_CTL_SHOW_H
#define SLAB_CLIENT_CTL_SHOW_H

#include <stddef.h>

#include "client/ctl/table.h"
#include "proto/proto.h"

/* A reply's field that text shows in this place, under this heading; the others follow, in JSON only. */
struct show_view {
	size_t off;
	const char *heading;
};

#define SHOW(reply, field) offsetof(struct proto_##reply##_reply, field)

/* How replies to an op are shown. */
struct show {
	enum proto_op op;
	const struct show_view *view;  /* ends with a heading of NULL; NULL: text shows all */
	const char *const *flag_names; /* of the field "flags" or "may", from bit 0; ends with NULL */
};

struct show_table {
	const struct show *show;
	size_t n;
	struct table_column columns[PROTO_MAX_VALUES];
	const struct proto_field *shown[PROTO_MAX_VALUES]; /* by column */
	struct table *table;
};

/* Memory running out ends the program. */
void show_init(struct show_table *t, const struct show *show);
void show_deinit(struct show_table *t);
void show_add(struct show_table *t, const union proto_reply *reply);

#endif
