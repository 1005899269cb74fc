/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state as JSON, for ckptctl and whoever calls it with --json. Names here
 * are an interface: add, do not change.
 */
#include <errno.h>
#include <jansson.h>

#include "ckpt_config.h"
#include "fs/control_serve.h"
#include "fs/options.h"

/* Takes the object; NULL: no memory was left to build it. */
static int dump(json_t *object, char **out)
{
	char *text = NULL;

	if (object)
		text = json_dumps(object, JSON_COMPACT);
	json_decref(object);
	if (!text)
		return -ENOMEM;
	*out = text;
	return 0;
}

/* Texts may quote names of files, which need not be UTF-8. */
static json_t *text_value(const char *s)
{
	json_t *v = json_string(s);
	char copy[512];
	size_t n = 0;

	if (v)
		return v;
	for (; *s && n + 1 < sizeof(copy); s++)
		copy[n++] = (unsigned char)*s < 0x80 ? *s : '?';
	copy[n] = '\0';
	return json_string(copy);
}

static json_t *int_value(uint64_t n)
{
	return json_integer((json_int_t)n);
}

static json_t *tier_object(const struct tier_status *t)
{
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:f, s:o, s:o, s:o}",
			 "name", t->name, "used", int_value(t->used), "size",
			 int_value(t->size), "rate", int_value(t->rate),
			 "behind_bytes", int_value(t->behind_bytes),
			 "behind_seconds", (double)t->behind_ns / 1e9, "seq",
			 int_value(t->seq), "error", text_value(t->error),
			 "note", text_value(t->note));
}

static json_t *tiers_array(const struct engine_status *st)
{
	json_t *tiers = json_array();

	for (int l = 0; l < 3; l++)
		if (st->tier[l].name[0])
			json_array_append_new(tiers, tier_object(&st->tier[l]));
	return tiers;
}

static json_t *counts_object(const struct engine_status *st)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
			 "open", int_value(st->n_open), "unsealed",
			 int_value(st->n_unsealed), "marks",
			 int_value(st->n_marks), "spilled",
			 int_value(st->n_spilled), "evicted",
			 int_value(st->n_evicted), "fetched",
			 int_value(st->n_fetched), "fetched_bytes",
			 int_value(st->fetched_bytes), "unflushed",
			 int_value(st->n_unflushed), "unflushed_bytes",
			 int_value(st->unflushed_bytes));
}

static json_t *metadata_object(const struct meta_usage *u)
{
	return json_pack("{s:o, s:o, s:o, s:o}", "memory", int_value(u->memory),
			 "accepted", int_value(u->accepted), "durable",
			 int_value(u->durable), "inodes",
			 int_value(u->n_inodes));
}

int status_json(struct fs *fs, char **out)
{
	struct engine_status st;

	engine_status(fs->engine, &st);
	return dump(json_pack("{s:s, s:i, s:o, s:s, s:o, s:o, s:s, s:o,"
			      " s:s, s:o, s:o, s:o, s:o, s:o, s:o}",
			      "version", CKPT_VERSION, "pid", (int)getpid(),
			      "mountpoint", text_value(fs->options->mountpoint),
			      "uuid", st.uuid, "epoch", int_value(st.epoch),
			      "start", text_value(st.start), "io",
			      st.passthrough ? "passthrough" : "served",
			      "io_note", text_value(st.io_note), "fsync",
			      level_name(st.fsync), "tiers", tiers_array(&st),
			      "counts", counts_object(&st), "metadata",
			      metadata_object(&st.meta), "nvme_dir",
			      text_value(st.nvme_dir), "dram_dir",
			      text_value(st.dram_dir), "remote",
			      text_value(st.remote)),
		    out);
}

/* ---- of a path -------------------------------------------------------- */

static int tree_json(struct fs *fs, uint64_t ino, char **out)
{
	struct tree_state t;
	json_t *levels;
	int err = engine_tree_state(fs->engine, ino, &t);

	if (err)
		return err;
	levels = json_object();
	for (enum level l = LEVEL_DRAM; l <= LEVEL_REMOTE; l++)
		json_object_set_new(levels, level_name(l),
				    json_pack("{s:o, s:o}", "files",
					      int_value(t.n_at[l]), "bytes",
					      int_value(t.bytes_at[l])));
	return dump(json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}",
			      "type", "tree", "level", level_name(t.level),
			      "files", int_value(t.n_files), "dirs",
			      int_value(t.n_dirs), "bytes", int_value(t.bytes),
			      "levels", levels, "writing",
			      int_value(t.n_writing), "seq", int_value(t.seq)),
		    out);
}

static int file_json(struct fs *fs, uint64_t ino, char **out)
{
	struct file_state st;
	int err = engine_file_state(fs->engine, ino, &st);

	if (err)
		return err;
	return dump(json_pack("{s:s, s:s, s:b, s:b, s:b, s:b, s:o, s:o}",
			      "type", "file", "level", level_name(st.level),
			      "writing", st.writing, "in_dram", st.in_dram,
			      "on_nvme", st.on_nvme, "on_remote", st.on_remote,
			      "size", int_value(st.size), "seq",
			      int_value(st.seq)),
		    out);
}

int path_json(struct fs *fs, uint64_t ino, char **out)
{
	struct inode_rec rec;
	int err;

	if (!ino)
		ino = META_ROOT_INO;
	err = view_inode(fs->view, ino, &rec);
	if (err)
		return err;
	return S_ISDIR(rec.mode) ? tree_json(fs, ino, out)
				 : file_json(fs, ino, out);
}
