/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `.metadata` of torch.distributed.checkpoint (also `__RANK.metadata`,
 * where ranks do not coordinate): a pickled Metadata with
 *
 *	state_dict_metadata	name -> TensorStorageMetadata(properties, size,
 *				chunks: [ChunkStorageMetadata(offsets, sizes)])
 *	storage_data		MetadataIndex(fqn, offset, index) ->
 *				_StorageInfo(relative_path, offset, length)
 *
 * Each chunk is a torch.save of its own within a .distcp file: one piece that
 * is TENSOR_NESTED. Those files are not looked at here.
 *
 * Left out: tensors of which chunks are missing (ranks that do not coordinate
 * know their own only) or went through an extension (compressed), types that
 * have no number here, and BytesStorageMetadata. Opaque: chunks that overlap or
 * leave their tensor; and a length that is too short for a torch.save, which is
 * what the writer's safetensors variant leaves behind (its files are
 * safetensors, and are listed as such).
 *
 * Names and paths are used where they lie in the pickle: the byte behind a text
 * is the next opcode, done with once the pickle is parsed, so a NUL can take
 * its place.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_formats.h"
#include "providers/reader_torch.h"
#include "providers/reader_zip.h"

#define PICKLE_MEMORY_MAX (READER_MEMORY_MAX / 2)
/* Pairs of chunks that are compared, in all of a file. */
#define PAIRS_MAX 200000000
#define FILE_LEN_MAX 4096

struct stored {
	struct pickle_text fqn;
	uint32_t offset; /* a tuple */
	uint32_t info;
};

struct dcp {
	uint8_t *buf;
	size_t len;
	struct pickle *p;
	struct stored *stored; /* sorted by fqn and offset */
	size_t n_stored;
	uint64_t pairs;
	uint64_t n_pieces;
	tensor_found *found;
	void *arg;
};

/* One tensor on its way out. */
struct sharded {
	struct tensor t;
	uint64_t shape[TENSOR_DIMS_MAX];
	struct tensor_piece *pieces;
	uint64_t *dims; /* of pieces: start, shape, … */
	unsigned n;
	bool partly; /* something of it is not here */
};

/* NULL if it has NULs, or too much. */
static const char *terminated(struct dcp *d, struct pickle_text text,
			      size_t most)
{
	uint8_t *at = d->buf + ((const uint8_t *)text.at - d->buf);

	if (!text.len || text.len > most || memchr(at, 0, text.len))
		return NULL;
	at[text.len] = '\0';
	return text.at;
}

/* The attribute of an object that was built from a dict. */
static uint32_t attribute(const struct pickle *p, uint32_t ref,
			  const char *name)
{
	return pickle_get(p, pickle_state(p, ref), name);
}

static bool is_class(const struct pickle *p, uint32_t ref, const char *want)
{
	struct pickle_text module, name;

	return pickle_kind(p, ref) == PICKLE_NEWOBJ &&
	       pickle_global(p, pickle_call(p, ref), &module, &name) &&
	       pickle_text_is(name, want);
}

/* ---- where chunks are ---- */

static int compare_text(struct pickle_text a, struct pickle_text b)
{
	int d = 0;

	if (a.at != b.at)
		d = memcmp(a.at, b.at, a.len < b.len ? a.len : b.len);
	return d ? d : (a.len > b.len) - (a.len < b.len);
}

static int compare_tuples(const struct pickle *p, uint32_t a, uint32_t b)
{
	uint32_t a_len = pickle_tuple_len(p, a), b_len = pickle_tuple_len(p, b);

	if (a == b)
		return 0;
	for (uint32_t i = 0; i < a_len && i < b_len; i++) {
		uint64_t x = 0, y = 0;

		if (!pickle_size_at(p, a, i, &x) ||
		    !pickle_size_at(p, b, i, &y) || x != y)
			return (x > y) - (x < y);
	}
	return (a_len > b_len) - (a_len < b_len);
}

static int by_key(const void *a, const void *b, void *arg)
{
	const struct stored *x = a, *y = b;
	int d = compare_text(x->fqn, y->fqn);

	return d ? d : compare_tuples(arg, x->offset, y->offset);
}

