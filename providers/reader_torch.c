/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of torch.save since PyTorch 1.6, and TorchScript archives: a zip with
 * a folder of any name (ROOT) and in it
 *
 *	data.pkl	the object; storages stand in it by key
 *	data/KEY	the bytes of a storage, never compressed
 *	byteorder	"little" or "big"; older files lack it: little
 *	constants.pkl, constants/KEY
 *			TorchScript: tensors of the code; listed behind the
 *			others, as "constants.N"
 *	version, .format_version, .storage_alignment, .data/, code/, …
 *			not looked at: whatever the alignment, the zip says
 *			where bytes lie
 *
 * What came before the zip (a tar, or pickles in a row) is opaque. How tensors
 * are named and which are left out: reader_torch_walk.c. No bytes of storages
 * are read; of each that has tensors, the local header is.
 *
 * The pickle and the directory are gone when tensors are handed out, so that
 * they and the caller's table never are in memory together.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_formats.h"
#include "providers/reader_torch.h"
#include "providers/reader_zip.h"

#define ZIP_MEMORY_MAX (READER_MEMORY_MAX / 8)
#define PICKLE_MEMORY_MAX (READER_MEMORY_MAX / 2)
#define CATALOG_MEMORY_MAX (READER_MEMORY_MAX / 4)

/* ROOT is what a file system has as a file's name; keys are numbers. */
#define ROOT_MAX 255
#define PATH_LEN_MAX 400

struct archive {
	struct zip *zip;
	const char *root; /* the zip's */
	size_t root_len;
	const char *folder; /* of storages, in root: "data", "constants" */
	uint64_t *places;   /* of members, once asked for; 0: not yet */
};

/* ROOT/a/b, or ROOT/a if b is NULL. */
static bool find(const struct archive *ar, const char *a, const char *b,
		 size_t b_len, size_t *i)
{
	char path[PATH_LEN_MAX];
	size_t a_len = strlen(a), len = ar->root_len;

	if (len + a_len + b_len + 2 > sizeof(path))
		return false;
	memcpy(path, ar->root, len);
	path[len++] = '/';
	memcpy(path + len, a, a_len);
	len += a_len;
	if (b) {
		path[len++] = '/';
		memcpy(path + len, b, b_len);
		len += b_len;
	}
	return zip_find(ar->zip, path, len, i);
}

static int find_storage(void *arg, struct pickle_text key, uint64_t *off,
			uint64_t *len)
{
	struct archive *ar = arg;
	size_t i;
	int err;

	if (!find(ar, ar->folder, key.at, key.len, &i) ||
	    zip_at(ar->zip, i)->method != ZIP_STORED)
		return -ENOMSG;
	if (!ar->places[i]) {
		err = zip_place(ar->zip, i, &ar->places[i]);
		if (err)
			return err;
	}
	*off = ar->places[i];
	*len = zip_at(ar->zip, i)->size;
	return 0;
}

/* PyTorch, too, takes ROOT from the first member. */
static int find_root(struct archive *ar)
{
	const struct zip_member *first;
	const char *slash;

	if (!zip_count(ar->zip))
		return -ENOMSG;
	first = zip_at(ar->zip, 0);
	slash = memchr(first->name, '/', first->name_len);
	if (!slash || slash - first->name > ROOT_MAX)
		return -ENOMSG;
	ar->root = first->name;
	ar->root_len = (size_t)(slash - first->name);
	return 0;
}

static int is_swapped(const struct archive *ar, bool *out)
{
	char order[8];
	size_t i, len;
	int err;

	*out = false;
	if (!find(ar, "byteorder", NULL, 0, &i))
		return 0;
	err = zip_head(ar->zip, i, order, sizeof(order), &len);
	if (err)
		return err;
	if (len == 3 && !memcmp(order, "big", 3))
		*out = true;
	else if (len != 6 || memcmp(order, "little", 6) != 0)
		return -ENOMSG;
	return 0;
}

/* One pickle, if the archive has it; its storages are in `folder`. */
static int scan_pickle(struct archive *ar, const char *name, const char *folder,
		       const char *prefix, struct catalog *to)
{
	CLEANUP(pickle_freep) struct pickle *p = NULL;
	CLEANUP(bytes_freep) uint8_t *buf = NULL;
	struct torch_storages storages = { .find = find_storage, .arg = ar };
	size_t i, len;
	int err;

	if (!find(ar, name, NULL, 0, &i))
		return 0;
	if (zip_at(ar->zip, i)->method != ZIP_STORED)
		return -ENOMSG;
	ar->folder = folder;
	err = is_swapped(ar, &storages.swapped);
	if (!err)
		err = zip_read(ar->zip, i, PICKLE_MEMORY_MAX / 2, &buf, &len);
	if (!err)
		err = pickle_parse(buf, len, PICKLE_MEMORY_MAX - len, &p);
	return err ? err : torch_walk(p, prefix, &storages, to);
}

static int scan_archive(struct archive *ar, struct catalog *to)
{
	size_t i;
	int err = find_root(ar);

	if (!err && !find(ar, "data.pkl", NULL, 0, &i))
		err = -ENOMSG;
	if (!err)
		err = scan_pickle(ar, "data.pkl", "data", NULL, to);
	if (!err)
		err = scan_pickle(ar, "constants.pkl", "constants", "constants",
				  to);
	return err;
}

static int collect(const struct reader_source *source, struct catalog *to)
{
	struct archive ar = { .zip = NULL };
	int err = zip_open(source, ZIP_MEMORY_MAX, &ar.zip);

	if (err)
		return err;
	ar.places = calloc(zip_count(ar.zip) + 1, sizeof(*ar.places));
	err = ar.places ? scan_archive(&ar, to) : -ENOMEM;
	free(ar.places);
	zip_free(ar.zip);
	return err;
}

static int scan(const struct reader_source *source, tensor_found *found,
		void *arg)
{
	CLEANUP(catalog_freep) struct catalog *c = NULL;
	int err = catalog_new(CATALOG_MEMORY_MAX, &c);

	if (!err)
		err = collect(source, c);
	return err ? err : catalog_report(c, found, arg);
}

static bool knows(const uint8_t *head, size_t len, const char *name)
{
	(void)name;
	return len >= 4 && !memcmp(head, "PK\3\4", 4);
}

const struct reader_ops reader_torch = {
	.name = "torch",
	.knows = knows,
	.scan = scan,
};
