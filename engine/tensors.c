/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the tensors of versions, from the cheapest place on: tables in
 * memory, versions known to be opaque, records, and the bytes themselves.
 */
#include "engine/tensors.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/tensors_room.h"

/* ---- sharded checkpoints ---------------------------------------------- */

static bool is_unresolved(const struct tensor *t)
{
	for (unsigned i = 0; i < t->n_pieces; i++)
		if (t->pieces[i].coding == TENSOR_NESTED ||
		    t->pieces[i].coding == TENSOR_BY_NAME)
			return true;
	return false;
}

static bool wants_resolving(const struct tensor_table *table)
{
	for (size_t i = 0; i < tensor_table_count(table); i++)
		if (is_unresolved(tensor_table_at(table, i)))
			return true;
	return false;
}

/* What nobody resolved has files as well. */
static int pin_the_rest(struct source_set *set,
			const struct tensor_table *table)
{
	struct reader_source ignored;

	for (size_t i = 0; i < tensor_table_count(table); i++) {
		const struct tensor *t = tensor_table_at(table, i);

		for (unsigned p = 0; p < t->n_pieces; p++) {
			int r = source_set_open(set, t->pieces[p].file,
						&ignored);

			if (r < 0 && r != -ENOENT)
				return r;
		}
	}
	return 0;
}

static int take_pins(struct tensors *t, const struct source_set *set)
{
	const struct pin *pins = source_set_pins(set, &t->n_pins);

	t->pins = calloc(t->n_pins + 1, sizeof(*t->pins));
	for (size_t i = 0; t->pins && i < t->n_pins; i++) {
		t->pins[i] = pins[i];
		if (!pins[i].file)
			continue;
		t->pins[i].file = strdup(pins[i].file);
		if (!t->pins[i].file)
			return -ENOMEM;
	}
	if (t->pins)
		return 0;
	t->n_pins = 0;
	return -ENOMEM;
}

/* Takes table. */
static int complete(struct tensors *t, struct tensor_table *table)
{
	struct pin self = { .ino = t->ino, .version = t->version };
	struct source_set *set;
	int r = source_set_new(t->e, t->ino, &self, 1, true, &set);

	t->table = table;
	if (r < 0)
		return r;
	if (wants_resolving(table)) {
		r = tensor_table_resolve(table, source_set_open, set,
					 &t->table);
		if (!r)
			tensor_table_free(table);
	}
	if (!r)
		r = pin_the_rest(set, t->table);
	if (!r)
		r = take_pins(t, set);
	source_set_free(set);
	return r;
}

/* ---- asking ----------------------------------------------------------- */

static int make(struct engine *e, uint64_t ino, uint64_t version,
		struct tensors **out)
{
	struct tensors *t = calloc(1, sizeof(*t));
	struct tensor_table *table;
	int r;

	if (!t)
		return -ENOMEM;
	*t = (struct tensors){
		.e = e, .ino = ino, .version = version, .refs = 1
	};
	r = tensors_from_record(e, version, &table);
	if (r < 0) /* whatever is wrong with it */
		r = tensors_scan(e, ino, version, true, &table);
	if (!r)
		r = complete(t, table);
	if (r < 0) {
		tensors_destroy(t);
		return r;
	}
	tensors_keep(e->tensors, t);
	*out = t;
	return 0;
}

int tensors_current(struct engine *e, uint64_t ino, uint64_t *version)
{
	struct inode_rec rec;
	int r;

	(void)settle(e); /* what was closed is a version */
	r = view_inode(meta_accepted(e->meta), ino, &rec);

	if (r < 0)
		return r == -ENOENT ? -ESTALE : r;
	*version = rec.version;
	return S_ISREG(rec.mode) && rec.version && rec.size ? 0 : -ENOMSG;
}

int tensors_open(struct engine *e, uint64_t ino, uint64_t version,
		 struct tensors **out)
{
	int r = version ? 0 : tensors_current(e, ino, &version);
	struct tensors *t;

	if (r < 0)
		return r;
	if (tensors_opaque(e->tensors, version))
		return -ENOMSG;
	t = tensors_kept(e->tensors, version);
	if (!t)
		r = make(e, ino, version, &t);
	if (!r)
		*out = t;
	return r;
}

int tensors_any(struct engine *e, uint64_t ino, bool *out)
{
	struct tensors *t = NULL;
	uint64_t version;
	int r = tensors_current(e, ino, &version);

	if (!r && !meta_tensors(e->meta, version, NULL, NULL)) {
		*out = true;
		return 0;
	}
	if (!r)
		r = tensors_open(e, ino, version, &t);
	tensors_put(t);
	*out = !r;
	return r == -ENOMSG ? 0 : r;
}