/* An index without an offset is one of bytes, not of a tensor. */
static int add_stored(struct dcp *d, uint32_t key, uint32_t info)
{
	struct stored *s = &d->stored[d->n_stored];
	uint64_t dims[TENSOR_DIMS_MAX];
	unsigned n;

	if (!is_class(d->p, key, "MetadataIndex") ||
	    !pickle_text(d->p, attribute(d->p, key, "fqn"), &s->fqn))
		return -ENOMSG;
	s->offset = torch_size(d->p, attribute(d->p, key, "offset"));
	s->info = info;
	if (s->offset && !torch_dims(d->p, s->offset, dims, &n))
		d->n_stored++;
	return 0;
}

static int read_stored(struct dcp *d, uint32_t storage_data)
{
	struct pickle_iter it;
	uint32_t key, info;
	size_t n = 0;
	int err = 0;

	if (pickle_kind(d->p, storage_data) != PICKLE_DICT)
		return -ENOMSG;
	pickle_iter_init(&it, d->p, storage_data);
	while (pickle_next(&it, &key))
		n++;
	d->stored = calloc(n / 2 + 1, sizeof(*d->stored));
	if (!d->stored)
		return -ENOMEM;
	pickle_iter_init(&it, d->p, storage_data);
	while (!err && pickle_next(&it, &key) && pickle_next(&it, &info))
		err = add_stored(d, key, info);
	qsort_r(d->stored, d->n_stored, sizeof(*d->stored), by_key, d->p);
	return err;
}

