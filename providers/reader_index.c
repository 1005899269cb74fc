/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a checkpoint in several files (model.safetensors.index.json,
 * pytorch_model.bin.index.json): which tensor lies in which of them. What it
 * is, that file knows: tensor_table_resolve().
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_formats.h"
#include "providers/reader_json.h"

#define INDEX_MAX 100000000

struct scan {
	tensor_found *found;
	void *arg;
	bool has_map;
	char key[TENSOR_NAME_MAX + 1];
	char name[TENSOR_NAME_MAX + 1];
	char file[TENSOR_NAME_MAX + 1];
};

static int map_member(struct jscan *j, const char *key, void *arg)
{
	struct scan *s = arg;
	struct tensor_piece piece = {
		.file = s->file,
		.coding = TENSOR_BY_NAME,
	};
	struct tensor t = {
		.name = key,
		.type = TENSOR_UNKNOWN,
		.pieces = &piece,
		.n_pieces = 1,
	};
	int rc = jscan_string(j, s->file, sizeof(s->file));

	return rc ? rc : s->found(s->arg, &t);
}

static int index_member(struct jscan *j, const char *key, void *arg)
{
	struct scan *s = arg;

	if (strcmp(key, "weight_map") != 0)
		return jscan_skip(j);
	if (s->has_map)
		return -ENOMSG;
	s->has_map = true;
	return jscan_object(j, s->name, sizeof(s->name), map_member, s);
}

static void scan_freep(struct scan **s)
{
	free(*s);
}

static int index_scan(const struct reader_source *source, tensor_found *found,
		      void *arg)
{
	CLEANUP(scan_freep) struct scan *s = calloc(1, sizeof(*s));
	CLEANUP(cursor_fini) struct reader_cursor c = { 0 };
	struct jscan j = { .c = &c };
	int rc;

	if (!s)
		return -ENOMEM;
	if (source->size > INDEX_MAX)
		return -ENOMSG;
	s->found = found;
	s->arg = arg;
	rc = cursor_init(&c, source, 0, source->size);
	if (!rc)
		rc = jscan_object(&j, s->key, sizeof(s->key), index_member, s);
	if (!rc)
		rc = jscan_end(&j);
	if (!rc && !s->has_map)
		rc = -ENOMSG;
	return rc;
}

static bool index_knows(const uint8_t *head, size_t len, const char *name)
{
	static const char ending[] = ".index.json";
	size_t name_len = strlen(name), at = 0;

	if (name_len < sizeof(ending) ||
	    strcmp(name + name_len - (sizeof(ending) - 1), ending) != 0)
		return false;
	while (at < len && strchr(" \t\r\n", head[at]) && head[at])
		at++;
	return at < len && head[at] == '{';
}

const struct reader_ops reader_index = {
	.name = "index",
	.knows = index_knows,
	.scan = index_scan,
};
