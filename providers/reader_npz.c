/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .npz of numpy.savez and savez_compressed: a zip of .npy files, each named for
 * its array. A stored one's elements can be read in place; a deflated one is
 * inflated no further than its header takes, and is then known as what
 * [off, off + len) of the file inflates to.
 *
 * Members that are not .npy, or hold no numbers (objects, structures, strings),
 * are left out. If none is .npy the zip is another format's.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_check.h"
#include "providers/reader_formats.h"
#include "providers/reader_npy.h"
#include "providers/reader_zip.h"

#define ZIP_MEMORY_MAX (READER_MEMORY_MAX / 8)

struct npz {
	struct zip *zip;
	uint8_t *header; /* NPY_HEADER_MAX */
	size_t n_arrays;
	tensor_found *found;
	void *arg;
};

/* The name of the array that a member holds; 0 if it is none. */
static size_t array_name(const struct zip_member *m)
{
	if (m->name_len <= 4 ||
	    memcmp(m->name + m->name_len - 4, ".npy", 4) != 0 ||
	    !utf8_valid(m->name, m->name_len) ||
	    m->name_len - 4 > TENSOR_NAME_MAX)
		return 0;
	return m->name_len - 4;
}

static int read_header(struct npz *z, size_t i, struct npy_header *out)
{
	size_t len, got;
	int err = zip_head(z->zip, i, z->header, NPY_PREFIX_LEN, &got);

	if (err)
		return err;
	if (got != NPY_PREFIX_LEN)
		return -ENOMSG;
	err = npy_header_len(z->header, &len);
	if (!err)
		err = zip_head(z->zip, i, z->header, len, &got);
	if (err)
		return err;
	return got == len ? npy_header_parse(z->header, len, out) : -ENOMSG;
}

static int report(struct npz *z, const char *name, const struct npy_header *h,
		  const struct tensor_piece *piece)
{
	const struct tensor t = {
		.name = name,
		.type = h->type,
		.n_dims = h->n_dims,
		.shape = h->shape,
		.pieces = piece,
		.n_pieces = h->data_len ? 1 : 0,
	};

	return z->found(z->arg, &t);
}

static int found_array(struct npz *z, size_t i, const struct npy_header *h)
{
	const struct zip_member *m = zip_at(z->zip, i);
	struct tensor_piece piece = {
		.coding = TENSOR_PLAIN,
		.swapped = h->swapped,
		.len = h->data_len,
		.stride = h->stride,
	};
	char name[TENSOR_NAME_MAX + 1];
	size_t name_len = array_name(m);
	int err = zip_place(z->zip, i, &piece.off);

	if (err)
		return err;
	if (m->size < h->len || m->size - h->len < h->data_len)
		return -ENOMSG;
	if (m->method == ZIP_STORED) {
		piece.off += h->len;
	} else {
		piece.coding = TENSOR_DEFLATE;
		piece.len = m->packed;
		piece.swapped = false;
		piece.stride = NULL;
	}
	memcpy(name, m->name, name_len);
	name[name_len] = '\0';
	return report(z, name, h, &piece);
}

/* One that is broken as a zip's member spoils the file; one that NumPy alone
 * understands is left out. */
static int scan_member(struct npz *z, size_t i)
{
	struct npy_header h;
	uint64_t off;
	int err;

	if (!array_name(zip_at(z->zip, i)))
		return 0;
	z->n_arrays++;
	err = zip_place(z->zip, i, &off);
	if (err)
		return err;
	err = read_header(z, i, &h);
	if (err == -ENOMSG)
		return 0;
	return err ? err : found_array(z, i, &h);
}

static int scan(const struct reader_source *source, tensor_found *found,
		void *arg)
{
	struct npz z = { .found = found, .arg = arg };
	int err = zip_open(source, ZIP_MEMORY_MAX, &z.zip);

	if (err)
		return err;
	z.header = malloc(NPY_HEADER_MAX);
	if (!z.header)
		err = -ENOMEM;
	for (size_t i = 0; !err && i < zip_count(z.zip); i++)
		err = scan_member(&z, i);
	if (!err && !z.n_arrays)
		err = -ENOMSG;
	free(z.header);
	zip_free(z.zip);
	return err;
}

static bool knows(const uint8_t *head, size_t len, const char *name)
{
	(void)name;
	return len >= 4 && !memcmp(head, "PK\3\4", 4);
}

const struct reader_ops reader_npz = {
	.name = "npz",
	.knows = knows,
	.scan = scan,
};