static uint32_t find_stored(const struct dcp *d, struct pickle_text fqn,
			    uint32_t offset)
{
	const struct stored want = { .fqn = fqn, .offset = offset };
	size_t low = 0, high = d->n_stored;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = by_key(&want, &d->stored[mid], d->p);

		if (!order)
			return d->stored[mid].info;
		if (order < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return 0;
}

/* ---- pieces ---- */

static int elements(const uint64_t *shape, unsigned n_dims, uint64_t *out)
{
	uint64_t n = 1;
	bool empty = false;

	for (unsigned i = 0; i < n_dims; i++) {
		if (!shape[i])
			empty = true;
		else if (__builtin_mul_overflow(n, shape[i], &n))
			return -ENOMSG;
	}
	*out = empty ? 0 : n;
	return 0;
}

/* Where `info` says that the piece lies; *partly if it is not readable. */
static int piece_place(struct dcp *d, struct sharded *s, uint32_t info,
		       uint64_t bytes, struct tensor_piece *piece)
{
	const struct pickle *p = d->p;
	uint32_t changed = attribute(p, info, "transform_descriptors");
	struct pickle_text path;
	int64_t off, len;

	if (!info || (changed && pickle_kind(p, changed) != PICKLE_NONE)) {
		s->partly = true;
		return 0;
	}
	if (!pickle_text(p, attribute(p, info, "relative_path"), &path) ||
	    !pickle_int(p, attribute(p, info, "offset"), &off) ||
	    !pickle_int(p, attribute(p, info, "length"), &len) || off < 0 ||
	    len < 0 || (uint64_t)len <= bytes)
		return -ENOMSG;
	piece->file = terminated(d, path, FILE_LEN_MAX);
	piece->coding = TENSOR_NESTED;
	piece->off = (uint64_t)off;
	piece->len = (uint64_t)len;
	return piece->file ? 0 : -ENOMSG;
}

static int add_piece(struct dcp *d, struct sharded *s, struct pickle_text fqn,
		     uint32_t chunk)
{
	const struct pickle *p = d->p;
	struct tensor_piece *piece = &s->pieces[s->n];
	uint64_t *start = s->dims + (size_t)s->n * 2 * s->t.n_dims;
	uint64_t *shape = start + s->t.n_dims, n;
	uint64_t read[2][TENSOR_DIMS_MAX];
	uint32_t offsets = torch_size(p, attribute(p, chunk, "offsets"));
	unsigned n_dims[2];

	if (torch_dims(p, offsets, read[0], &n_dims[0]) ||
	    torch_dims(p, attribute(p, chunk, "sizes"), read[1], &n_dims[1]) ||
	    n_dims[0] != s->t.n_dims || n_dims[1] != s->t.n_dims ||
	    elements(read[1], s->t.n_dims, &n))
		return -ENOMSG;
	for (unsigned i = 0; i < s->t.n_dims; i++) {
		start[i] = read[0][i];
		shape[i] = read[1][i];
		if (start[i] > s->shape[i] || shape[i] > s->shape[i] - start[i])
			return -ENOMSG;
	}
	if (!n)
		return 0;
	*piece = (struct tensor_piece){ .start = start, .shape = shape };
	s->n++;
	if (__builtin_mul_overflow(n, tensor_type_len(s->t.type), &n))
		return -ENOMSG;
	return piece_place(d, s, find_stored(d, fqn, offsets), n, piece);
}

/* ---- do they cover the tensor, each element once? ---- */

struct sweep {
	const struct tensor_piece *pieces;
	unsigned dim;
};

static int by_start(const void *a, const void *b, void *arg)
{
	const struct sweep *s = arg;
	uint64_t x = s->pieces[*(const uint32_t *)a].start[s->dim];
	uint64_t y = s->pieces[*(const uint32_t *)b].start[s->dim];

	return (x > y) - (x < y);
}

static bool overlap(const struct tensor_piece *a, const struct tensor_piece *b,
		    unsigned n_dims)
{
	for (unsigned i = 0; i < n_dims; i++)
		if (a->start[i] + a->shape[i] <= b->start[i] ||
		    b->start[i] + b->shape[i] <= a->start[i])
			return false;
	return true;
}

/* Compare each with those that begin before it ends, in one dimension. */
static int sweep(struct dcp *d, const struct sharded *s, const uint32_t *order,
		 unsigned dim)
{
	for (unsigned i = 0; i < s->n; i++) {
		const struct tensor_piece *a = &s->pieces[order[i]];
		uint64_t end = a->start[dim] + a->shape[dim];

		for (unsigned j = i + 1; j < s->n; j++) {
			const struct tensor_piece *b = &s->pieces[order[j]];

			if (b->start[dim] >= end)
				break;
			if (++d->pairs > PAIRS_MAX)
				return -E2BIG;
			if (overlap(a, b, s->t.n_dims))
				return -ENOMSG;
		}
	}
	return 0;
}

/* The dimension that is cut is the one in which the sweep is short. */
static int check_overlap(struct dcp *d, const struct sharded *s)
{
	struct sweep by = { .pieces = s->pieces };
	uint32_t *order;
	int err;

	if (s->n < 2)
		return 0;
	while (by.dim < s->t.n_dims &&
	       s->pieces->shape[by.dim] == s->shape[by.dim])
		by.dim++;
	if (by.dim == s->t.n_dims)
		return -ENOMSG;
	order = malloc(s->n * sizeof(*order));
	if (!order)
		return -ENOMEM;
	for (unsigned i = 0; i < s->n; i++)
		order[i] = i;
	qsort_r(order, s->n, sizeof(*order), by_start, &by);
	err = sweep(d, s, order, by.dim);
	free(order);
	return err;
}

static int check_cover(struct dcp *d, struct sharded *s)
{
	uint64_t want, have = 0, n = 0;
	int err = check_overlap(d, s);

	if (!err)
		err = elements(s->shape, s->t.n_dims, &want);
	for (unsigned i = 0; !err && i < s->n; i++) {
		err = elements(s->pieces[i].shape, s->t.n_dims, &n);
		have += n; /* no more than want: they do not overlap */
	}
	if (!err && have != want)
		s->partly = true;
	return err;
}

/* ---- tensors ---- */

static int read_pieces(struct dcp *d, struct sharded *s, struct pickle_text fqn,
		       uint32_t chunks)
{
	struct pickle_iter it;
	uint32_t chunk;
	unsigned n = 0;
	int err = 0;

	if (pickle_kind(d->p, chunks) != PICKLE_LIST)
		return -ENOMSG;
	pickle_iter_init(&it, d->p, chunks);
	while (pickle_next(&it, &chunk))
		n++;
	d->n_pieces += n;
	if (d->n_pieces > READER_TENSORS_MAX)
		return -E2BIG;
	s->pieces = calloc((size_t)n + 1, sizeof(*s->pieces));
	s->dims = calloc((size_t)n * 2 * s->t.n_dims + 1, sizeof(*s->dims));
	if (!s->pieces || !s->dims)
		return -ENOMEM;
	pickle_iter_init(&it, d->p, chunks);
	while (!err && pickle_next(&it, &chunk))
		err = add_piece(d, s, fqn, chunk);
	return err ? err : check_cover(d, s);
}

static int report(struct dcp *d, struct sharded *s, struct pickle_text fqn)
{
	s->t.name = terminated(d, fqn, TENSOR_NAME_MAX);
	if (s->partly || !s->t.name)
		return 0;
	s->t.shape = s->shape;
	s->t.pieces = s->pieces;
	s->t.n_pieces = s->n;
	return d->found(d->arg, &s->t);
}

/* The properties are a tuple, whose first is the dtype. */
static int read_tensor(struct dcp *d, struct pickle_text fqn, uint32_t ref)
{
	uint32_t properties = attribute(d->p, ref, "properties");
	struct sharded s = { .n = 0 };
	int err;

	if (!torch_dtype(d->p,
			 pickle_at(d->p, pickle_state(d->p, properties), 0),
			 &s.t.type))
		return 0;
	err = torch_dims(d->p, attribute(d->p, ref, "size"), s.shape,
			 &s.t.n_dims);
	if (err)
		return err == -ERANGE ? 0 : err;
	err = read_pieces(d, &s, fqn, attribute(d->p, ref, "chunks"));
	if (!err)
		err = report(d, &s, fqn);
	free(s.pieces);
	free(s.dims);
	return err;
}

static int read_metadata(struct dcp *d)
{
	uint32_t root = pickle_root(d->p), key, ref;
	uint32_t tensors = attribute(d->p, root, "state_dict_metadata");
	struct pickle_text fqn;
	struct pickle_iter it;
	int err;

	if (!is_class(d->p, root, "Metadata") ||
	    pickle_kind(d->p, tensors) != PICKLE_DICT)
		return -ENOMSG;
	err = read_stored(d, attribute(d->p, root, "storage_data"));
	pickle_iter_init(&it, d->p, tensors);
	while (!err && pickle_next(&it, &key) && pickle_next(&it, &ref)) {
		if (!pickle_text(d->p, key, &fqn))
			return -ENOMSG;
		if (is_class(d->p, ref, "TensorStorageMetadata"))
			err = read_tensor(d, fqn, ref);
	}
	return err;
}

static int read_all(const struct reader_source *source, struct dcp *d)
{
	if (source->size > PICKLE_MEMORY_MAX / 2)
		return -E2BIG;
	d->len = (size_t)source->size;
	d->buf = malloc(d->len + 1);
	if (!d->buf)
		return -ENOMEM;
	return source->read(source->arg, d->buf, d->len, 0);
}

static int scan(const struct reader_source *source, tensor_found *found,
		void *arg)
{
	struct dcp d = { .found = found, .arg = arg };
	int err = read_all(source, &d);

	if (!err)
		err = pickle_parse(d.buf, d.len, PICKLE_MEMORY_MAX - d.len,
				   &d.p);
	if (!err)
		err = read_metadata(&d);
	free(d.stored);
	pickle_free(d.p);
	free(d.buf);
	return err;
}

static bool knows(const uint8_t *head, size_t len, const char *name)
{
	static const char suffix[] = ".metadata";
	size_t n = strlen(name), m = strlen(suffix);

	return len >= 2 && head[0] == 0x80 && n >= m &&
	       !strcmp(name + n - m, suffix);
}

const struct reader_ops reader_dcp = {
	.name = "dcp",
	.knows = knows,
	.scan = scan,
};
