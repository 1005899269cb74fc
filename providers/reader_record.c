/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table as a record, byte by byte as in metadata/FORMAT.md (`tensor`). What
 * most pieces have in common (no file of their own, the whole tensor, C order)
 * is a flag. Decoding builds the table through the same door as a scan, which
 * checks everything but the record's own syntax.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_build.h"
#include "providers/reader_bytes.h"
#include "providers/reader_check.h"
#include "providers/reader_formats.h"

#define SHARED 1
#define SWAPPED 1
#define WHOLE 2
#define C_ORDER 4

struct buffer {
	uint8_t *p;
	size_t len, room;
	bool failed; /* no memory; sticky */
};

static void put_bytes(struct buffer *b, const void *from, size_t len)
{
	size_t room = b->room;
	uint8_t *more;

	if (b->failed)
		return;
	while (room - b->len < len)
		room = room ? room * 2 : 4096;
	if (room != b->room) {
		more = realloc(b->p, room);
		if (!more) {
			b->failed = true;
			return;
		}
		b->p = more;
		b->room = room;
	}
	if (len)
		memcpy(b->p + b->len, from, len);
	b->len += len;
}

static void put(struct buffer *b, uint64_t v, size_t n)
{
	uint8_t bytes[8];

	put_le(bytes, v, n);
	put_bytes(b, bytes, n);
}

static void put_text(struct buffer *b, const char *s, size_t n)
{
	size_t len = s ? strlen(s) : 0;

	put(b, len, n);
	put_bytes(b, s, len);
}

static void put_dims(struct buffer *b, const uint64_t *dims, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		put(b, dims[i], 8);
}

/* The distinct files of the pieces, sorted. */
struct files {
	const char **names;
	size_t n;
};

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int files_collect(const struct tensor_table *table, struct files *f)
{
	size_t n = 0, n_pieces = 0, at = 0;

	for (size_t i = 0; i < tensor_table_count(table); i++)
		n_pieces += tensor_table_at(table, i)->n_pieces;
	f->names = calloc(n_pieces + 1, sizeof(char *));
	if (!f->names)
		return -ENOMEM;
	for (size_t i = 0; i < tensor_table_count(table); i++) {
		const struct tensor *t = tensor_table_at(table, i);

		for (unsigned j = 0; j < t->n_pieces; j++) {
			const char *file = t->pieces[j].file;

			/* Neighbours lie mostly in one file. */
			if (file && (!n || strcmp(f->names[n - 1], file) != 0))
				f->names[n++] = file;
		}
	}
	qsort(f->names, n, sizeof(char *), by_text);
	for (size_t i = 0; i < n; i++)
		if (!at || strcmp(f->names[at - 1], f->names[i]) != 0)
			f->names[at++] = f->names[i];
	f->n = at;
	return 0;
}

static void files_fini(struct files *f)
{
	free(f->names);
}

/* 0: the file itself; else its place in the list, from 1. */
static uint64_t file_number(const struct files *f, const char *name)
{
	const char **found;

	if (!name)
		return 0;
	found = bsearch(&name, f->names, f->n, sizeof(char *), by_text);
	return (uint64_t)(found - f->names) + 1;
}

static bool is_whole(const struct tensor *t, const struct tensor_piece *p)
{
	return !memcmp(p->shape, t->shape, t->n_dims * sizeof(*p->shape));
}

static bool is_c_order(const struct tensor *t, const struct tensor_piece *p)
{
	uint64_t strides[TENSOR_DIMS_MAX];

	return !tensor_c_strides(p->shape, t->n_dims, strides) &&
	       !memcmp(strides, p->stride, t->n_dims * sizeof(*strides));
}

static void put_piece(struct buffer *b, const struct tensor *t,
		      const struct tensor_piece *p, uint64_t file)
{
	bool whole = !t->n_dims || is_whole(t, p);
	bool c_order = p->coding != TENSOR_PLAIN || !t->n_dims ||
		       is_c_order(t, p);

	put(b, p->coding, 1);
	put(b,
	    (p->swapped ? SWAPPED : 0) | (whole ? WHOLE : 0) |
		    (c_order ? C_ORDER : 0),
	    1);
	put(b, file, 4);
	put(b, p->off, 8);
	put(b, p->len, 8);
	if (!whole) {
		put_dims(b, p->start, t->n_dims);
		put_dims(b, p->shape, t->n_dims);
	}
	if (!c_order)
		put_dims(b, p->stride, t->n_dims);
}

static void put_tensor(struct buffer *b, const struct tensor *t,
		       const struct files *files)
{
	put_text(b, t->name, 2);
	put(b, t->type, 1);
	put(b, t->shared ? SHARED : 0, 1);
	put_text(b, t->type_name, 1);
	put(b, t->n_dims, 1);
	put_dims(b, t->shape, t->n_dims);
	put(b, t->n_pieces, 4);
	for (unsigned i = 0; i < t->n_pieces; i++)
		put_piece(b, t, &t->pieces[i],
			  file_number(files, t->pieces[i].file));
}

int tensor_table_encode(const struct tensor_table *table, uint8_t **out,
			size_t *out_len)
{
	CLEANUP(files_fini) struct files files = { 0 };
	struct buffer b = { 0 };
	int rc = files_collect(table, &files);

	if (rc)
		return rc;
	put(&b, TENSOR_RECORD_VERSION, 1);
	put_text(&b, tensor_table_format(table), 1);
	put(&b, files.n, 4);
	for (size_t i = 0; i < files.n; i++)
		put_text(&b, files.names[i], 2);
	put(&b, tensor_table_count(table), 4);
	for (size_t i = 0; i < tensor_table_count(table); i++)
		put_tensor(&b, tensor_table_at(table, i), &files);
	if (b.failed) {
		free(b.p);
		return -ENOMEM;
	}
	*out = b.p;
	*out_len = b.len;
	return 0;
}

/* A record that is read, and what of it is used again for each tensor. */
struct input {
	const uint8_t *p;
	size_t left;
	char **files;
	size_t n_files;
	struct tensor_piece *pieces; /* room for n_pieces, and their dims */
	uint64_t *dims;
	size_t n_pieces;
	char name[TENSOR_NAME_MAX + 1];
	char type_name[UINT8_MAX + 1];
	uint64_t shape[TENSOR_DIMS_MAX];
};

static void input_fini(struct input *in)
{
	for (size_t i = 0; i < in->n_files; i++)
		free(in->files[i]);
	free(in->files);
	free(in->pieces);
	free(in->dims);
}

static int get(struct input *in, size_t n, uint64_t *out)
{
	if (in->left < n)
		return -EBADMSG;
	*out = get_le(in->p, n);
	in->p += n;
	in->left -= n;
	return 0;
}

static int get_text(struct input *in, size_t n, size_t room, char *buf)
{
	uint64_t len;
	int rc = get(in, n, &len);

	if (rc)
		return rc;
	if (len >= room || in->left < len || memchr(in->p, 0, len))
		return -EBADMSG;
	memcpy(buf, in->p, len);
	buf[len] = '\0';
	in->p += len;
	in->left -= len;
	return 0;
}

static int get_dims(struct input *in, uint64_t *dims, unsigned n)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < n; i++)
		rc = get(in, 8, &dims[i]);
	return rc;
}

static int get_files(struct input *in)
{
	char name[TENSOR_NAME_MAX + 1];
	uint64_t n;
	int rc = get(in, 4, &n);

	if (rc)
		return rc;
	if (n > in->left / 3) /* a length and a byte of name */
		return -EBADMSG;
	in->files = calloc(n + 1, sizeof(char *));
	if (!in->files)
		return -ENOMEM;
	while (in->n_files < n) {
		rc = get_text(in, 2, sizeof(name), name);
		if (rc)
			return rc;
		in->files[in->n_files] = strdup(name);
		if (!in->files[in->n_files])
			return -ENOMEM;
		in->n_files++;
	}
	return 0;
}

#define PIECE_LEN_MIN 22

static int pieces_room(struct input *in, uint64_t n)
{
	if (n > in->left / PIECE_LEN_MIN)
		return -EBADMSG;
	if (n <= in->n_pieces)
		return 0;
	if (n > READER_MEMORY_MAX / sizeof(*in->pieces) / 2)
		return -EBADMSG;
	free(in->pieces);
	free(in->dims);
	in->n_pieces = 0;
	in->pieces = calloc(n, sizeof(*in->pieces));
	/* They are copied as they stand in the record: no more than that. */
	in->dims = malloc(in->left + 8);
	if (!in->pieces || !in->dims)
		return -ENOMEM;
	in->n_pieces = n;
	return 0;
}

/* n_dims numbers of the record at *dims, which moves on. */
static int get_box(struct input *in, unsigned n_dims, uint64_t **dims,
		   const uint64_t **out)
{
	int rc = get_dims(in, *dims, n_dims);

	*out = *dims;
	*dims += n_dims;
	return rc;
}

static int get_piece(struct input *in, unsigned n_dims, uint64_t **dims,
		     struct tensor_piece *p)
{
	uint64_t coding, flags, file;
	int rc;

	*p = (struct tensor_piece){ 0 };
	if ((rc = get(in, 1, &coding)) || (rc = get(in, 1, &flags)) ||
	    (rc = get(in, 4, &file)) || (rc = get(in, 8, &p->off)) ||
	    (rc = get(in, 8, &p->len)))
		return rc;
	if (coding > TENSOR_BY_NAME || file > in->n_files ||
	    (flags & ~(uint64_t)(SWAPPED | WHOLE | C_ORDER)) != 0)
		return -EBADMSG;
	p->coding = (enum tensor_coding)coding;
	p->swapped = flags & SWAPPED;
	p->file = file ? in->files[file - 1] : NULL;
	if (!(flags & WHOLE) && ((rc = get_box(in, n_dims, dims, &p->start)) ||
				 (rc = get_box(in, n_dims, dims, &p->shape))))
		return rc;
	if (!(flags & C_ORDER))
		rc = get_box(in, n_dims, dims, &p->stride);
	return rc;
}

static int get_pieces(struct input *in, struct tensor *t)
{
	uint64_t n, *dims;
	int rc = get(in, 4, &n);

	if (!rc)
		rc = pieces_room(in, n);
	dims = in->dims;
	for (uint64_t i = 0; !rc && i < n; i++)
		rc = get_piece(in, t->n_dims, &dims, &in->pieces[i]);
	if (rc)
		return rc;
	t->pieces = in->pieces;
	t->n_pieces = (unsigned)n;
	return 0;
}

static int get_tensor(struct input *in, struct tensor *t)
{
	uint64_t type, flags, n_dims;
	int rc;

	if ((rc = get_text(in, 2, sizeof(in->name), in->name)) ||
	    (rc = get(in, 1, &type)) || (rc = get(in, 1, &flags)) ||
	    (rc = get_text(in, 1, sizeof(in->type_name), in->type_name)) ||
	    (rc = get(in, 1, &n_dims)))
		return rc;
	if (type >= TENSOR_TYPES || (flags & ~(uint64_t)SHARED) != 0 ||
	    n_dims > TENSOR_DIMS_MAX)
		return -EBADMSG;
	*t = (struct tensor){
		.name = in->name,
		.type = (enum tensor_type)type,
		.type_name = in->type_name[0] ? in->type_name : NULL,
		.n_dims = (unsigned)n_dims,
		.shape = in->shape,
		.shared = flags & SHARED,
	};
	rc = get_dims(in, in->shape, t->n_dims);
	return rc ? rc : get_pieces(in, t);
}

static int get_head(struct input *in, const struct reader_ops **out)
{
	char name[UINT8_MAX + 1];
	uint64_t version;
	int rc = get(in, 1, &version);

	if (!rc && version > TENSOR_RECORD_VERSION)
		return -EOPNOTSUPP;
	if (!rc && version != TENSOR_RECORD_VERSION)
		return -EBADMSG;
	if (!rc)
		rc = get_text(in, 1, sizeof(name), name);
	if (rc)
		return rc;
	for (size_t i = 0; reader_formats[i]; i++)
		if (!strcmp(reader_formats[i]->name, name)) {
			*out = reader_formats[i];
			return 0;
		}
	return -EOPNOTSUPP;
}

static int get_tensors(struct input *in, struct tensor_table *table)
{
	struct tensor t;
	uint64_t n;
	int rc = get(in, 4, &n);

	for (uint64_t i = 0; !rc && i < n; i++) {
		rc = get_tensor(in, &t);
		if (!rc)
			rc = tensor_table_add(table, &t);
	}
	if (!rc && in->left)
		rc = -EBADMSG;
	return rc ? rc : tensor_table_finish(table);
}

int tensor_table_decode(const uint8_t *record, size_t len,
			struct tensor_table **out)
{
	CLEANUP(tensor_table_freep) struct tensor_table *table = NULL;
	CLEANUP(input_fini) struct input in = { .p = record, .left = len };
	const struct reader_ops *ops;
	int rc = get_head(&in, &ops);

	if (!rc)
		rc = get_files(&in);
	if (!rc)
		rc = tensor_table_new(ops, UINT64_MAX, &table);
	if (!rc)
		rc = get_tensors(&in, table);
	if (rc == -ENOMSG || rc == -E2BIG)
		return -EBADMSG;
	if (!rc)
		*out = MOVE(table);
	return rc;
}
